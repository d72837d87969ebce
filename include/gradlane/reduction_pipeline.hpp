// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/buckets/plan.hpp>           // for bucket_plan
#include <gradlane/buckets/readiness.hpp>      // for readiness
#include <gradlane/buffer_view.hpp>            // for buffer_view
#include <gradlane/clip/report.hpp>            // for bucket_record, step_record, step_report
#include <gradlane/clip/rules.hpp>             // for pipeline_options, pipeline_rules
#include <gradlane/concepts.hpp>               // for communicator_for, device, timeout
#include <gradlane/detail/agreement.hpp>       // for sync_agree
#include <gradlane/detail/bucket_reducer.hpp>  // for bucket_reducer
#include <gradlane/detail/bucket_stages.hpp>   // for bucket_stages
#include <gradlane/detail/exchange.hpp>        // for sync_broadcast
#include <gradlane/detail/local_update.hpp>    // for local_update
#include <gradlane/detail/make_report.hpp>     // for fill_report, throw_if_skipped
#include <gradlane/element_range.hpp>          // for element_range
#include <gradlane/error.hpp>                  // for contract_error, expects, state_error, ...
#include <gradlane/gradient_buckets.hpp>       // for gradient_buckets
#include <gradlane/types.hpp>                  // for name_of

#include <cmath>        // for isfinite
#include <cstddef>      // for size_t
#include <cstdint>      // for uint64_t
#include <exception>    // for exception
#include <memory>       // for unique_ptr
#include <mutex>        // for mutex, scoped_lock
#include <span>         // for span
#include <string>       // for string, to_string
#include <string_view>  // for string_view
#include <utility>      // for move
#include <vector>       // for vector

namespace gradlane {

/// What begin() is told of one backward pass.
struct step_options {
  /// average::weighted: w_r, finite and >= 0, of the whole step: of its micro-steps, the last
  /// one's counts.
  double weight{1.0};
  bool accumulate{false};  ///< more micro-steps follow before anything is communicated
};

/// The steps of a pipeline, whatever its policies; made as clip_allreduce, which says what it does.
/// A trainer whose policies are chosen at run time holds one by std::unique_ptr to this.
///
/// A step: begin(s), then ready(i, s) for every trainable parameter as soon as the work that writes
/// its gradient has been put on stream s, then finish(s); then s, or any stream ordered after it,
/// may read the results, and write again after the next begin. Between begin and finish no stream
/// of the trainer waits for anything:
///
///     compute      backward ──●ready──●ready────●ready── ... finish: wait ──▶ optimizer
///     prepare        wait ▶ norm ▶ coefficient ▶ scale or update
///     communicate                        wait ▶ all-reduce
///     settle                                       wait ▶ norm or check ▶ write back
///
/// Buckets are launched in the plan's order on every rank, so ranks may differ in the order of
/// their ready calls. ready() may be called from several threads, the rest from one at a time;
/// calls that block say `sync`, or have a deadline. After the first step nothing is allocated.
///
/// Buckets and communicator must outlive the pipeline, which alone may use them, but that the
/// trainer may poll the communicator. A pipeline that is destroyed between begin and finish aborts
/// its communicator, else peers would wait for ever.
template <device Device, communicator_for<Device> Comm>
class reduction_pipeline {
 public:
  using stream = typename Device::stream;

  reduction_pipeline(reduction_pipeline const&)            = delete;
  reduction_pipeline& operator=(reduction_pipeline const&) = delete;
  reduction_pipeline(reduction_pipeline&&)                 = delete;
  reduction_pipeline& operator=(reduction_pipeline&&)      = delete;

  virtual ~reduction_pipeline() {
    if (phase_ == phase::open) { stages_.abort(); }
  }

  /// Opens a step, or a micro-step of one, for gradients written on `compute`, which is made to
  /// wait for the results of the step before; other streams that write gradients go through
  /// admit().
  /// @throws state_error while a step is open, contract_error for a bad weight.
  void begin(stream& compute, step_options step = {}) {
    expects(std::isfinite(step.weight) && step.weight >= 0,
            "begin: the weight must be finite and not negative");
    expects(rules_.weighted || step.weight == 1.0,
            "begin: a weight needs the policy average::weighted");
    auto const lock = std::scoped_lock{mutex_};
    open(compute);
    accumulates_ = step.accumulate;
    if (rules_.weighted && !accumulates_) { stages_.share_weight(step.weight, true); }
  }

  /// Makes another stream that writes gradients of this step wait for the results of the last.
  void admit(stream& producer) { stages_.admit(producer); }

  /// Says that the work on `producer` so far completes one use of a parameter's gradient.
  ///
  /// Cheap: records an event; the call that completes a bucket enqueues its reduction too.
  /// @throws state_error outside of a step, for a frozen parameter, or for one that was marked as
  ///   often as it has uses; contract_error for an unknown one; communication_error if a peer is
  ///   known to have failed; update_error if the update of reduce::deltas throws.
  void ready(std::size_t parameter, stream& producer) {
    {
      auto const lock = std::scoped_lock{mutex_};
      check_open("ready");
      auto const mark = ready_.mark(parameter);
      if (!plan().slot(parameter)) { return; }
      stages_.record_mark(parameter, mark, producer);
      while (auto const bucket = ready_.pop()) {
        if (accumulates_) {
          stages_.accumulate(*bucket, micro_steps_ == 0);
        } else {
          launch(*bucket);
        }
      }
    }
    telling_the_bucket([&] { stages_.poll(); });
  }

  /// Ends the step: `compute` waits for the results.
  /// @throws state_error where gradients are missing, naming parameters, buckets and rank; the step
  ///   is then still open, and may be completed, or given up by destroying the pipeline.
  void finish(stream& compute) {
    auto const lock = std::scoped_lock{mutex_};
    check_open("finish");
    if (!ready_.all_launched()) {
      throw state_error{"finish: rank " + std::to_string(comm_.rank()) +
                        " has not marked every gradient ready: " + ready_.describe_missing()};
    }
    if (accumulates_) {
      stages_.end_micro_step(compute);
      ++micro_steps_;
      phase_ = phase::idle;
    } else {
      close(compute);
    }
  }

  /// finish(compute), then blocks until the results are there.
  /// @throws timeout_error after `deadline`, naming rank, bucket and parameters, and
  ///   communication_error likewise where a peer failed, what the work of the trainer threw. The
  ///   communicator is then aborted, and what the buckets hold is undefined.
  void finish(stream& compute, timeout deadline) {
    finish(compute);
    sync_results(deadline);
  }

  /// What the optimizer reads, in device memory: valid in stream order from finish to the next
  /// begin. @throws state_error unless a step has just been finished.
  [[nodiscard]] step_status const* status() const {
    check_finished("status");
    return &stages_.step()->status;
  }

  /// All numbers of the step, in device memory: valid in stream order from finish to the next
  /// begin. For trainers that have them copied to the host while they go on, or read them in a
  /// graph.
  /// @throws state_error unless a step has just been finished.
  [[nodiscard]] step_record const* record() const {
    check_finished("record");
    return stages_.step();
  }

  /// Blocks until the step is done and tells its numbers; the reference is good until the next
  /// call.
  /// @throws state_error unless a step has just been finished; non_finite_error under
  ///   non_finite::fail; communication_error, naming the bucket, where the reduction failed.
  step_report const& sync_report() {
    check_finished("sync_report");
    sync_results(no_deadline);
    stages_.sync_download(host_records_, host_step_);
    detail::fill_report(report_, plan(), rules_, host_records_, host_step_, own_parts_);
    stages_.reducer().fill(report_);
    if (fails_) { detail::throw_if_skipped(report_, comm_.rank()); }
    return report_;
  }

  [[nodiscard]] bucket_plan const& plan() const noexcept { return buckets_.plan(); }

  /// The elements of a bucket whose results this rank has: all, or its part under reduce::sharded.
  /// @throws contract_error for an unknown bucket.
  [[nodiscard]] element_range own_part(std::size_t bucket) const {
    expects(bucket < plan().buckets().size(), "own_part: no such bucket");
    return stages_.reducer().own_part(bucket);
  }

  /// Those elements in the dtype of the reduction, valid from finish() to the next begin().
  [[nodiscard]] buffer_view result(std::size_t bucket) {
    auto const own = own_part(bucket);
    return buckets_.bucket(bucket).wire.subview(own.begin, own.count());
  }

  /// The algorithm with its formulas, and the plan.
  [[nodiscard]] std::string describe() const {
    return "clip_allreduce: W = " + std::to_string(comm_.size()) +
           ", B = " + std::to_string(plan().buckets().size()) + "\n" + policy_ +
           stages_.reducer().describe() + plan().describe();
  }

 protected:
  /// Collective; blocks.
  /// @param reducer  joins the buckets over the ranks.
  /// @param update   of reduce::deltas.
  /// @param policy   describes the policies; compared over the ranks.
  /// @param fails    sync_report() throws where a step was skipped.
  reduction_pipeline(gradient_buckets<Device>& buckets,
                     Comm& comm,
                     detail::pipeline_rules const& rules,
                     std::unique_ptr<detail::bucket_reducer<Device>> reducer,
                     detail::local_update<Device> update,
                     std::string const& policy,
                     bool fails,
                     std::span<double const> bounds,
                     timeout deadline)
      : comm_{comm},
        buckets_{buckets},
        rules_{rules},
        policy_{policy + storage_text()},
        fails_{fails},
        ready_{plan()},
        stages_{buckets, comm, rules, std::move(reducer), std::move(update)} {
    detail::sync_agree(buckets.device(), stages_.communicate(), comm_, plan(), policy_, deadline);
    try {
      reset(bounds, deadline);
    } catch (contract_error const&) {
      throw;         // on all ranks alike
    } catch (...) {  // peers may have come further
      stages_.abort();
      throw;
    }
  }

  /// Steps of weight 0 until no rank takes part with data. Blocks.
  template <class OnStep>
  void join(stream& compute, OnStep& on_step) {
    if (micro_steps_ > 0) {
      throw state_error{"sync_join: micro-steps were added up that no last one has reduced"};
    }
    while (true) {
      open(compute);
      stages_.share_weight(0.0, false);
      if (stages_.sync_active() == 0.0) { break; }
      for (auto b = std::size_t{0}; b < plan().buckets().size(); ++b) { stages_.reduce(b); }
      close(compute);
      on_step();
    }
    phase_ = phase::idle;
  }

  /// Lays all out in rank 0's order of the last step. Collective; blocks.
  /// @param bounds_of  gives the bounds for a plan.
  template <class BoundsOf>
  void learn_order(BoundsOf bounds_of, timeout deadline) {
    check_finished("sync_learn_order");
    sync_results(deadline);
    phase_ = phase::failed;  // until all is made anew
    try {
      auto order = std::vector<std::uint64_t>(ready_.order().begin(), ready_.order().end());
      detail::sync_broadcast(
          buckets_.device(), stages_.communicate(), comm_, std::span{order}, deadline);
      buckets_.relayout(plan().reordered(std::vector<std::size_t>(order.begin(), order.end())));
      ready_ = readiness{plan()};
      reset(bounds_of(plan()), deadline);
    } catch (...) {  // peers may have come further
      stages_.abort();
      throw;
    }
    phase_ = phase::idle;
  }

 private:
  enum class phase : unsigned char { idle, open, finished, failed };

  void reset(std::span<double const> bounds, timeout deadline) {
    stages_.sync_reset(bounds, deadline);
    host_records_.assign(plan().buckets().size(), bucket_record{});
    report_ = {};
    report_.buckets.resize(plan().buckets().size());
    own_parts_.clear();
    for (auto b = std::size_t{0}; b < plan().buckets().size(); ++b) {
      own_parts_.push_back(own_part(b));
    }
  }

  void open(stream& compute) {
    if (phase_ == phase::open) { throw state_error{"begin: the last step was not finished"}; }
    check_not_failed("begin");
    ready_.reset();
    phase_ = phase::open;
    stages_.begin(compute);
  }

  void launch(std::size_t bucket) {
    try {
      stages_.launch(bucket, micro_steps_ == 0);
    } catch (update_error const&) {  // peers would wait for this bucket
      phase_ = phase::failed;
      stages_.abort();
      throw;
    }
  }

  void close(stream& compute) {
    stages_.end_step(compute);
    micro_steps_ = 0;
    phase_       = phase::finished;
  }

  void check_not_failed(std::string_view call) const {
    if (phase_ == phase::failed) {
      throw state_error{std::string{call} +
                        ": an earlier step failed and its communicator was aborted"};
    }
  }

  void check_open(std::string_view call) const {
    check_not_failed(call);
    if (phase_ != phase::open) {
      throw state_error{std::string{call} + ": no step is open; call begin first"};
    }
  }

  void check_finished(std::string_view call) const {
    check_not_failed(call);
    if (phase_ != phase::finished) {
      throw state_error{std::string{call} + ": valid only from finish of a step to the next begin"};
    }
  }

  [[nodiscard]] std::string storage_text() const {
    auto const& [accumulate, reduce, write_back] = buckets_.options();
    auto text                                    = std::string{"  micro-steps: added up "};
    text += accumulate ? "in " + std::string{name_of(*accumulate)} : "by the trainer, in place";
    if (rules_.deltas) { text += "\n  coefficients: given to the update"; }
    if (rules_.scales) {
      text += "\n  coefficients: in the cast where there is one, else in ";
      text += rules_.in_reduction ? "the reduction" : "place";
    }
    text += "\n  reduction: in ";
    text += reduce ? std::string{name_of(*reduce)} : "the dtype of the gradients or their sums";
    text += write_back ? "\n" : ", results not written back\n";
    return text;
  }

  void sync_results(timeout deadline) {
    telling_the_bucket([&] { stages_.sync(deadline); });
  }

  /// Calls `action`; where it throws, aborts, and where a peer is late or has failed, says which
  /// bucket that is.
  template <class Action>
  void telling_the_bucket(Action action) {
    try {
      action();
    } catch (timeout_error const& cause) {
      throw timeout_error{fail({}, cause)};
    } catch (aborted_error const& cause) {
      throw aborted_error{fail("could not be reduced", cause)};
    } catch (communication_error const& cause) {
      throw communication_error{fail("could not be reduced", cause)};
    } catch (std::exception const& cause) {  // of the trainer's own work
      static_cast<void>(fail("could not be reduced", cause));
      throw;
    }
  }

  /// Aborts. @param what  has happened; empty: a deadline has passed.
  [[nodiscard]] std::string fail(std::string what, std::exception const& cause) {
    auto const lock   = std::scoped_lock{mutex_};
    auto const bucket = stages_.first_unreduced();
    if (what.empty()) {
      what = stages_.is_prepared(bucket)
                 ? "was not reduced in time, so a peer is late or missing"
                 : "was not reduced in time, as this rank's own streams have not written it";
    }
    phase_ = phase::failed;
    stages_.abort();
    auto text = "clip_allreduce: rank " + std::to_string(comm_.rank()) + ": ";
    if (bucket < plan().buckets().size()) {
      text += "bucket " + std::to_string(bucket) + ", " + plan().name_list(bucket) + ", ";
    } else {
      text += "the step ";
    }
    return text + what + " (" + cause.what() + ")";
  }

  Comm& comm_;
  gradient_buckets<Device>& buckets_;
  detail::pipeline_rules rules_;
  std::string policy_;
  bool fails_;

  std::mutex mutex_;  // guards what follows against ready() from several threads
  phase phase_{phase::idle};
  readiness ready_;
  bool accumulates_{false};
  std::size_t micro_steps_{0};  // that the accumulators hold

  std::vector<bucket_record> host_records_;
  step_record host_step_;
  std::vector<element_range> own_parts_;  // by bucket
  step_report report_;
  detail::bucket_stages<Device, Comm> stages_;  // last: its streams drain first
};

}  // namespace gradlane

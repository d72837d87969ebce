// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/buckets/plan.hpp>       // for bucket_plan
#include <gradlane/buckets/readiness.hpp>  // for readiness
#include <gradlane/buffer_view.hpp>        // for buffer_view
#include <gradlane/clip/coefficient.hpp>   // for bucket_coefficient, close_step, ...
#include <gradlane/clip/policy.hpp>        // for clip_policy, average, non_finite, scaling
#include <gradlane/clip/report.hpp>        // for bucket_record, step_record, step_report
#include <gradlane/concepts.hpp>           // for communicator_for, device, timeout
#include <gradlane/detail/agreement.hpp>   // for sync_agree
#include <gradlane/detail/exchange.hpp>    // for sync_broadcast, upload_all
#include <gradlane/error.hpp>              // for expects, state_error, timeout_error
#include <gradlane/gradient_buckets.hpp>   // for gradient_buckets

#include <array>        // for array
#include <chrono>       // for minutes
#include <cmath>        // for isfinite, sqrt
#include <concepts>     // for same_as
#include <cstddef>      // for size_t
#include <cstdint>      // for uint64_t
#include <mutex>        // for mutex, scoped_lock
#include <span>         // for span
#include <string>       // for string, to_string
#include <type_traits>  // for is_same_v
#include <utility>      // for move
#include <vector>       // for vector

namespace gradlane {

/// What a pipeline is told beyond its policies. All ranks give the same values.
struct pipeline_options {
  /// S, in device memory, or null: gradients hold S·g. Read during a step; change it between.
  float const* loss_scale{nullptr};
  /// Divide by S: before the reduction, and for clip::after together with its coefficient. Without,
  /// results stay multiplied by S, as 16-bit reductions of small gradients need.
  bool unscale{true};
  /// For the checks across ranks when the pipeline is made and when the order is learned.
  timeout construction_deadline{std::chrono::minutes{5}};
};

/// What begin() is told of one backward pass.
struct step_options {
  double weight{1.0};      ///< average::weighted: w_r, finite and >= 0
  bool accumulate{false};  ///< more micro-steps follow before anything is communicated
};

namespace detail {

template <class T>
inline constexpr bool is_adaptive = false;
template <>
inline constexpr bool is_adaptive<clip::bucketwise<threshold::adaptive>> = true;

}  // namespace detail

/// Clips and all-reduces gradients bucket by bucket while backward goes on.
///
/// A step: begin(s), then ready(i, s) for every trainable parameter as soon as work that writes its
/// gradient has been put on stream s, then finish(s); then s, or any stream ordered after it, may
/// read the results, and write again after the next begin. No stream of the trainer waits for
/// anything between begin and finish:
///
///     compute  ─ backward ──●ready──●ready────●ready── ... finish: wait ──▶ optimizer
///     prepare      wait ready ▶ norm ▶ coefficient ▶ scale
///     communicate                           wait ▶ all-reduce
///     settle                                              wait ▶ norm or check ▶ write back
///
/// Buckets are launched in the plan's order on every rank, so ranks may differ in the order of
/// their ready calls. `Clip`, `Average` and `NonFinite` say what is computed; describe() prints it.
/// ready() may be called from several threads, the rest from one; calls that block say `sync`, or
/// have a deadline. After the first step nothing is allocated.
///
/// Buckets and communicator must outlive the pipeline, and several pipelines may share neither. One
/// that is destroyed between begin and finish aborts its communicator, else peers would wait.
///
/// Source: Kim et al. 2024, arXiv 2402.02447; formulas in clip/policy.hpp.
template <device Device,
          communicator_for<Device> Comm,
          clip_policy Clip,
          class Average   = average::ranks,
          class NonFinite = non_finite::propagate,
          class Scaling   = scaling::automatic>
class clip_allreduce {
  static constexpr auto scope    = Clip::scope;
  static constexpr auto adaptive = detail::is_adaptive<Clip>;
  static constexpr auto weighted = std::is_same_v<Average, average::weighted>;
  static constexpr auto local_norm =
      scope == clip_scope::local_bucket || scope == clip_scope::local_total;
  static constexpr auto reads_back = scope == clip_scope::reduced_total || NonFinite::detects;

  static_assert(!std::same_as<Scaling, scaling::premultiplied> ||
                    scaling_communicator_for<Comm, Device>,
                "clip_allreduce: scaling::premultiplied needs a communicator with "
                "capabilities.premultiplied_sum; use scaling::automatic");
  static_assert(!weighted || Comm::supports(reduction::sum, dtype::fp64),
                "clip_allreduce: average::weighted needs a communicator that supports "
                "reduction::sum of fp64");
  static_assert(!adaptive || Comm::supports(reduction::sum, dtype::fp64),
                "clip_allreduce: threshold::adaptive needs a communicator that supports "
                "reduction::sum of fp64");

 public:
  using stream = typename Device::stream;
  using event  = typename Device::event;

  /// Collective; blocks until all ranks have made theirs.
  /// @throws contract_error for bad bounds and for dtypes that the communicator cannot sum,
  ///   plan_mismatch_error where ranks differ, timeout_error where one is missing.
  clip_allreduce(gradient_buckets<Device>& buckets,
                 Comm& comm,
                 Clip clip,
                 Average average          = {},
                 NonFinite /*non_finite*/ = {},
                 Scaling /*scaling*/      = {},
                 pipeline_options options = {})
      : device_{buckets.device()},
        comm_{comm},
        buckets_{buckets},
        clip_{std::move(clip)},
        average_{average},
        options_{options},
        loss_{.scale = options.loss_scale, .unscale = options.unscale},
        ready_{plan()} {
    check_dtypes();
    auto const bounds = clip_.bounds(plan());
    detail::sync_agree(
        device_, communicate_, comm_, plan(), policy_text(), options_.construction_deadline);
    make_buckets(bounds);
  }

  clip_allreduce(clip_allreduce const&)            = delete;
  clip_allreduce& operator=(clip_allreduce const&) = delete;
  clip_allreduce(clip_allreduce&&)                 = delete;
  clip_allreduce& operator=(clip_allreduce&&)      = delete;

  /// Drains its streams.
  ~clip_allreduce() {
    if (phase_ == phase::open) { comm_.abort(); }
  }

  /// Opens a step, or a micro-step of one, for gradients written on `compute`, which is made to
  /// wait for the results of the step before; other streams that write gradients go through
  /// admit().
  /// @throws state_error while a step is open, contract_error for a bad weight.
  void begin(stream& compute, step_options step = {}) {
    expects(std::isfinite(step.weight) && step.weight >= 0,
            "begin: the weight must be finite and not negative");
    expects(weighted || step.weight == 1.0, "begin: a weight needs the policy average::weighted");
    open_step();
    accumulate_ = step.accumulate;
    admit(compute);
    device_.record(began_, compute);
    device_.wait(prepare_, began_);  // what the trainer did before, such as a new loss scale
    if (!accumulate_) { share_weight(step.weight, 1.0); }
  }

  /// Makes another stream that writes gradients of this step wait for the results of the last.
  void admit(stream& producer) { device_.wait(producer, done_); }

  /// Says that the work on `producer` so far completes one use of a parameter's gradient.
  ///
  /// Cheap: records an event; the call that completes a bucket enqueues its reduction too.
  /// @throws state_error outside of a step, for a frozen parameter, or for one that was marked as
  ///   often as it has uses; contract_error for an unknown one; communication_error if a peer is
  ///   known to have failed.
  void ready(std::size_t parameter, stream& producer) {
    {
      auto const lock = std::scoped_lock{mutex_};
      check_open("ready");
      auto const mark = ready_.mark(parameter);
      if (!plan().slot(parameter)) { return; }
      device_.record(marked_[first_mark_[parameter] + mark], producer);
      while (auto const bucket = ready_.pop()) { launch(*bucket); }
    }
    comm_.poll();
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
    if (accumulate_) {
      device_.record(done_, prepare_);
      ++micro_steps_;
      phase_ = phase::idle;
    } else {
      close();
    }
    device_.wait(compute, done_);
  }

  /// finish(compute), then blocks until the results are there.
  /// @throws timeout_error after `deadline`, naming rank, bucket and parameters, and
  ///   communication_error likewise where a peer failed; the communicator is then aborted, and
  ///   what the buckets hold is undefined.
  void finish(stream& compute, timeout deadline) {
    finish(compute);
    sync_results(deadline);
  }

  /// Takes part, with weight 0, in the steps of ranks that still have data, until none has.
  ///
  /// For ranks whose data ends early: all ranks call it at their end, in place of begin. After each
  /// such step `on_step()` runs, with the results as after finish(compute), so that this rank may
  /// update its parameters like the others. Blocks.
  template <class OnStep>
  void sync_join(stream& compute, OnStep&& on_step)
    requires weighted
  {
    while (true) {
      open_step();
      accumulate_ = false;
      admit(compute);
      share_weight(0.0, 0.0);
      auto active = 0.0;
      device_.download(
          communicate_,
          buffer_view{reinterpret_cast<std::byte*>(&step()->total_weight[1]), 1, dtype::fp64},
          std::as_writable_bytes(std::span{&active, 1}));
      device_.sync(communicate_);
      if (active == 0.0) { break; }
      for (auto b = std::size_t{0}; b < count(); ++b) { reduce(b); }
      close();
      device_.wait(compute, done_);
      on_step();
    }
    phase_ = phase::idle;
  }

  /// What the optimizer reads, in device memory: valid in stream order after finish.
  /// @throws state_error unless a step has just been finished.
  [[nodiscard]] step_status const* status() const {
    check_finished("status");
    return &step()->status;
  }

  /// Blocks until the step is done and tells its numbers; the reference is good until the next
  /// call.
  /// @throws state_error unless a step has just been finished; non_finite_error under
  ///   non_finite::fail; communication_error, naming the bucket, where the reduction failed.
  step_report const& sync_report() {
    check_finished("sync_report");
    sync_results(no_deadline);
    auto const host = std::as_writable_bytes(std::span{host_records_});
    device_.download(settle_, buffer_view{records_.data(), host.size(), dtype::uint8}, host);
    device_.download(settle_,
                     buffer_view{step_.data(), sizeof(step_record), dtype::uint8},
                     std::as_writable_bytes(std::span{&host_step_, 1}));
    device_.sync(settle_);
    fill_report();
    if constexpr (std::is_same_v<NonFinite, non_finite::fail>) { throw_if_skipped(); }
    return report_;
  }

  /// Rebuilds the plan in the order in which rank 0's gradients became ready in the last step.
  ///
  /// Collective, between steps; blocks. Contents of the buckets, reports, counters and running
  /// averages are lost, and spans of bound gradients must be fetched anew.
  /// @throws state_error before the first step.
  void sync_learn_order() {
    check_finished("sync_learn_order");
    sync_results(options_.construction_deadline);
    auto order = std::vector<std::uint64_t>(ready_.order().begin(), ready_.order().end());
    detail::sync_broadcast(
        device_, communicate_, comm_, std::span{order}, options_.construction_deadline);
    auto const learned = std::vector<std::size_t>(order.begin(), order.end());
    auto plan_now      = plan().reordered(learned);
    buckets_.relayout(std::move(plan_now));
    ready_ = readiness{plan()};
    make_buckets(clip_.bounds(plan()));
    phase_ = phase::idle;
  }

  /// The algorithm with its formulas, and the plan.
  [[nodiscard]] std::string describe() const {
    return "clip_allreduce: W = " + std::to_string(comm_.size()) +
           ", B = " + std::to_string(count()) + "\n" + policy_text() + "\n" + plan().describe();
  }

 private:
  enum class phase : unsigned char { idle, open, finished, failed };

  [[nodiscard]] bucket_plan const& plan() const noexcept { return buckets_.plan(); }
  [[nodiscard]] std::size_t count() const noexcept { return plan().buckets().size(); }
  [[nodiscard]] bucket_record* record(std::size_t bucket) const noexcept {
    return reinterpret_cast<bucket_record*>(records_.data()) + bucket;
  }
  [[nodiscard]] step_record* step() const noexcept {
    return reinterpret_cast<step_record*>(step_.data());
  }
  [[nodiscard]] double* averages() const noexcept {
    return reinterpret_cast<double*>(averages_.data());
  }

  // What the policies come to -------------------------------------------------------------------

  /// Buckets are multiplied by a coefficient before they are reduced.
  [[nodiscard]] bool scales() const noexcept {
    auto const unscales = scope == clip_scope::none && loss_.scale != nullptr && loss_.unscale;
    return local_norm || weighted || unscales || placement() == divide::split;
  }

  [[nodiscard]] divide placement() const noexcept {
    if constexpr (std::is_same_v<Average, average::ranks>) { return average_.placement; }
    return divide::before;
  }

  /// The loss scale as coefficients before the reduction see it: clip::after divides later.
  [[nodiscard]] detail::loss_scaling loss_before() const noexcept {
    return {.scale = loss_.scale, .unscale = loss_.unscale && scope != clip_scope::reduced_total};
  }

  /// share and post of average::ranks; `weighted` computes its share on the device.
  [[nodiscard]] step_record initial_step() const noexcept {
    auto result      = step_record{};
    auto const ranks = static_cast<double>(comm_.size());
    if constexpr (std::is_same_v<Average, average::ranks>) {
      switch (placement()) {
        case divide::before:
          result.share = 1.0 / ranks;
          break;
        case divide::after:
          result.post = static_cast<float>(1.0 / ranks);
          break;
        case divide::split:
          result.share = 1.0 / std::sqrt(ranks);
          result.post  = static_cast<float>(1.0 / std::sqrt(ranks));
          break;
      }
    }
    return result;
  }

  [[nodiscard]] bool divides_after() const noexcept { return placement() != divide::before; }

  [[nodiscard]] reduction operation() const noexcept {
    auto const plain_average =
        std::is_same_v<Average, average::ranks> && !scales() && placement() == divide::before;
    return plain_average ? reduction::average : reduction::sum;
  }

  [[nodiscard]] std::string policy_text() const {
    auto const& storage = buckets_.options();
    auto const name     = [](std::optional<dtype> const& type) {
      return type ? std::string{name_of(*type)} : std::string{"as the gradient"};
    };
    auto text = "  clip: " + clip_.describe() + "\n  average: " + average_.describe() +
                "\n  non-finite: " + NonFinite::describe() +
                "\n  accumulate in: " + (storage.accumulate ? name(storage.accumulate) : "place") +
                ", reduce in: " + name(storage.reduce);
    if (loss_.scale != nullptr) {
      text += "\n  loss scale: multiplies the bounds";
      text += loss_.unscale ? ", divided out" : ", left in the result";
    }
    return text;
  }

  void check_dtypes() const {
    for (auto b = std::size_t{0}; b < count(); ++b) {
      auto const type = buckets_.bucket(b).wire.type();
      if (!Comm::supports(operation(), type)) {
        throw contract_error{"clip_allreduce: the communicator has no " +
                             std::string{name_of(operation())} + " of " +
                             std::string{name_of(type)} + "; set storage_options::reduce"};
      }
    }
  }

  // Construction --------------------------------------------------------------------------------

  void make_buckets(std::vector<double> const& bounds) {
    auto marks = std::size_t{0};
    first_mark_.clear();
    for (auto const& p : plan().parameters()) {
      first_mark_.push_back(marks);
      marks += p.uses;
    }
    marked_.clear();
    for (auto i = std::size_t{0}; i < marks; ++i) { marked_.push_back(device_.make_event()); }
    prepared_.clear();
    reduced_.clear();
    probes_.clear();
    host_records_.assign(count(), bucket_record{});
    for (auto b = std::size_t{0}; b < count(); ++b) {
      prepared_.push_back(device_.make_event());
      reduced_.push_back(device_.make_event());
      host_records_[b].threshold = bounds[scope == clip_scope::local_bucket ? b : 0];
      auto const& wire           = buckets_.bucket(b).wire;
      auto const first           = wire.subview(0, 1);
      probes_.push_back(device_.make_tensor_list(std::span{&first, 1}));
    }
    host_step_ = initial_step();
    records_   = device_.allocate(count() * sizeof(bucket_record));
    step_      = device_.allocate(sizeof(step_record));
    averages_  = device_.allocate(adaptive ? 2 * count() * sizeof(double) : 0);
    report_    = {};
    report_.buckets.resize(count());
    auto const records = std::as_bytes(std::span{host_records_});
    detail::upload_all(device_, prepare_, records, records_.data());
    detail::upload_all(device_, prepare_, std::as_bytes(std::span{&host_step_, 1}), step_.data());
    device_.sync(prepare_, options_.construction_deadline);
  }

  // A step --------------------------------------------------------------------------------------

  void open_step() {
    if (phase_ == phase::open) { throw state_error{"begin: the last step was not finished"}; }
    if (phase_ == phase::failed) {
      throw state_error{"begin: an earlier step failed and its communicator was aborted"};
    }
    ready_.reset();
    device_.wait(prepare_, done_);
    device_.wait(communicate_, done_);
    phase_ = phase::open;
  }

  /// Sums the weights over the ranks, on the device.
  void share_weight(double weight, double active) {
    if constexpr (weighted) {
      auto const own    = std::array{weight, active};
      auto const memory = [](double* values) {
        return buffer_view{reinterpret_cast<std::byte*>(values), 2, dtype::fp64};
      };
      device_.upload(communicate_, std::as_bytes(std::span{own}), memory(step()->weight));
      comm_.all_reduce(
          communicate_, memory(step()->weight), memory(step()->total_weight), reduction::sum);
      device_.invoke(communicate_,
                     detail::share_of_weights{
                         .step  = step(),
                         .ranks = average_.by_ranks ? static_cast<double>(comm_.size()) : 0.0});
      device_.record(shared_, communicate_);
      device_.wait(prepare_, shared_);
    }
  }

  void launch(std::size_t bucket) {
    wait_for_marks(bucket);
    if (buckets_.options().accumulate) { add_up(bucket); }
    if (accumulate_) { return; }
    measure(bucket);
    reduce(bucket);
  }

  void wait_for_marks(std::size_t bucket) {
    for (auto i = std::size_t{0}; i < plan().parameters().size(); ++i) {
      auto const& slot = plan().slot(i);
      if (!slot || slot->bucket != bucket) { continue; }
      for (auto m = std::size_t{0}; m < plan().parameters()[i].uses; ++m) {
        device_.wait(prepare_, marked_[first_mark_[i] + m]);
      }
    }
  }

  /// The micro-step's gradients into the accumulator: the first replaces it.
  void add_up(std::size_t bucket) {
    auto& storage = buckets_.bucket(bucket);
    if (micro_steps_ > 0) {
      for (auto t = std::size_t{0}; t < storage.tensors.size(); ++t) {
        auto const& slot = *plan().slot(plan().buckets()[bucket].parameters[t]);
        device_.accumulate(
            prepare_, storage.tensors[t], storage.accumulator.subview(slot.offset, slot.count));
      }
    } else {
      device_.pack(prepare_, storage.gradients, storage.accumulated, nullptr);
    }
  }

  /// Brings copied gradients into the wire, and takes the norm that the policy asks for.
  void measure(std::size_t bucket) {
    auto& storage    = buckets_.bucket(bucket);
    auto* const sum  = local_norm ? &record(bucket)->sum_of_squares : nullptr;
    auto const added = !storage.accumulator.empty();
    auto& list       = added ? storage.accumulated : storage.gradients;
    if (!buckets_.bound() && !added) {
      device_.pack(prepare_, list, storage.reduced, sum);
    } else if (local_norm) {
      device_.sum_of_squares(prepare_, list, sum);
    }
    if constexpr (local_norm && NonFinite::detects) {
      device_.first_non_finite(prepare_, list, sum, &record(bucket)->where);
    }
  }

  /// Coefficient and reduction: at once, or for local_total when the last bucket was measured.
  void reduce(std::size_t bucket) {
    if constexpr (scope == clip_scope::local_total) {
      if (bucket + 1 < count()) { return; }
      device_.invoke(
          prepare_,
          detail::total_coefficient{
              .records = record(0), .buckets = count(), .step = step(), .loss = loss_before()});
      for (auto b = std::size_t{0}; b < count(); ++b) { send(b); }
    } else {
      if (scales()) {
        device_.invoke(prepare_,
                       detail::bucket_coefficient{.record   = record(bucket),
                                                  .step     = step(),
                                                  .loss     = loss_before(),
                                                  .adaptive = adaptive_factor(),
                                                  .clips    = scope == clip_scope::local_bucket});
      }
      send(bucket);
    }
  }

  [[nodiscard]] double adaptive_factor() const noexcept {
    if constexpr (adaptive) { return clip_.threshold.factor; }
    return 0.0;
  }

  void send(std::size_t bucket) {
    auto& storage           = buckets_.bucket(bucket);
    auto const& source      = storage.accumulator.empty() ? storage.gradient : storage.accumulator;
    auto const* coefficient = scales() ? &record(bucket)->coefficient : nullptr;
    auto const moves        = !source.empty() && source.data() != storage.wire.data();
    auto in_reduction       = false;
    if (moves) {
      device_.cast(prepare_, source, storage.wire, coefficient);
    } else if (coefficient != nullptr) {
      in_reduction =
          scaling_communicator_for<Comm, Device> && !std::is_same_v<Scaling, scaling::in_place>;
      if (!in_reduction) { device_.scale(prepare_, storage.wire, coefficient); }
    }
    device_.record(prepared_[bucket], prepare_);
    device_.wait(communicate_, prepared_[bucket]);
    if constexpr (scaling_communicator_for<Comm, Device>) {
      if (in_reduction) {
        comm_.all_reduce_scaled(communicate_, storage.wire, storage.wire, coefficient);
      }
    }
    if (!in_reduction) { comm_.all_reduce(communicate_, storage.wire, storage.wire, operation()); }
    device_.record(reduced_[bucket], communicate_);
    settle(bucket);
  }

  /// What follows the reduction of a bucket.
  void settle(std::size_t bucket) {
    auto& storage = buckets_.bucket(bucket);
    device_.wait(settle_, reduced_[bucket]);
    if (divides_after()) { device_.scale(settle_, storage.wire, &step()->post); }
    if constexpr (reads_back) {
      // A local norm that is not finite made the whole bucket NaN, so its first element tells;
      // only fp16 can overflow in a sum of clipped gradients.
      auto const one = local_norm && storage.wire.type() != dtype::fp16;
      auto& list     = one ? probes_[bucket] : storage.reduced;
      auto* sum      = &record(bucket)->reduced_squares;
      device_.sum_of_squares(settle_, list, sum);
      if constexpr (!local_norm && NonFinite::detects) {
        device_.first_non_finite(settle_, list, sum, &record(bucket)->where);
      }
    }
    if (!applies_late()) { write_back(bucket, nullptr); }
  }

  /// clip::after multiplies in one pass at the end.
  [[nodiscard]] bool applies_late() const noexcept {
    if constexpr (scope == clip_scope::reduced_total) { return clip_.in_place; }
    return false;
  }

  void write_back(std::size_t bucket, float const* coefficient) {
    auto& storage     = buckets_.bucket(bucket);
    auto const writes = buckets_.options().write_back && !storage.in_place();
    if (writes && buckets_.bound()) {
      device_.cast(settle_, storage.wire, storage.gradient, coefficient);
      return;
    }
    if (coefficient != nullptr) { device_.scale(settle_, storage.wire, coefficient); }
    if (writes) { device_.pack(settle_, storage.reduced, storage.gradients, nullptr); }
  }

  void close() {
    device_.invoke(settle_,
                   detail::close_step{.records  = record(0),
                                      .buckets  = count(),
                                      .step     = step(),
                                      .loss     = loss_,
                                      .decay    = adaptive_decay(),
                                      .scope    = scope,
                                      .detects  = NonFinite::detects,
                                      .in_place = applies_late()});
    if constexpr (adaptive) {
      if (clip_.threshold.agreed) { agree_on_averages(); }
    }
    if (applies_late()) {
      for (auto b = std::size_t{0}; b < count(); ++b) { write_back(b, &step()->coefficient); }
    }
    device_.record(done_, settle_);
    micro_steps_ = 0;
    phase_       = phase::finished;
  }

  [[nodiscard]] double adaptive_decay() const noexcept {
    if constexpr (adaptive) { return clip_.threshold.decay; }
    return -1.0;
  }

  void agree_on_averages() {
    auto const memory = buffer_view{averages_.data(), 2 * count(), dtype::fp64};
    device_.invoke(
        settle_,
        detail::gather_averages{.records = record(0), .averages = averages(), .buckets = count()});
    device_.record(shared_, settle_);
    device_.wait(communicate_, shared_);
    comm_.all_reduce(communicate_, memory, memory, reduction::sum);
    device_.record(shared_, communicate_);
    device_.wait(settle_, shared_);
    device_.invoke(
        settle_,
        detail::scatter_averages{.records = record(0), .averages = averages(), .buckets = count()});
  }

  // Host side -----------------------------------------------------------------------------------

  void check_open(std::string const& call) const {
    if (phase_ != phase::open) { throw state_error{call + ": no step is open; call begin first"}; }
  }

  void check_finished(std::string const& call) const {
    if (phase_ != phase::finished) {
      throw state_error{call + ": valid only between finish of a step and the next begin"};
    }
  }

  void sync_results(timeout deadline) {
    try {
      device_.sync(done_, deadline);
    } catch (timeout_error const&) {
      fail<timeout_error>("was not reduced in time, so a peer is late, missing or stuck");
    } catch (communication_error const& cause) {
      fail<communication_error>(std::string{"failed: "} + cause.what());
    }
  }

  template <class Error>
  [[noreturn]] void fail(std::string const& what) {
    auto bucket = std::size_t{0};
    while (bucket + 1 < count() && succeeded(reduced_[bucket])) { ++bucket; }
    phase_ = phase::failed;
    comm_.abort();
    auto text = "clip_allreduce: rank " + std::to_string(comm_.rank()) + ": ";
    if (count() > 0) {
      text += "bucket " + std::to_string(bucket) + ", " + plan().name_list(bucket) + ", ";
    }
    throw Error{text + what};
  }

  [[nodiscard]] bool succeeded(event& mark) const {
    if (!device_.is_done(mark)) { return false; }
    try {
      device_.sync(mark, no_deadline);
    } catch (error const&) { return false; }
    return true;
  }

  void fill_report() {
    report_.step          = host_step_.steps + host_step_.skipped_steps - 1;
    report_.norm          = host_step_.norm;
    report_.coefficient   = host_step_.coefficient;
    report_.skipped       = host_step_.status.skip != 0;
    report_.clipped       = host_step_.clipped != 0;
    report_.skipped_steps = host_step_.skipped_steps;
    auto const steps      = static_cast<double>(host_step_.steps);
    auto const units      = scope == clip_scope::local_bucket ? static_cast<double>(count()) : 1.0;
    report_.clipped_fraction = fraction(host_step_.clipped_units, steps * units);
    for (auto b = std::size_t{0}; b < count(); ++b) {
      auto const& from    = host_records_[b];
      auto& to            = report_.buckets[b];
      to.norm             = from.norm;
      to.threshold        = from.threshold;
      to.coefficient      = from.coefficient;
      to.clipped          = from.clipped != 0;
      to.finite           = from.non_finite == 0;
      to.clipped_fraction = fraction(from.clipped_steps, steps);
      report_.clipped     = report_.clipped || to.clipped;
      auto const is_known = !to.finite && from.where.tensor != non_finite_location::none;
      to.parameter = is_known ? plan().parameters()[owner_of(b, from.where.tensor)].name : "";
      to.offset    = is_known ? static_cast<std::size_t>(from.where.offset) : 0;
    }
  }

  [[nodiscard]] std::size_t owner_of(std::size_t bucket, std::uint64_t tensor) const {
    return plan().buckets()[bucket].parameters.at(static_cast<std::size_t>(tensor));
  }

  [[nodiscard]] static double fraction(std::uint64_t part, double whole) noexcept {
    return whole > 0 ? static_cast<double>(part) / whole : 0.0;
  }

  void throw_if_skipped() const {
    for (auto b = std::size_t{0}; b < count() && report_.skipped; ++b) {
      auto const& bucket = report_.buckets[b];
      if (bucket.finite) { continue; }
      auto const where =
          bucket.parameter.empty()
              ? std::string{" (found on another rank)"}
              : ": parameter '" + bucket.parameter + "', element " + std::to_string(bucket.offset);
      throw non_finite_error{"clip_allreduce: rank " + std::to_string(comm_.rank()) +
                                 ": a gradient of bucket " + std::to_string(b) + " is not finite" +
                                 where,
                             b,
                             bucket.parameter,
                             bucket.offset};
    }
  }

  Device& device_;
  Comm& comm_;
  gradient_buckets<Device>& buckets_;
  Clip clip_;
  Average average_;
  pipeline_options options_;
  detail::loss_scaling loss_;

  std::mutex mutex_;  // guards the state of the step against ready() from several threads
  phase phase_{phase::idle};
  readiness ready_;
  bool accumulate_{false};
  std::size_t micro_steps_{0};  // that the accumulators hold

  std::vector<bucket_record> host_records_;
  step_record host_step_;
  step_report report_;

  typename Device::buffer records_{device_.allocate(0)};   // bucket_record[count()]
  typename Device::buffer step_{device_.allocate(0)};      // step_record
  typename Device::buffer averages_{device_.allocate(0)};  // double[2][count()]
  std::vector<typename Device::tensor_list> probes_;       // by bucket: the first element
  std::vector<std::size_t> first_mark_;                    // by parameter, into marked_
  std::vector<event> marked_;                              // by ready() call of a step
  std::vector<event> prepared_;                            // by bucket: may be reduced
  std::vector<event> reduced_;                             // by bucket
  event began_{device_.make_event()};
  event shared_{device_.make_event()};
  event done_{device_.make_event()};
  stream prepare_{device_.make_stream(stream_priority::high)};
  stream communicate_{device_.make_stream(stream_priority::high)};
  stream settle_{device_.make_stream(stream_priority::high)};  // last: streams drain first
};

}  // namespace gradlane

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/buckets/plan.hpp>           // for bucket_plan
#include <gradlane/buffer_view.hpp>            // for buffer_view
#include <gradlane/clip/coefficient.hpp>       // for bucket_coefficient, share_of_weights, ...
#include <gradlane/clip/policy.hpp>            // for clip_scope
#include <gradlane/clip/report.hpp>            // for bucket_record, step_record
#include <gradlane/clip/rules.hpp>             // for pipeline_rules
#include <gradlane/concepts.hpp>               // for communicator_for, device, timeout
#include <gradlane/detail/bucket_reducer.hpp>  // for bucket_reducer
#include <gradlane/detail/exchange.hpp>        // for upload_all
#include <gradlane/detail/leave_for_ever.hpp>  // for leave_for_ever
#include <gradlane/detail/local_update.hpp>    // for local_update
#include <gradlane/detail/ready_marks.hpp>     // for ready_marks
#include <gradlane/detail/settle_stage.hpp>    // for settle_stage
#include <gradlane/error.hpp>                  // for expects
#include <gradlane/gradient_buckets.hpp>       // for gradient_buckets
#include <gradlane/types.hpp>                  // for dtype, reduction, stream_priority

#include <array>    // for array
#include <cstddef>  // for byte, size_t
#include <cstdint>  // for uint64_t
#include <memory>   // for unique_ptr
#include <span>     // for as_bytes, as_writable_bytes, span
#include <utility>  // for move
#include <vector>   // for vector

namespace gradlane::detail {

/// The work of a pipeline on its device: three streams, the events between them, and the numbers
/// in device memory. It only enqueues; it knows nothing of readiness, phases or policies' types.
///
///     prepare      wait for marks ▶ add up or pack ▶ norm ▶ coefficient ▶ scale or update
///     communicate                                              wait ▶ reduce
///     settle                                                             wait ▶ check ▶ write back
template <device Device, communicator_for<Device> Comm>
class bucket_stages {
 public:
  using stream = typename Device::stream;
  using event  = typename Device::event;

  bucket_stages(gradient_buckets<Device>& buckets,
                Comm& comm,
                pipeline_rules rules,
                std::unique_ptr<bucket_reducer<Device>> reducer,
                local_update<Device> update)
      : device_{buckets.device()},
        comm_{comm},
        buckets_{buckets},
        rules_{rules},
        reducer_{std::move(reducer)},
        update_{std::move(update)},
        settle_{buckets, comm, rules} {}
  bucket_stages(bucket_stages const&)            = delete;
  bucket_stages& operator=(bucket_stages const&) = delete;
  ~bucket_stages() {
    try {
      device_.sync(communicate_);
    } catch (...) {  // collectives were skipped, in which peers wait
      abort();
      if constexpr (Comm::capabilities.writes_after_failure) {
        leave_for_ever(step_);
        settle_.leave_memory();
        buckets_.leave_memory();
      }
    }
  }

  /// Makes events and records for the plan as it is now. Blocks; nothing may be in flight.
  /// @param bounds  one per bucket for clip_scope::local_bucket, else one.
  void sync_reset(std::span<double const> bounds, timeout deadline) {
    expects(bounds.size() == (rules_.scope == clip_scope::local_bucket ? count() : 1),
            "clip_allreduce: the clip policy gives another number of bounds than it has to");
    reducer_->sync_reset(deadline);
    update_.reset(buckets_);
    marks_.reset(plan());
    prepared_.clear();
    reduced_.clear();
    auto records = std::vector<bucket_record>(count());
    for (auto b = std::size_t{0}; b < count(); ++b) {
      prepared_.push_back(device_.make_event());
      reduced_.push_back(device_.make_event());
      records[b].threshold = bounds[rules_.scope == clip_scope::local_bucket ? b : 0];
    }
    auto step    = step_record{};
    step.share   = rules_.share;
    step.post    = rules_.post;
    step.updates = sync_updates();
    records_     = device_.allocate(count() * sizeof(bucket_record));
    step_        = device_.allocate(sizeof(step_record));
    settle_.reset(*reducer_, records, record(0), this->step());
    upload_all(device_, prepare_, std::as_bytes(std::span{records}), records_.data());
    upload_all(device_, prepare_, std::as_bytes(std::span{&step, 1}), step_.data());
    device_.sync(prepare_, deadline);
  }

  /// Orders a step behind the results of the last one and behind the work on `compute`, and
  /// `compute` behind those results.
  void begin(stream& compute) {
    sent_ = 0;
    admit(compute);
    device_.record(began_, compute);
    device_.wait(prepare_, done_);
    device_.wait(prepare_, began_);
    device_.wait(communicate_, done_);
    device_.wait(communicate_, began_);  // all three take part where `compute` is captured
    device_.wait(settle_.on(), began_);  // who read the last numbers, where there are no buckets
  }

  void admit(stream& producer) { device_.wait(producer, done_); }

  /// Records ready() call number `mark` of a parameter.
  void record_mark(std::size_t parameter, std::size_t mark, stream& producer) {
    marks_.record(parameter, mark, producer);
  }

  /// Sums this rank's weight and its 1 or 0 for taking part over the ranks.
  void share_weight(double weight, bool active) {
    auto const own = std::array{weight, active ? 1.0 : 0.0};
    device_.upload(communicate_, std::as_bytes(std::span{own}), scalars(step()->weight));
    comm_.all_reduce(
        communicate_, scalars(step()->weight), scalars(step()->total_weight), reduction::sum);
    device_.invoke(communicate_, share_of_weights{.step = step(), .ranks = rules_.weight_divisor});
    device_.record(shared_, communicate_);
    device_.wait(prepare_, shared_);
    device_.wait(settle_.on(), shared_);  // which no bucket orders where there are none
  }

  /// How many ranks took part in share_weight(). Blocks.
  [[nodiscard]] double sync_active() {
    auto totals = std::array<double, 2>{};
    device_.download(
        communicate_, scalars(step()->total_weight), std::as_writable_bytes(std::span{totals}));
    device_.sync(communicate_);
    return totals[1];
  }

  /// A complete bucket of a micro-step that is not the last. Where the trainer adds up by itself,
  /// nothing is done but that the end of the micro-step comes after all that was written.
  /// @param first  replaces what the accumulator holds.
  void accumulate(std::size_t bucket, bool first) {
    marks_.wait(prepare_, bucket);
    if (buckets_.options().accumulate) { add_up(bucket, first); }
  }

  /// A complete bucket of the last micro-step: norm, coefficient, reduction, and what follows.
  void launch(std::size_t bucket, bool first) {
    marks_.wait(prepare_, bucket);
    if (buckets_.options().accumulate) { add_up(bucket, first); }
    measure(bucket);
    reduce(bucket);
  }

  /// Coefficient and reduction of a bucket; with local_total, of all when the last one comes.
  void reduce(std::size_t bucket) {
    if (rules_.scope == clip_scope::local_total) {
      if (bucket + 1 < count()) { return; }
      device_.invoke(prepare_,
                     total_coefficient{.records = record(0),
                                       .buckets = count(),
                                       .step    = step(),
                                       .loss    = rules_.loss_before});
      for (auto b = std::size_t{0}; b < count(); ++b) { send(b); }
      return;
    }
    if (rules_.scales || rules_.deltas) {
      device_.invoke(prepare_,
                     bucket_coefficient{.record   = record(bucket),
                                        .step     = step(),
                                        .loss     = rules_.loss_before,
                                        .adaptive = rules_.adaptive_factor,
                                        .clips    = rules_.measures_locally()});
    }
    send(bucket);
  }

  /// Ends a micro-step that communicates nothing: `compute` may write the gradients again.
  void end_micro_step(stream& compute) {
    device_.record(done_, prepare_);
    device_.wait(compute, done_);
  }

  /// Ends a step: `compute` waits for its results.
  void end_step(stream& compute) {
    reducer_->measure(settle_.on(), step());
    settle_.close(communicate_);
    device_.record(done_, settle_.on());
    device_.wait(compute, done_);
  }

  /// Blocks until the results are there. @throws the first error met, timeout_error.
  void sync(timeout deadline) { device_.sync(done_, deadline); }

  /// Copies the numbers of the last step to the host. Blocks.
  void sync_download(std::span<bucket_record> records, step_record& numbers) {
    auto const bytes = std::as_writable_bytes(records);
    device_.download(settle_.on(), buffer_view{records_.data(), bytes.size(), dtype::uint8}, bytes);
    device_.download(settle_.on(),
                     buffer_view{step_.data(), sizeof(step_record), dtype::uint8},
                     std::as_writable_bytes(std::span{&numbers, 1}));
    reducer_->download(settle_.on());
    device_.sync(settle_.on());
  }

  /// The first bucket of the step whose reduction was enqueued but has not succeeded; the number of
  /// buckets enqueued where all have.
  [[nodiscard]] std::size_t first_unreduced() const {
    auto bucket = std::size_t{0};
    while (bucket < sent_ && succeeded(reduced_[bucket])) { ++bucket; }
    return bucket;
  }

  /// Whether a bucket of the step waits for other ranks, if for anything: this one's part is done.
  [[nodiscard]] bool is_prepared(std::size_t bucket) const {
    return bucket == count() || (bucket < sent_ && device_.is_done(prepared_[bucket]));
  }

  /// Of the communicator and of those that the reducer has made.
  void poll() {
    comm_.poll();
    reducer_->poll();
  }
  void abort() noexcept {
    comm_.abort();
    reducer_->abort();
  }

  /// In device memory.
  [[nodiscard]] step_record* step() const noexcept {
    return reinterpret_cast<step_record*>(step_.data());
  }

  [[nodiscard]] bucket_reducer<Device> const& reducer() const noexcept { return *reducer_; }

  /// The stream that communicates, for exchanges between steps.
  [[nodiscard]] stream& communicate() noexcept { return communicate_; }

 private:
  [[nodiscard]] bucket_plan const& plan() const noexcept { return buckets_.plan(); }
  [[nodiscard]] std::size_t count() const noexcept { return plan().buckets().size(); }
  [[nodiscard]] bucket_record* record(std::size_t bucket) const noexcept {
    return reinterpret_cast<bucket_record*>(records_.data()) + bucket;
  }
  [[nodiscard]] static buffer_view scalars(double* pair) noexcept {
    return {reinterpret_cast<std::byte*>(pair), 2, dtype::fp64};
  }

  void add_up(std::size_t bucket, bool first) {
    auto& storage = buckets_.bucket(bucket);
    if (first) {
      device_.pack(prepare_, storage.gradients, storage.accumulated, nullptr);
      return;
    }
    for (auto t = std::size_t{0}; t < storage.tensors.size(); ++t) {
      auto const& slot = *plan().slot(plan().buckets()[bucket].parameters[t]);
      auto const part  = storage.accumulator.subview(slot.offset, slot.count);
      device_.accumulate(prepare_, storage.tensors[t], part);
    }
  }

  /// Brings copied gradients into the wire, which an update reads where they are, and takes the
  /// norm that the policy asks for.
  void measure(std::size_t bucket) {
    auto& storage    = buckets_.bucket(bucket);
    auto const local = rules_.measures_locally();
    auto const added = !storage.accumulator.empty();
    auto& list       = added ? storage.accumulated : storage.gradients;
    auto* const sum  = local ? &record(bucket)->sum_of_squares : nullptr;
    if (!buckets_.bound() && !added && !rules_.deltas) {
      device_.pack(prepare_, list, storage.reduced, sum);
    } else if (local) {
      device_.sum_of_squares(prepare_, list, sum);
    }
    if (local && rules_.detects) {
      device_.first_non_finite(prepare_, list, sum, &record(bucket)->where);
    }
  }

  /// Steps so far that were not skipped. Blocks.
  [[nodiscard]] std::uint64_t sync_updates() {
    auto count = std::uint64_t{0};
    if (step_.size() == 0) { return count; }
    auto* const from = reinterpret_cast<std::byte*>(&step()->updates);
    device_.download(prepare_,
                     buffer_view{from, 1, dtype::uint64},
                     std::as_writable_bytes(std::span{&count, 1}));
    device_.sync(prepare_);
    return count;
  }

  void send(std::size_t bucket) {
    auto const* const coefficient = rules_.deltas ? update(bucket) : scale(bucket);
    device_.record(prepared_[bucket], prepare_);
    device_.wait(communicate_, prepared_[bucket]);
    reducer_->reduce(communicate_, bucket, coefficient);
    device_.record(reduced_[bucket], communicate_);
    sent_ = bucket + 1;
    settle_.settle(bucket, reduced_[bucket]);
  }

  /// Has the trainer write the wire.
  [[nodiscard]] float const* update(std::size_t bucket) {
    update_(prepare_, plan(), bucket, &record(bucket)->coefficient, &step()->updates);
    device_.scale(prepare_, buckets_.bucket(bucket).wire, &record(bucket)->gate);
    return nullptr;
  }

  /// Brings the gradients into the wire, multiplied where the reduction does not do that: gives
  /// what it is to multiply by, or null.
  [[nodiscard]] float const* scale(std::size_t bucket) {
    auto& storage           = buckets_.bucket(bucket);
    auto const& source      = storage.accumulator.empty() ? storage.gradient : storage.accumulator;
    auto const* coefficient = rules_.scales ? &record(bucket)->coefficient : nullptr;
    if (!source.empty() && source.data() != storage.wire.data()) {
      device_.cast(prepare_, source, storage.wire, coefficient);
      coefficient = nullptr;
    } else if (coefficient != nullptr && !(rules_.in_reduction && reducer_->scales(bucket))) {
      device_.scale(prepare_, storage.wire, coefficient);
      coefficient = nullptr;
    } else if (coefficient != nullptr && rules_.weighted) {  // reads one number where it is 1
      device_.scale(prepare_, storage.wire, &step()->used);
    }
    return coefficient;
  }

  [[nodiscard]] bool succeeded(event const& mark) const {
    if (!device_.is_done(mark)) { return false; }
    try {
      device_.sync(mark, no_deadline);
    } catch (...) { return false; }
    return true;
  }

  Device& device_;
  Comm& comm_;
  gradient_buckets<Device>& buckets_;
  pipeline_rules rules_;
  std::unique_ptr<bucket_reducer<Device>> reducer_;
  local_update<Device> update_;
  std::size_t sent_{0};  // buckets of the step whose reduction was enqueued

  typename Device::buffer records_{device_.allocate(0)};  // bucket_record (B)
  typename Device::buffer step_{device_.allocate(0)};     // step_record
  ready_marks<Device> marks_{device_};
  std::vector<event> prepared_;  // by bucket: may be reduced
  std::vector<event> reduced_;   // by bucket
  event began_{device_.make_event()};
  event shared_{device_.make_event()};
  event done_{device_.make_event()};
  settle_stage<Device, Comm> settle_;  // its memory is communicated, its stream is waited for
  stream prepare_{device_.make_stream(stream_priority::high)};
  stream communicate_{device_.make_stream(stream_priority::high)};  // last: streams drain first
};

}  // namespace gradlane::detail

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/buckets/plan.hpp>           // for bucket_plan
#include <gradlane/buffer_view.hpp>            // for buffer_view
#include <gradlane/clip/coefficient.hpp>       // for close_step, gather_averages, ...
#include <gradlane/clip/report.hpp>            // for bucket_record, step_record
#include <gradlane/clip/rules.hpp>             // for pipeline_rules
#include <gradlane/concepts.hpp>               // for communicator_for, device
#include <gradlane/detail/bucket_reducer.hpp>  // for bucket_reducer
#include <gradlane/detail/leave_for_ever.hpp>  // for leave_for_ever
#include <gradlane/element_range.hpp>          // for element_range, intersection
#include <gradlane/gradient_buckets.hpp>       // for gradient_buckets
#include <gradlane/types.hpp>                  // for dtype, reduction, stream_priority

#include <cstddef>  // for size_t
#include <span>     // for span
#include <vector>   // for vector

namespace gradlane::detail {

/// What a pipeline does with reduced buckets, on a stream of its own: looks at their norms and for
/// what is not finite, multiplies, writes back, and ends the step.
template <device Device, communicator_for<Device> Comm>
class settle_stage {
 public:
  using stream = typename Device::stream;
  using event  = typename Device::event;

  settle_stage(gradient_buckets<Device>& buckets, Comm& comm, pipeline_rules const& rules)
      : device_{buckets.device()}, comm_{comm}, buckets_{buckets}, rules_{rules} {}

  /// Makes ready for the plan as it is now; nothing may be in flight.
  /// @param initial       by bucket: with the bounds that are to hold.
  /// @param records,step  in device memory.
  void reset(bucket_reducer<Device> const& reducer,
             std::span<bucket_record const> initial,
             bucket_record* records,
             step_record* step) {
    records_  = records;
    step_     = step;
    averages_ = device_.allocate(2 * count() * sizeof(double));
    results_.clear();
    bounded_.clear();
    for (auto b = std::size_t{0}; b < count(); ++b) {
      results_.push_back(make_result(b, reducer.own_part(b)));
      bounded_.push_back(rules_.measures_locally() && !rules_.deltas &&
                         initial[b].threshold <= moderate_bound);
    }
  }

  /// What follows the reduction of a bucket.
  void settle(std::size_t bucket, event const& reduced) {
    device_.wait(settle_, reduced);
    if (rules_.post != 1.0F) { device_.scale(settle_, results_[bucket].wire, &step_->post); }
    if (rules_.reads_back()) { read_back(bucket); }
    if (!rules_.applies_late) { write_back(bucket, nullptr); }
  }

  /// The end of a step, when all buckets are settled.
  /// @param communicate  for what the ranks tell each other.
  void close(stream& communicate) {
    if (rules_.sharded && rules_.reads_back() && count() > 0) { add_up_parts(communicate); }
    device_.invoke(settle_,
                   close_step{.records  = records_,
                              .buckets  = count(),
                              .step     = step_,
                              .loss     = rules_.loss,
                              .decay    = rules_.adaptive_decay,
                              .scope    = rules_.scope,
                              .local    = rules_.measures_locally(),
                              .detects  = rules_.detects,
                              .in_place = rules_.applies_late});
    if (rules_.agrees_on_averages) { agree_on_averages(communicate); }
    for (auto b = std::size_t{0}; rules_.applies_late && b < count(); ++b) {
      write_back(b, &step_->coefficient);
    }
  }

  [[nodiscard]] stream& on() noexcept { return settle_; }

  /// Never frees the memory that is communicated: a transport that failed may still write to it.
  void leave_memory() noexcept { leave_for_ever(averages_); }

 private:
  /// What this rank has of a bucket's results: all of it, or its part.
  struct result {
    buffer_view wire;
    buffer_view gradient;                    ///< the same elements where gradients are bound
    typename Device::tensor_list tensors;    ///< each parameter's in `wire`
    typename Device::tensor_list gradients;  ///< each parameter's where the trainer wrote it
    typename Device::tensor_list probe;      ///< the first element of a parameter, if there is one
  };

  /// Far from where fp32 and bf16 overflow, whatever the ranks and the loss scale.
  static constexpr auto moderate_bound = 1e24;

  [[nodiscard]] bucket_plan const& plan() const noexcept { return buckets_.plan(); }
  [[nodiscard]] std::size_t count() const noexcept { return plan().buckets().size(); }
  [[nodiscard]] double* averages() const noexcept {
    return reinterpret_cast<double*>(averages_.data());
  }

  [[nodiscard]] result make_result(std::size_t bucket, element_range own) {
    auto& storage   = buckets_.bucket(bucket);
    auto const wire = storage.wire.subview(own.begin, own.count());
    auto tensors    = std::vector<buffer_view>{};
    auto gradients  = std::vector<buffer_view>{};
    auto probe      = std::vector<buffer_view>{};
    for (auto t = std::size_t{0}; t < storage.tensors.size(); ++t) {
      auto const& slot = *plan().slot(plan().buckets()[bucket].parameters[t]);
      auto const all   = element_range{.begin = slot.offset, .end = slot.offset + slot.count};
      auto const part  = intersection(all, own);
      auto const first = part.count() > 0 ? part.begin - slot.offset : 0;
      tensors.push_back(wire.subview(part.begin - own.begin, part.count()));
      gradients.push_back(storage.tensors[t].subview(first, part.count()));
      if (probe.empty() && part.count() > 0) { probe.push_back(tensors.back().subview(0, 1)); }
    }
    return {.wire      = wire,
            .gradient  = storage.gradient.empty() ? buffer_view{}
                                                  : storage.gradient.subview(own.begin, own.count()),
            .tensors   = device_.make_tensor_list(tensors),
            .gradients = device_.make_tensor_list(gradients),
            .probe     = device_.make_tensor_list(probe)};
  }

  /// The norm of the reduced bucket, or as much of it as tells whether it is finite: a local norm
  /// that is not finite has made all of the bucket NaN, so that its first element tells, and what
  /// is clipped to a moderate bound overflows neither the wire nor the sum, but in fp16.
  void read_back(std::size_t bucket) {
    auto& own        = results_[bucket];
    auto const probe = bounded_[bucket] && own.wire.type() != dtype::fp16;
    auto& list       = probe ? own.probe : own.tensors;
    auto* const sum  = &records_[bucket].reduced_squares;
    device_.sum_of_squares(settle_, list, sum);
    if (!rules_.measures_locally() && rules_.detects) {
      device_.first_non_finite(settle_, list, sum, &records_[bucket].where);
    }
  }

  void write_back(std::size_t bucket, float const* coefficient) {
    auto& own         = results_[bucket];
    auto const writes = buckets_.options().write_back && !buckets_.bucket(bucket).in_place();
    auto const casts  = writes && buckets_.bound();
    if (casts) { device_.cast(settle_, own.wire, own.gradient, coefficient); }
    if (coefficient != nullptr) { device_.scale(settle_, own.wire, coefficient); }
    if (writes && !casts) { device_.pack(settle_, own.tensors, own.gradients, nullptr); }
  }

  /// The squares that each rank has read back of its parts, summed over the ranks.
  void add_up_parts(stream& communicate) {
    device_.invoke(settle_,
                   gather_squares{.records = records_, .squares = averages(), .buckets = count()});
    all_reduce(communicate, {averages_.data(), count(), dtype::fp64});
    device_.invoke(settle_,
                   scatter_squares{.records = records_, .squares = averages(), .buckets = count()});
  }

  void agree_on_averages(stream& communicate) {
    device_.invoke(
        settle_, gather_averages{.records = records_, .averages = averages(), .buckets = count()});
    all_reduce(communicate, {averages_.data(), 2 * count(), dtype::fp64});
    device_.invoke(
        settle_, scatter_averages{.records = records_, .averages = averages(), .buckets = count()});
  }

  /// Sums scalars over the ranks between work on `settle_`.
  void all_reduce(stream& communicate, buffer_view memory) {
    device_.record(exchanged_, settle_);
    device_.wait(communicate, exchanged_);
    comm_.all_reduce(communicate, memory, memory, reduction::sum);
    device_.record(exchanged_, communicate);
    device_.wait(settle_, exchanged_);
  }

  Device& device_;
  Comm& comm_;
  gradient_buckets<Device>& buckets_;
  pipeline_rules rules_;
  bucket_record* records_{nullptr};
  step_record* step_{nullptr};
  typename Device::buffer averages_{device_.allocate(0)};  // double (2, B)
  std::vector<result> results_;                            // by bucket
  std::vector<bool> bounded_;                              // by bucket: clipped to a moderate bound
  event exchanged_{device_.make_event()};
  stream settle_{device_.make_stream(stream_priority::high)};  // last: it drains first
};

}  // namespace gradlane::detail

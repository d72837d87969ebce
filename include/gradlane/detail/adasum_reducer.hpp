// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/adasum.hpp>                 // for adasum_all_reduce
#include <gradlane/adasum/buffer.hpp>          // for adasum_buffer
#include <gradlane/adasum/device.hpp>          // for adasum_device
#include <gradlane/buckets/plan.hpp>           // for bucket_plan
#include <gradlane/clip/policy.hpp>            // for adasum
#include <gradlane/clip/report.hpp>            // for step_record, step_report
#include <gradlane/clip/rules.hpp>             // for pipeline_rules
#include <gradlane/concepts.hpp>               // for communicator_for, timeout
#include <gradlane/detail/bucket_reducer.hpp>  // for bucket_reducer
#include <gradlane/element_range.hpp>          // for element_range, intersection
#include <gradlane/gradient_buckets.hpp>       // for gradient_buckets

#include <cstddef>   // for size_t
#include <limits>    // for numeric_limits
#include <memory>    // for make_unique, unique_ptr
#include <optional>  // for optional
#include <utility>   // for move
#include <vector>    // for vector

namespace gradlane::detail {

/// The wires of all buckets, with a segment for each parameter.
/// @param part_of  the elements of a bucket that are joined: all, or a shard.
template <adasum_device Device, class PartOf>
[[nodiscard]] std::vector<adasum_buffer> adasum_buffers(gradient_buckets<Device>& buckets,
                                                        PartOf part_of) {
  auto result      = std::vector<adasum_buffer>{};
  auto const& plan = buckets.plan();
  for (auto b = std::size_t{0}; b < plan.buckets().size(); ++b) {
    auto const part = part_of(b);
    auto& added     = result.emplace_back(buckets.bucket(b).wire.subview(part.begin, part.count()));
    for (auto const owner : plan.buckets()[b].parameters) {
      auto const& slot = *plan.slot(owner);
      auto const here  = intersection({slot.offset, slot.offset + slot.count}, part);
      added.segments.push_back({here.begin - part.begin, here.end - part.begin});
    }
  }
  return result;
}

/// What `reduction` has measured of each parameter.
template <class Reduction>
void fill_orthogonality(step_report& report, bucket_plan const& plan, Reduction const& reduction) {
  report.parameter_orthogonality.assign(plan.parameters().size(),
                                        std::numeric_limits<double>::quiet_NaN());
  for (auto b = std::size_t{0}; b < plan.buckets().size(); ++b) {
    for (auto t = std::size_t{0}; t < plan.buckets()[b].parameters.size(); ++t) {
      auto const owner                      = plan.buckets()[b].parameters[t];
      report.parameter_orthogonality[owner] = reduction.orthogonality(b, t);
    }
  }
}

/// By Adasum, parameter by parameter.
template <adasum_device Device, communicator_for<Device> Comm>
class adasum_reducer final : public bucket_reducer<Device> {
 public:
  using stream = typename Device::stream;

  adasum_reducer(gradient_buckets<Device>& buckets, Comm& comm) : buckets_{buckets}, comm_{comm} {}

  void sync_reset(timeout deadline) override {
    auto list = adasum_buffers(buckets_, [&](std::size_t b) { return own_part(b); });
    reduction_.reset();
    reduction_.emplace(buckets_.device(), comm_, std::move(list), deadline);
  }

  [[nodiscard]] element_range own_part(std::size_t bucket) const override {
    return {.begin = 0, .end = buckets_.plan().buckets()[bucket].count};
  }

  void reduce(stream& s, std::size_t bucket, float const* /*none*/) override {
    reduction_->reduce(s, bucket);
  }

  void measure(stream& s, step_record* step) override {
    reduction_->add_up_orthogonality(s, step->orthogonality);
  }
  void download(stream& s) override { reduction_->download(s); }

  void fill(step_report& report) const override {
    fill_orthogonality(report, buckets_.plan(), *reduction_);
  }

 private:
  gradient_buckets<Device>& buckets_;
  Comm& comm_;
  std::optional<adasum_all_reduce<Device, Comm>> reduction_;
};

template <adasum_device Device, communicator_for<Device> Comm>
[[nodiscard]] std::unique_ptr<bucket_reducer<Device>> make_reducer(
    gradient_buckets<Device>& buckets,
    Comm& comm,
    pipeline_rules const& /*rules*/,
    reduce::adasum const& /*policy*/) {
  return std::make_unique<adasum_reducer<Device, Comm>>(buckets, comm);
}

}  // namespace gradlane::detail

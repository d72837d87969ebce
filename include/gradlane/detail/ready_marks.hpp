// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/buckets/plan.hpp>  // for bucket_plan
#include <gradlane/concepts.hpp>      // for device

#include <cstddef>  // for size_t
#include <vector>   // for vector

namespace gradlane::detail {

/// The events that ready() records: one for each use of a parameter in a step.
template <device Device>
class ready_marks {
 public:
  using stream = typename Device::stream;

  explicit ready_marks(Device& device) : device_{device} {}

  void reset(bucket_plan const& plan) {
    marks_.clear();
    members_.assign(plan.buckets().size(), {});
    for (auto i = std::size_t{0}; i < plan.parameters().size(); ++i) {
      auto& added = marks_.emplace_back();
      for (auto use = std::size_t{0}; use < plan.parameters()[i].uses; ++use) {
        added.push_back(device_.make_event());
      }
      if (auto const& slot = plan.slot(i)) { members_[slot->bucket].push_back(i); }
    }
  }

  /// Records ready() call number `mark` of a parameter.
  void record(std::size_t parameter, std::size_t mark, stream& producer) {
    device_.record(marks_[parameter][mark], producer);
  }

  /// Orders `s` behind all marks of a bucket, those of tied parameters too.
  void wait(stream& s, std::size_t bucket) {
    for (auto const parameter : members_[bucket]) {
      for (auto const& mark : marks_[parameter]) { device_.wait(s, mark); }
    }
  }

 private:
  Device& device_;
  std::vector<std::vector<typename Device::event>> marks_;  // by parameter and use
  std::vector<std::vector<std::size_t>> members_;           // by bucket: parameters that mark it
};

}  // namespace gradlane::detail

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../parameters.hpp"   // for parameter_list
#include "../tensor_part.hpp"  // for tensor_part

#include <gradlane/buckets/plan.hpp>   // for bucket_plan
#include <gradlane/element_range.hpp>  // for element_range, intersection

#include <algorithm>  // for copy
#include <cstddef>    // for size_t
#include <span>       // for span
#include <vector>     // for vector

namespace bert {

/// The parts of tensors that lie in one range of each bucket, in the plan's order.
/// @param range  of a bucket, by its index.
template <class Range>
[[nodiscard]] std::vector<tensor_part> parts_in(gradlane::bucket_plan const& plan, Range range) {
  auto result = std::vector<tensor_part>{};
  for (auto b = std::size_t{0}; b < plan.buckets().size(); ++b) {
    for (auto const tensor : plan.buckets()[b].parameters) {
      auto const& slot = *plan.slot(tensor);
      auto const all =
          gradlane::element_range{.begin = slot.offset, .end = slot.offset + slot.count};
      auto const part = intersection(all, gradlane::element_range{range(b)});
      if (part.count() > 0) { result.push_back({tensor, part.begin - slot.offset, part.count()}); }
    }
  }
  return result;
}

/// Elements of some parts.
[[nodiscard]] inline std::size_t count_of(std::span<tensor_part const> parts) {
  auto sum = std::size_t{0};
  for (auto const& part : parts) { sum += part.size; }
  return sum;
}

/// Puts parts that lie back to back where they belong in a flat vector.
inline void scatter(parameter_list const& list,
                    std::span<tensor_part const> parts,
                    std::span<float const> from,
                    std::span<float> flat) {
  auto place = std::size_t{0};
  for (auto const& [tensor, begin, size] : parts) {
    std::ranges::copy(from.subspan(place, size), list.slice(flat, tensor).subspan(begin).begin());
    place += size;
  }
}

}  // namespace bert

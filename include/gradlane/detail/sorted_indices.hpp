// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>  // for size_t
#include <vector>   // for vector

namespace gradlane::detail {

/// 0, 1, …, count-1.
[[nodiscard]] inline std::vector<std::size_t> indices(std::size_t count) {
  auto all = std::vector<std::size_t>(count);
  for (std::size_t i = 0; i < count; ++i) { all[i] = i; }
  return all;
}

/// `order`, sorted by `before(a, b)`; equals keep their order.
///
/// Merges runs of 1, 2, 4, …: far lighter to instantiate than std::stable_sort, which every source
/// file that includes gradlane would have to parse several times.
template <class Before>
[[nodiscard]] std::vector<std::size_t> sorted(std::vector<std::size_t> order, Before before) {
  auto const count = order.size();
  auto merged      = order;
  for (std::size_t width = 1; width < count; width *= 2) {
    for (std::size_t begin = 0; begin < count; begin += 2 * width) {
      auto const middle = count - begin < width ? count : begin + width;
      auto const end    = count - middle < width ? count : middle + width;
      auto left         = begin;
      auto right        = middle;
      for (auto at = begin; at < end; ++at) {
        auto const take_right =
            left == middle || (right < end && before(order[right], order[left]));
        merged[at] = order[take_right ? right++ : left++];
      }
    }
    order.swap(merged);
  }
  return order;
}

}  // namespace gradlane::detail

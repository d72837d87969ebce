// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>  // for size_t

namespace gradlane::detail {

/// The first of 0 … count-1 for which `holds`, or count; it must hold for all after it.
template <class Holds>
[[nodiscard]] std::size_t first_where(std::size_t count, Holds holds) {
  auto first = std::size_t{0};
  for (auto last = count; first < last;) {
    auto const middle = first + (last - first) / 2;
    if (holds(middle)) {
      last = middle;
    } else {
      first = middle + 1;
    }
  }
  return first;
}

}  // namespace gradlane::detail

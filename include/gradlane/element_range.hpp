// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>  // for clamp, max, min
#include <cstddef>    // for size_t

namespace gradlane {

/// Elements [begin, end) of a buffer.
struct element_range {
  std::size_t begin{};
  std::size_t end{};

  [[nodiscard]] constexpr std::size_t count() const noexcept { return end - begin; }
  friend bool operator==(element_range const&, element_range const&) = default;
};

/// The part of `a` that lies in `b`; empty, but inside b, where they do not meet.
[[nodiscard]] constexpr element_range intersection(element_range a, element_range b) noexcept {
  auto const begin = std::clamp(a.begin, b.begin, b.end);
  return {.begin = begin, .end = std::max(begin, std::min(a.end, b.end))};
}

}  // namespace gradlane

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>    // for array
#include <cstddef>  // for size_t
#include <cstdint>  // for uint32_t, uint64_t
#include <vector>   // for vector

namespace gradlane::detail {

/// Sorts indices by `key(index)`, smallest first; equals keep their order.
///
/// One pass a byte of the largest key, the least significant byte first, and none where the order
/// is right already: time is linear in the number of indices.
template <class Key>
void radix_sort(std::vector<std::uint32_t>& order, Key key) {
  auto largest = std::uint64_t{0};
  auto sorted  = true;
  for (auto const i : order) {
    auto const k = std::uint64_t{key(i)};
    sorted       = sorted && k >= largest;
    largest      = k > largest ? k : largest;
  }
  if (sorted) { return; }

  constexpr auto bits = 8U;
  auto const byte     = [&](std::uint32_t i, unsigned shift) {
    return static_cast<std::size_t>((std::uint64_t{key(i)} >> shift) & 0xFFU);
  };
  auto other = std::vector<std::uint32_t>(order.size());
  for (auto shift = 0U; shift < 64 && (largest >> shift) > 0; shift += bits) {
    auto next = std::array<std::size_t, (std::size_t{1} << bits) + 1>{};
    for (auto const i : order) { ++next[byte(i, shift) + 1]; }
    for (std::size_t b = 1; b < next.size(); ++b) { next[b] += next[b - 1]; }
    for (auto const i : order) { other[next[byte(i, shift)]++] = i; }
    order.swap(other);
  }
}

}  // namespace gradlane::detail

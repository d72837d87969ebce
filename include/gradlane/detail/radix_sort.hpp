// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>    // for array
#include <cstddef>  // for size_t
#include <cstdint>  // for uint32_t, uint64_t
#include <vector>   // for vector

namespace gradlane::detail {

/// Sorts indices by `key(index)`, smallest first; equals keep their order.
///
/// One pass for every nine bits of the largest key, the least significant first, and none where the
/// order is right already: time is linear in the number of indices.
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

  constexpr auto bits   = 9U;  // BERT's lengths take one pass
  constexpr auto digits = std::size_t{1} << bits;
  auto const digit      = [&](std::uint32_t i, unsigned shift) {
    return static_cast<std::size_t>((std::uint64_t{key(i)} >> shift) % digits);
  };
  auto other = std::vector<std::uint32_t>(order.size());
  for (auto shift = 0U; shift < 64 && (largest >> shift) > 0; shift += bits) {
    auto next = std::array<std::uint32_t, digits>{};
    for (auto const i : order) { ++next[digit(i, shift)]; }
    auto begin = std::uint32_t{0};
    for (auto& place : next) {
      auto const count = place;
      place            = begin;
      begin += count;
    }
    for (auto const i : order) { other[next[digit(i, shift)]++] = i; }
    order.swap(other);
  }
}

}  // namespace gradlane::detail

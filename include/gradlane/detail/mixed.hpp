// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>  // for uint64_t

namespace gradlane::detail {

/// Mixes 64 bits so that each of them changes each other with probability one half: splitmix64.
/// Source: Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014.
[[nodiscard]] constexpr std::uint64_t mixed(std::uint64_t x) noexcept {
  x += 0x9E3779B97F4A7C15U;
  x = (x ^ (x >> 30U)) * 0xBF58476D1CE4E5B9U;
  x = (x ^ (x >> 27U)) * 0x94D049BB133111EBU;
  return x ^ (x >> 31U);
}

}  // namespace gradlane::detail

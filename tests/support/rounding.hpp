// SPDX-License-Identifier: Apache-2.0
#pragma once

// Roundings by search in 113-bit arithmetic, to judge the library's by; and values worth rounding.

#include <gradlane/types.hpp>  // for bf16, fp16, floating_element

#include <array>        // for array
#include <bit>          // for bit_cast
#include <cmath>        // for isnan
#include <cstddef>      // for size_t
#include <cstdint>      // for uint16_t, uint64_t
#include <random>       // for mt19937_64
#include <type_traits>  // for is_same_v
#include <vector>       // for vector

namespace gradlane::test {

__extension__ using quad = __float128;  // holds the product of a double and a float exactly

template <class T>
using bits_of =
    std::conditional_t<sizeof(T) == 2,
                       std::uint16_t,
                       std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>>;

template <floating_element T>
[[nodiscard]] double to_double(T value) {
  if constexpr (sizeof(T) == 2) {
    return static_cast<double>(static_cast<float>(value));
  } else {
    return static_cast<double>(value);
  }
}

template <floating_element T>
inline constexpr auto infinity_bits = static_cast<bits_of<T>>(0);
template <>
inline constexpr auto infinity_bits<bf16> = std::uint16_t{0x7F80};
template <>
inline constexpr auto infinity_bits<fp16> = std::uint16_t{0x7C00};

/// |value| of the 16-bit pattern; of the infinity, the power of two that would come next.
template <floating_element T>
[[nodiscard]] double magnitude_of(std::uint16_t pattern) {
  if (pattern == infinity_bits<T>) {
    auto const last = to_double(std::bit_cast<T>(static_cast<std::uint16_t>(pattern - 1)));
    auto const step = last - to_double(std::bit_cast<T>(static_cast<std::uint16_t>(pattern - 2)));
    return last + step;
  }
  return to_double(std::bit_cast<T>(pattern));
}

/// `exact` rounded to nearest, ties to even.
template <floating_element T>
[[nodiscard]] T nearest(quad exact) {
  if constexpr (sizeof(T) > 2) {
    return static_cast<T>(exact);  // the compiler's own, once
  } else {
    if (exact != exact) { return std::bit_cast<T>(std::uint16_t{0x7FFF}); }
    auto const negative  = std::signbit(static_cast<double>(exact));
    auto const magnitude = negative ? -exact : exact;
    auto low             = std::uint16_t{0};  // the last pattern that is not above `magnitude`
    auto high            = static_cast<std::uint16_t>(infinity_bits<T> + 1);
    while (high - low > 1) {
      auto const middle = static_cast<std::uint16_t>((low + high) / 2);
      (static_cast<quad>(magnitude_of<T>(middle)) <= magnitude ? low : high) = middle;
    }
    if (low < infinity_bits<T>) {
      auto const up    = static_cast<std::uint16_t>(low + 1);
      auto const below = magnitude - static_cast<quad>(magnitude_of<T>(low));
      auto const above = static_cast<quad>(magnitude_of<T>(up)) - magnitude;
      if (above < below || (above == below && low % 2 == 1)) { low = up; }
    }
    return std::bit_cast<T>(static_cast<std::uint16_t>(low | (negative ? 0x8000U : 0U)));
  }
}

/// Same bits, or both NaN.
template <floating_element T>
[[nodiscard]] bool same(T a, T b) {
  return std::bit_cast<bits_of<T>>(a) == std::bit_cast<bits_of<T>>(b) ||
         (std::isnan(to_double(a)) && std::isnan(to_double(b)));
}

/// Finite values over the whole range of T: random patterns, subnormals and zeros among them.
template <floating_element T>
[[nodiscard]] std::vector<T> finite_values(std::size_t count, std::uint64_t seed) {
  auto random = std::mt19937_64{seed};
  auto values = std::vector<T>(count);
  for (auto& value : values) {
    do {
      value = std::bit_cast<T>(static_cast<bits_of<T>>(random() >> (64 - 8 * sizeof(T))));
    } while (!std::isfinite(to_double(value)));
  }
  return values;
}

/// Small integers, whose sums and squares are exact.
template <floating_element T>
[[nodiscard]] std::vector<T> integers(std::size_t count, std::uint64_t seed) {
  auto random = std::mt19937_64{seed};
  auto values = std::vector<T>(count);
  for (auto& value : values) {
    value = T{static_cast<float>(static_cast<std::int64_t>(random() % 33) - 16)};
  }
  return values;
}

}  // namespace gradlane::test

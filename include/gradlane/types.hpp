// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>          // for bit_cast
#include <concepts>     // for same_as
#include <cstddef>      // for size_t
#include <cstdint>      // for uint8_t, uint16_t, uint32_t
#include <string_view>  // for string_view

namespace gradlane {

namespace detail {

/// `value` rounded to float so that a second rounding, to 16 bits, gives the bits that one
/// rounding of `value` would: towards zero, with the last bit set where that was inexact.
[[nodiscard]] constexpr float round_to_odd(double value) noexcept {
  auto const nearest = static_cast<float>(value);
  if (static_cast<double>(nearest) == value || value != value) { return nearest; }
  auto bits = std::bit_cast<std::uint32_t>(nearest);
  auto const away =
      value < 0 ? static_cast<double>(nearest) < value : static_cast<double>(nearest) > value;
  if (away) { --bits; }
  return std::bit_cast<float>(bits | 1U);
}

[[nodiscard]] constexpr std::uint16_t bf16_bits(float value) noexcept {
  auto const bits = std::bit_cast<std::uint32_t>(value);
  if (value != value) { return static_cast<std::uint16_t>((bits >> 16U) | 0x40U); }  // stays NaN
  return static_cast<std::uint16_t>((bits + 0x7FFFU + ((bits >> 16U) & 1U)) >> 16U);
}

[[nodiscard]] constexpr std::uint16_t fp16_bits(float value) noexcept {
  auto const bits      = std::bit_cast<std::uint32_t>(value);
  auto const sign      = (bits >> 16U) & 0x8000U;
  auto const magnitude = bits & 0x7FFFFFFFU;
  auto result          = std::uint32_t{0};
  if (magnitude > 0x7F800000U) {  // NaN: quiet, upper payload kept
    result = 0x7E00U | ((magnitude >> 13U) & 0x3FFU);
  } else if (magnitude >= 0x477FF000U) {  // 65520 and above round to infinity
    result = 0x7C00U;
  } else if (magnitude < 0x38800000U) {  // below 2^-14: 0.5's last place is fp16's smallest step
    result = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5F) - 0x3F000000U;
  } else {
    result = (magnitude - 0x38000000U + 0xFFFU + ((magnitude >> 13U) & 1U)) >> 13U;
  }
  return static_cast<std::uint16_t>(sign | result);
}

[[nodiscard]] constexpr float fp16_value(std::uint16_t bits) noexcept {
  auto const sign      = (std::uint32_t{bits} & 0x8000U) << 16U;
  auto const magnitude = std::uint32_t{bits} & 0x7FFFU;
  if (magnitude >= 0x7C00U) {
    return std::bit_cast<float>(sign | 0x7F800000U | ((magnitude & 0x3FFU) << 13U));
  }
  if (magnitude < 0x0400U) {  // zero or subnormal: a multiple of 2^-24
    auto const value = static_cast<float>(magnitude) * 0x1p-24F;
    return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(value));
  }
  return std::bit_cast<float>(sign | ((magnitude << 13U) + 0x38000000U));
}

}  // namespace detail

/// bfloat16: a storage type of 16 bits with the layout of CUDA's __nv_bfloat16.
///
/// Conversions to it round to nearest, ties to even, once, from float and from double alike; NaN
/// stays NaN. Arithmetic is done in float.
struct bf16 {
  std::uint16_t bits;

  bf16() = default;
  explicit constexpr bf16(float value) noexcept : bits{detail::bf16_bits(value)} {}
  explicit constexpr bf16(double value) noexcept : bf16{detail::round_to_odd(value)} {}
  explicit constexpr operator float() const noexcept {
    return std::bit_cast<float>(std::uint32_t{bits} << 16U);
  }
};

/// IEEE 754 binary16: a storage type of 16 bits with the layout of CUDA's __half.
///
/// Conversions as for bf16; subnormals are kept, 65520 and above become infinity.
struct fp16 {
  std::uint16_t bits;

  fp16() = default;
  explicit constexpr fp16(float value) noexcept : bits{detail::fp16_bits(value)} {}
  explicit constexpr fp16(double value) noexcept : fp16{detail::round_to_odd(value)} {}
  explicit constexpr operator float() const noexcept { return detail::fp16_value(bits); }
};

/// The element types that cross the library. Gradients are of the first four; the integers serve
/// the exchange of lengths, ids and tokens.
enum class dtype : std::uint8_t { fp32, fp64, bf16, fp16, uint8, int32, uint32, int64, uint64 };

[[nodiscard]] constexpr std::size_t size_of(dtype type) noexcept {
  switch (type) {
    case dtype::uint8:
      return 1;
    case dtype::bf16:
    case dtype::fp16:
      return 2;
    case dtype::fp32:
    case dtype::int32:
    case dtype::uint32:
      return 4;
    case dtype::fp64:
    case dtype::int64:
    case dtype::uint64:
      return 8;
  }
  return 0;
}

[[nodiscard]] constexpr bool is_floating(dtype type) noexcept {
  return type == dtype::fp32 || type == dtype::fp64 || type == dtype::bf16 || type == dtype::fp16;
}

[[nodiscard]] constexpr std::string_view name_of(dtype type) noexcept {
  switch (type) {
    case dtype::fp32:
      return "fp32";
    case dtype::fp64:
      return "fp64";
    case dtype::bf16:
      return "bf16";
    case dtype::fp16:
      return "fp16";
    case dtype::uint8:
      return "uint8";
    case dtype::int32:
      return "int32";
    case dtype::uint32:
      return "uint32";
    case dtype::int64:
      return "int64";
    case dtype::uint64:
      return "uint64";
  }
  return "unknown";
}

namespace detail {

template <class T>
struct dtype_traits;  // no dtype: gradlane does not move this type
template <>
struct dtype_traits<float> {
  static constexpr auto value = dtype::fp32;
};
template <>
struct dtype_traits<double> {
  static constexpr auto value = dtype::fp64;
};
template <>
struct dtype_traits<bf16> {
  static constexpr auto value = dtype::bf16;
};
template <>
struct dtype_traits<fp16> {
  static constexpr auto value = dtype::fp16;
};
template <>
struct dtype_traits<std::uint8_t> {
  static constexpr auto value = dtype::uint8;
};
template <>
struct dtype_traits<std::int32_t> {
  static constexpr auto value = dtype::int32;
};
template <>
struct dtype_traits<std::uint32_t> {
  static constexpr auto value = dtype::uint32;
};
template <>
struct dtype_traits<std::int64_t> {
  static constexpr auto value = dtype::int64;
};
template <>
struct dtype_traits<std::uint64_t> {
  static constexpr auto value = dtype::uint64;
};

}  // namespace detail

/// A type that has a dtype.
template <class T>
concept element = requires {
  { detail::dtype_traits<T>::value } -> std::same_as<dtype const&>;
};

/// A type that gradients may have.
template <class T>
concept floating_element = element<T> && is_floating(detail::dtype_traits<T>::value);

template <element T>
inline constexpr dtype dtype_of = detail::dtype_traits<T>::value;

/// The element-wise reductions of the collectives. `average` is the sum divided by the ranks.
enum class reduction : std::uint8_t { sum, average, max };

[[nodiscard]] constexpr std::string_view name_of(reduction op) noexcept {
  switch (op) {
    case reduction::sum:
      return "sum";
    case reduction::average:
      return "average";
    case reduction::max:
      return "max";
  }
  return "unknown";
}

/// A hint to devices whose streams have priorities.
enum class stream_priority : std::uint8_t { normal, high };

}  // namespace gradlane

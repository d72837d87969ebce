// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/types.hpp>  // for bf16, fp16

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <concepts>     // for same_as
#include <cstdint>      // for uint16_t, uint32_t, uint64_t
#include <type_traits>  // for conditional_t, is_same_v

/// Conversions of single elements inside kernels; each rounds once, to nearest, ties to even.
namespace gradlane::cuda::detail {

/// The type in which elements of T are worked on.
template <class T>
using wide = std::conditional_t<std::is_same_v<T, double>, double, float>;

__device__ inline float widen(float x) { return x; }
__device__ inline double widen(double x) { return x; }
__device__ inline float widen(bf16 x) { return __bfloat162float(__ushort_as_bfloat16(x.bits)); }
__device__ inline float widen(fp16 x) { return __half2float(__ushort_as_half(x.bits)); }

[[nodiscard]] __device__ inline bool is_finite(float x) {
  return (__float_as_uint(x) & 0x7F800000U) != 0x7F800000U;
}
[[nodiscard]] __device__ inline bool is_finite(double x) {
  return (__double2hiint(x) & 0x7FF00000) != 0x7FF00000;
}

/// Of the two neighbours of an inexact result, the odd one: a later rounding to fewer bits then
/// gives what one rounding of the exact result would.
[[nodiscard]] __device__ inline float odd_of(float down, float up) {
  return (__float_as_uint(down) & 1U) != 0 ? down : up;
}
[[nodiscard]] __device__ inline double odd_of(double down, double up) {
  return (__double_as_longlong(down) & 1) != 0 ? down : up;
}

[[nodiscard]] __device__ inline float product_to_odd(float x, float c) {
  return odd_of(__fmul_rd(x, c), __fmul_ru(x, c));
}
[[nodiscard]] __device__ inline double product_to_odd(double x, float c) {
  auto const factor = static_cast<double>(c);
  return odd_of(__dmul_rd(x, factor), __dmul_ru(x, factor));
}

template <class T>
[[nodiscard]] __device__ T rounded(float x) {
  if constexpr (std::is_same_v<T, bf16>) {
    T result;
    result.bits = __bfloat16_as_ushort(__float2bfloat16_rn(x));
    return result;
  } else if constexpr (std::is_same_v<T, fp16>) {
    T result;
    result.bits = __half_as_ushort(__float2half_rn(x));
    return result;
  } else {
    return static_cast<T>(x);
  }
}
template <class T>
[[nodiscard]] __device__ T rounded(double x) {
  if constexpr (sizeof(T) == 2) {
    return rounded<T>(odd_of(__double2float_rd(x), __double2float_ru(x)));
  } else if constexpr (std::is_same_v<T, float>) {
    return __double2float_rn(x);
  } else {
    return x;
  }
}

/// x · c, rounded once.
template <class T, class Wide>
[[nodiscard]] __device__ T scaled(Wide x, float c) {
  if constexpr (sizeof(T) == 2 || (sizeof(T) == 4 && sizeof(Wide) == 8)) {
    return rounded<T>(product_to_odd(x, c));
  } else if constexpr (std::is_same_v<T, double>) {
    return __dmul_rn(x, c);  // of two floats: exact
  } else {
    return __fmul_rn(x, c);
  }
}

}  // namespace gradlane::cuda::detail

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>  // for uint32_t

namespace bert::attention {

/// All that differs between the 16-bit types: how pairs are packed, and the tensor cores'
/// instruction. Rounding is to nearest; fp16 has Inf for what lies beyond its range.
template <class Element>
struct element_traits;

template <>
struct element_traits<__nv_bfloat16> {
  [[nodiscard]] __device__ static std::uint32_t pack(float low, float high) {
    auto const both = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<std::uint32_t const*>(&both);
  }
  [[nodiscard]] __device__ static float2 unpack(std::uint32_t pair) {
    return __bfloat1622float2(*reinterpret_cast<__nv_bfloat162 const*>(&pair));
  }
  __device__ static void multiply_add(float (&c)[4],
                                      std::uint32_t const (&a)[4],
                                      std::uint32_t b0,
                                      std::uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
};

template <>
struct element_traits<__half> {
  [[nodiscard]] __device__ static std::uint32_t pack(float low, float high) {
    auto const both = __floats2half2_rn(low, high);
    return *reinterpret_cast<std::uint32_t const*>(&both);
  }
  [[nodiscard]] __device__ static float2 unpack(std::uint32_t pair) {
    return __half22float2(*reinterpret_cast<__half2 const*>(&pair));
  }
  __device__ static void multiply_add(float (&c)[4],
                                      std::uint32_t const (&a)[4],
                                      std::uint32_t b0,
                                      std::uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
};

}  // namespace bert::attention

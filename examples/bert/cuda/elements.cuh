// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../attention/elements.cuh"  // for element_traits

#include <gradlane/types.hpp>  // for bf16, fp16

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace bert::cuda {

/// A type of 16 bits, whose values kernels take in pairs.
template <class T>
concept half_width = sizeof(T) == 2;

namespace detail {

template <class T>
struct cuda_type {
  using type = T;
};
template <>
struct cuda_type<gradlane::bf16> {
  using type = __nv_bfloat16;
};
template <>
struct cuda_type<gradlane::fp16> {
  using type = __half;
};

}  // namespace detail

/// The name that CUDA has for a type of elements.
template <class T>
using cuda_type = typename detail::cuda_type<T>::type;

/// How pairs of elements are packed.
template <half_width T>
using pairs_of = attention::element_traits<cuda_type<T>>;

}  // namespace bert::cuda

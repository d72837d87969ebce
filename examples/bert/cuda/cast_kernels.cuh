// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "quads.cuh"  // for load, store

#include <gradlane/types.hpp>  // for bf16

#include <cstddef>  // for size_t

namespace bert::cuda {

/// to = from, rounded; four elements a thread, both aligned to four.
template <unsigned Threads>
__global__ void __launch_bounds__(Threads)
    round_to_bf16(float const* from, gradlane::bf16* to, std::size_t size) {
  auto const first = 4 * (std::size_t{blockIdx.x} * Threads + threadIdx.x);
  if (first + 4 <= size) {
    store(load(from + first), to + first);
    return;
  }
  for (auto i = first; i < size; ++i) {
    auto const rounded = __float2bfloat16_rn(from[i]);
    to[i].bits         = __bfloat16_as_ushort(rounded);
  }
}

}  // namespace bert::cuda

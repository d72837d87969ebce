// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "quads.cuh"  // for load_vector, store_vector

#include <cstddef>  // for size_t

namespace bert::cuda {

/// to = from, rounded; four elements a thread.
template <unsigned Threads, class Value>
__global__ void __launch_bounds__(Threads)
    round_elements(float const* from, Value* to, std::size_t size) {
  auto const first = 4 * Threads * std::size_t{blockIdx.x};
  auto const here  = static_cast<int>(min(size - first, std::size_t{4 * Threads}));
  auto const index = static_cast<int>(4 * threadIdx.x);
  if (index < here) {
    store_vector(load_vector(from + first, index, here), to + first, index, here);
  }
}

}  // namespace bert::cuda

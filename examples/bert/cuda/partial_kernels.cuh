// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>  // for size_t

// Sums over rows without atomics: each block of a kernel leaves its own sums of columns in scratch
// memory, and add_partials adds those up in the blocks' order.
namespace bert::cuda {

/// Where a kernel's blocks leave their sums: (blocks, targets, stride).
struct partial_sums {
  float* data;
  int stride;  // columns, rounded up to whole sectors
  int targets;

  [[nodiscard]] __device__ float* at(unsigned block, int target) const {
    return data + (static_cast<std::size_t>(block) * static_cast<std::size_t>(targets) +
                   static_cast<std::size_t>(target)) *
                      static_cast<std::size_t>(stride);
  }
};

/// Up to three vectors of gradients.
struct sum_targets {
  float* first;
  float* second;
  float* third;

  // not an array, which the compiler would copy to local memory
  [[nodiscard]] __device__ float* operator[](int target) const {
    return target == 0 ? first : target == 1 ? second : third;
  }
};

/// Column blockIdx.x * Columns + threadIdx.x of target blockIdx.y; threads of one slice add up
/// every Slices-th block.
template <unsigned Columns, unsigned Slices>
__global__ void __launch_bounds__(Columns* Slices)
    add_partials(partial_sums from, unsigned blocks, int columns, sum_targets to, bool accumulate) {
  __shared__ float sums[Slices][Columns];
  auto const target = static_cast<int>(blockIdx.y);
  auto const column = static_cast<int>(blockIdx.x * Columns + threadIdx.x);
  auto const inside = column < columns;
  auto sum          = 0.0F;
  if (inside) {
    for (auto block = threadIdx.y; block < blocks; block += Slices) {
      sum += from.at(block, target)[column];
    }
  }
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || !inside) { return; }
  for (auto slice = 1U; slice < Slices; ++slice) { sum += sums[slice][threadIdx.x]; }
  auto& total = to[target][column];
  total       = accumulate ? total + sum : sum;
}

}  // namespace bert::cuda

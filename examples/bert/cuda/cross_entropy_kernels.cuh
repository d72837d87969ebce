// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../entropy.hpp"      // for entropy
#include "../matrix_view.hpp"  // for matrix_view
#include "../step_value.hpp"   // for step_value
#include "quads.cuh"           // for all_lanes, as_float, load_vector, quad, store_vector

#include <cmath>    // for INFINITY
#include <cstddef>  // for size_t
#include <cstdint>  // for int32_t, uint64_t

// Softmax and cross-entropy. One block a row of logits (n, V), which it reads once.
namespace bert::cuda {

/// log Σ exp of some numbers, as their largest and Σ exp(number - largest).
struct log_sum {
  float largest = -INFINITY;
  float sum     = 0;

  __device__ void add(quad const& values, int count) {
    auto top = largest;
    for (auto e = 0; e < 4; ++e) { top = e < count ? fmaxf(top, values.x[e]) : top; }
    if (top > largest) {
      sum *= expf(largest - top);
      largest = top;
    }
    for (auto e = 0; e < 4; ++e) { sum += e < count ? expf(values.x[e] - largest) : 0.0F; }
  }
  __device__ void add(log_sum const& other) {
    auto const top = fmaxf(largest, other.largest);
    if (top == -INFINITY) { return; }
    sum     = sum * expf(largest - top) + other.sum * expf(other.largest - top);
    largest = top;
  }
};

/// The log_sum of all threads of the block, in one fixed order, in every thread of its first warp.
template <unsigned Threads>
[[nodiscard]] __device__ log_sum add_up(log_sum own) {
  __shared__ log_sum of_warp[Threads / 32];
  auto const lane = threadIdx.x % 32;
  for (auto step = 16; step > 0; step /= 2) {
    own.add(log_sum{__shfl_xor_sync(all_lanes, own.largest, step),
                    __shfl_xor_sync(all_lanes, own.sum, step)});
  }
  if (lane == 0) { of_warp[threadIdx.x / 32] = own; }
  __syncthreads();
  auto total = log_sum{};
  for (auto warp = 0U; warp < Threads / 32; ++warp) { total.add(of_warp[warp]); }
  return total;
}

/// lse, and a row's loss and whether its label has the largest logit, (n) each.
template <unsigned Threads, class Value>
__global__ void __launch_bounds__(Threads) entropy_rows(matrix_view<Value const> logits,
                                                        std::int32_t const* labels,
                                                        float* lse,
                                                        float* loss,
                                                        float* correct) {
  auto const* const row = logits.row(blockIdx.x);
  auto const columns    = static_cast<int>(logits.cols);
  auto own              = log_sum{};
  for (auto column = static_cast<int>(4 * threadIdx.x); column < columns;
       column += static_cast<int>(4 * Threads)) {
    own.add(load_vector(row, column, columns), min(4, columns - column));
  }
  auto const total = add_up<Threads>(own);
  if (threadIdx.x != 0) { return; }
  auto const log_total = total.largest + logf(total.sum);
  auto const label     = labels[blockIdx.x];
  auto const hit       = label < 0 ? log_total : as_float(row[label]);
  lse[blockIdx.x]      = log_total;
  loss[blockIdx.x]     = log_total - hit;
  correct[blockIdx.x]  = label >= 0 && hit == total.largest ? 1.0F : 0.0F;
}

/// One block that adds up what entropy_rows left, in fp64.
template <unsigned Threads>
__global__ void __launch_bounds__(Threads)
    add_entropies(float const* loss, float const* correct, int rows, entropy* target) {
  __shared__ double losses[Threads];
  __shared__ std::uint64_t hits[Threads];
  auto sum   = 0.0;
  auto count = std::uint64_t{0};
  for (auto row = static_cast<int>(threadIdx.x); row < rows; row += static_cast<int>(Threads)) {
    sum += static_cast<double>(loss[row]);
    count += correct[row] > 0 ? 1U : 0U;
  }
  losses[threadIdx.x] = sum;
  hits[threadIdx.x]   = count;
  for (auto half = Threads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) {
      losses[threadIdx.x] += losses[threadIdx.x + half];
      hits[threadIdx.x] += hits[threadIdx.x + half];
    }
  }
  if (threadIdx.x == 0) { *target = {losses[0], hits[0]}; }
}

/// Logits become scale · (softmax - label's one).
template <unsigned Threads, class Value>
__global__ void __launch_bounds__(Threads) differentiate_entropy(matrix_view<Value> logits,
                                                                 std::int32_t const* labels,
                                                                 float const* lse,
                                                                 step_value<double> scale_of_step) {
  auto* const row    = logits.row(blockIdx.x);
  auto const columns = static_cast<int>(logits.cols);
  auto const shift   = lse[blockIdx.x];
  auto const label   = labels[blockIdx.x];
  auto const scale   = label < 0 ? 0.0F : static_cast<float>(scale_of_step.read());
  for (auto column = static_cast<int>(4 * threadIdx.x); column < columns;
       column += static_cast<int>(4 * Threads)) {
    auto value = load_vector(row, column, columns);
    for (auto e = 0; e < 4; ++e) {
      auto const hit = column + e == label ? 1.0F : 0.0F;
      value.x[e]     = scale * (expf(value.x[e] - shift) - hit);
    }
    store_vector(value, row, column, columns);
  }
}

}  // namespace bert::cuda

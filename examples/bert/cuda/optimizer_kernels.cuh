// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../step_value.hpp"  // for step_value
#include "quads.cuh"          // for all_lanes, load_vector, quad, store_vector

#include <gradlane/clip/report.hpp>  // for step_status

#include <cstddef>  // for size_t
#include <cstdint>  // for uint32_t, uint64_t

// AdamW and LAMB over all tensors at once: a block takes up to some thousand elements of one
// tensor. All numbers that the host does not know are read on the device: a step that is to be
// skipped ends each of these kernels at once.
namespace bert::cuda {

/// What all elements share.
struct update_numbers {
  float beta1;
  float rest1;  // 1 - beta1, which fp32 numbers near 1 would not give exactly
  float beta2;
  float rest2;
  float epsilon;
  bool trust_without_decay;
};

/// What one step is done with.
struct step_factors {
  std::uint64_t steps;  // that were not skipped
  float gradient;       // step_status::coefficient
  float first;          // m̂ = first * m
  float root;           // √v̂ = root * √v
  float learning_rate;
  bool skip;
};

struct tensor_entry {
  float const* gradient;  // (size)
  float decay;
  std::uint32_t first_block;
  std::uint32_t last_block;  // one past it
};

/// What a block works on.
struct block_entry {
  std::size_t offset;  // in the flat vector
  std::size_t place;   // in the moments
  std::size_t begin;   // in the tensor
  std::uint32_t tensor;
  std::int32_t size;
};

/// Sums of squares.
struct block_norms {
  double parameters;
  double updates;
};

/// Flat vectors.
struct update_vectors {
  float* parameters;  // (total), laid out as the parameter_list says
  float* first;
  float* second;
};

[[nodiscard]] __device__ inline double power(double base, std::uint64_t exponent) {
  return pow(base, static_cast<double>(exponent));
}

/// One thread: counts the step, unless it is skipped.
template <unsigned Threads>
__global__ void __launch_bounds__(Threads) begin_update(gradlane::step_status const* status,
                                                        step_value<double> learning_rate,
                                                        double beta1,
                                                        double beta2,
                                                        bool bias_correction,
                                                        step_factors* factors) {
  auto const now = status == nullptr ? gradlane::step_status{} : *status;
  factors->skip  = now.skip != 0;
  if (now.skip != 0) { return; }
  auto const steps       = factors->steps + 1;
  factors->learning_rate = static_cast<float>(learning_rate.read());
  factors->steps         = steps;
  factors->gradient      = now.coefficient;
  factors->first = bias_correction ? static_cast<float>(1 / (1 - power(beta1, steps))) : 1.0F;
  factors->root  = bias_correction ? static_cast<float>(1 / sqrt(1 - power(beta2, steps))) : 1.0F;
}

/// A block's part of all vectors.
struct update_part {
  float const* gradient;
  float* parameters;
  float* first;
  float* second;
  int size;
  float decay;

  __device__ update_part(update_vectors const& all,
                         tensor_entry const& tensor,
                         block_entry const& block)
      : gradient{tensor.gradient + block.begin},
        parameters{all.parameters + block.offset},
        first{all.first + block.place},
        second{all.second + block.place},
        size{block.size},
        decay{tensor.decay} {}
};

/// Four elements' moments after a step.
struct moments {
  quad first;
  quad second;

  __device__ moments(update_part const& part, int at)
      : first{load_vector(part.first, at, part.size)},
        second{load_vector(part.second, at, part.size)} {}

  __device__ void update(update_numbers const& n, float coefficient, quad const& gradient) {
    for (auto e = 0; e < 4; ++e) {
      auto const g = coefficient * gradient.x[e];
      first.x[e]   = n.beta1 * first.x[e] + n.rest1 * g;
      second.x[e]  = n.beta2 * second.x[e] + n.rest2 * g * g;
    }
  }
  __device__ void save(update_part const& part, int at) const {
    store_vector(first, part.first, at, part.size);
    store_vector(second, part.second, at, part.size);
  }
  /// m̂ / (√v̂ + ε) + λ p
  [[nodiscard]] __device__ quad direction(update_numbers const& n,
                                          step_factors const& f,
                                          float decay,
                                          quad const& p) const {
    auto result = quad{};
    for (auto e = 0; e < 4; ++e) {
      result.x[e] =
          f.first * first.x[e] / (f.root * sqrtf(second.x[e]) + n.epsilon) + decay * p.x[e];
    }
    return result;
  }
};

/// @param working  the part's copy in 16 bits, or null.
template <class Working>
__device__ void apply(
    update_part const& part, Working* working, int at, float rate, quad p, quad const& direction) {
  for (auto e = 0; e < 4; ++e) { p.x[e] -= rate * direction.x[e]; }
  store_vector(p, part.parameters, at, part.size);
  if (working != nullptr) { store_vector(p, working, at, part.size); }
}

template <unsigned Threads, class Working>
__global__ void __launch_bounds__(Threads) adamw(update_numbers n,
                                                 step_factors const* factors,
                                                 tensor_entry const* tensors,
                                                 block_entry const* blocks,
                                                 update_vectors all,
                                                 Working* working) {
  auto const f = *factors;
  if (f.skip) { return; }
  auto const block = blocks[blockIdx.x];
  auto const part  = update_part{all, tensors[block.tensor], block};
  auto* const copy = working == nullptr ? nullptr : working + block.offset;
  for (auto at = static_cast<int>(4 * threadIdx.x); at < part.size;
       at += static_cast<int>(4 * Threads)) {
    auto state   = moments{part, at};
    auto const p = load_vector(part.parameters, at, part.size);
    state.update(n, f.gradient, load_vector(part.gradient, at, part.size));
    state.save(part, at);
    apply(part, copy, at, f.learning_rate, p, state.direction(n, f, part.decay, p));
  }
}

/// The sum over the block, in one fixed order, in its first thread.
template <unsigned Threads>
[[nodiscard]] __device__ double block_sum(double own) {
  __shared__ double of_warp[Threads / 32];
  for (auto step = 16; step > 0; step /= 2) { own += __shfl_xor_sync(all_lanes, own, step); }
  __syncthreads();  // of_warp may still be read from the sum before
  if (threadIdx.x % 32 == 0) { of_warp[threadIdx.x / 32] = own; }
  __syncthreads();
  auto total = 0.0;
  for (auto const sum : of_warp) { total += sum; }
  return total;
}

/// LAMB, first: the moments, and each block's sums of squares of parameters and directions.
template <unsigned Threads>
__global__ void __launch_bounds__(Threads) lamb_moments(update_numbers n,
                                                        step_factors const* factors,
                                                        tensor_entry const* tensors,
                                                        block_entry const* blocks,
                                                        update_vectors all,
                                                        block_norms* norms) {
  auto const f = *factors;
  if (f.skip) { return; }
  auto const block = blocks[blockIdx.x];
  auto const part  = update_part{all, tensors[block.tensor], block};
  auto parameters  = 0.0F;
  auto updates     = 0.0F;
  for (auto at = static_cast<int>(4 * threadIdx.x); at < part.size;
       at += static_cast<int>(4 * Threads)) {
    auto state   = moments{part, at};
    auto const p = load_vector(part.parameters, at, part.size);
    state.update(n, f.gradient, load_vector(part.gradient, at, part.size));
    state.save(part, at);
    auto const u = state.direction(n, f, part.decay, p);
    for (auto e = 0; e < 4; ++e) {
      parameters += p.x[e] * p.x[e];  // 0 beyond the end, as u
      updates += u.x[e] * u.x[e];
    }
  }
  auto const of_parameters = block_sum<Threads>(static_cast<double>(parameters));
  auto const of_updates    = block_sum<Threads>(static_cast<double>(updates));
  if (threadIdx.x == 0) { norms[blockIdx.x] = {of_parameters, of_updates}; }
}

/// LAMB, second: the trust ratio of each tensor, one block for each.
template <unsigned Threads>
__global__ void __launch_bounds__(Threads) lamb_ratios(update_numbers n,
                                                       step_factors const* factors,
                                                       tensor_entry const* tensors,
                                                       block_norms const* norms,
                                                       float* ratios) {
  if (factors->skip) { return; }
  auto const tensor = tensors[blockIdx.x];
  auto own          = block_norms{};
  for (auto block = tensor.first_block + threadIdx.x; block < tensor.last_block; block += Threads) {
    own.parameters += norms[block].parameters;
    own.updates += norms[block].updates;
  }
  auto const parameters = block_sum<Threads>(own.parameters);
  auto const updates    = block_sum<Threads>(own.updates);
  if (threadIdx.x != 0) { return; }
  auto const trusted = (n.trust_without_decay || tensor.decay > 0) && parameters > 0 && updates > 0;
  ratios[blockIdx.x] = trusted ? static_cast<float>(sqrt(parameters / updates)) : 1.0F;
}

/// LAMB, third.
template <unsigned Threads, class Working>
__global__ void __launch_bounds__(Threads) lamb_apply(update_numbers n,
                                                      step_factors const* factors,
                                                      tensor_entry const* tensors,
                                                      block_entry const* blocks,
                                                      update_vectors all,
                                                      float const* ratios,
                                                      Working* working) {
  auto const f = *factors;
  if (f.skip) { return; }
  auto const block = blocks[blockIdx.x];
  auto const part  = update_part{all, tensors[block.tensor], block};
  auto* const copy = working == nullptr ? nullptr : working + block.offset;
  auto const rate  = f.learning_rate * ratios[block.tensor];
  for (auto at = static_cast<int>(4 * threadIdx.x); at < part.size;
       at += static_cast<int>(4 * Threads)) {
    auto const state = moments{part, at};
    auto const p     = load_vector(part.parameters, at, part.size);
    apply(part, copy, at, rate, p, state.direction(n, f, part.decay, p));
  }
}

}  // namespace bert::cuda

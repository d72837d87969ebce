// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "block_work.cuh"  // for block_work, kernel_arguments
#include "dropout.hpp"     // for attention_factor

#include <cmath>    // for INFINITY
#include <cstdint>  // for uint32_t

/// The three kernels in fp32 for any GPU: to be checked against and to be read first, as they do
/// the same as those in tensor_core_kernels.cuh and hide nothing in register layouts.
///
/// A block has 32 rows of one side (queries; keys for dk and dv) and meets all rows of the other
/// side, 32 at a time. A warp has 4 of the block's rows; its lanes stand for rows of the other side
/// while scores are made, and for two columns of 64 each while rows are summed up.
namespace bert::attention::cuda_core {

using detail::block_work;
using detail::head_rows;
using detail::head_size;
using detail::kernel_arguments;
using detail::lane_id;
using detail::log2_e;
using detail::score_scale;
using detail::warp_id;

inline constexpr int warps         = 8;
inline constexpr int threads       = warps * 32;
inline constexpr int warp_rows     = 4;
inline constexpr int block_rows    = warps * warp_rows;
inline constexpr int streamed      = 32;  // rows a round: one a lane
inline constexpr int blocks_per_sm = 2;
inline constexpr float scale_log2  = score_scale * log2_e;

/// Four columns more than used: eight lanes that read 16 bytes of eight rows meet different banks.
struct shared_tile {
  alignas(16) float values[32][head_size + 4];

  [[nodiscard]] __device__ float4 four(int row, int column) const {
    return *reinterpret_cast<float4 const*>(&values[row][column]);
  }
  [[nodiscard]] __device__ float2 two(int row, int column) const {
    return *reinterpret_cast<float2 const*>(&values[row][column]);
  }
};

/// Weights of the rows of a round, for each row of the block. A warp uses only its own rows.
struct shared_weights {
  alignas(16) float values[block_rows][streamed];
};

/// Rows first … first + 31; those that do not exist become zeros.
__device__ inline void copy_rows(shared_tile& tile, head_rows<float const> from, int first) {
  for (auto i = static_cast<int>(threadIdx.x); i < 32 * head_size / 4; i += threads) {
    auto const row    = i / (head_size / 4);
    auto const column = i % (head_size / 4) * 4;
    auto const exists = first + row < from.count;
    *reinterpret_cast<float4*>(&tile.values[row][column]) =
        exists ? *reinterpret_cast<float4 const*>(from.row(first + row) + column)
               : float4{0, 0, 0, 0};
  }
}

/// result[r] = row `own + r` of x · row `lane` of y
__device__ inline void multiply_transposed(float (&result)[warp_rows],
                                           shared_tile const& x,
                                           int own,
                                           shared_tile const& y) {
#pragma unroll
  for (auto& value : result) { value = 0; }
#pragma unroll 1
  for (auto column = 0; column < head_size; column += 4) {
    auto const b = y.four(lane_id(), column);
#pragma unroll
    for (auto r = 0; r < warp_rows; ++r) {
      auto const a = x.four(own + r, column);
      result[r] += a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w;
    }
  }
}

/// sums[r] += Σ_j weights[own + r][j] * row j of x, columns 2 lane and one on
__device__ inline void multiply_add(float2 (&sums)[warp_rows],
                                    shared_weights const& weights,
                                    int own,
                                    shared_tile const& x) {
#pragma unroll 1
  for (auto j = 0; j < streamed; j += 4) {
    float2 b[4];
#pragma unroll
    for (auto i = 0; i < 4; ++i) { b[i] = x.two(j + i, 2 * lane_id()); }
#pragma unroll
    for (auto r = 0; r < warp_rows; ++r) {
      auto const a = *reinterpret_cast<float4 const*>(&weights.values[own + r][j]);
      sums[r].x += a.x * b[0].x + a.y * b[1].x + a.z * b[2].x + a.w * b[3].x;
      sums[r].y += a.x * b[0].y + a.y * b[1].y + a.z * b[2].y + a.w * b[3].y;
    }
  }
}

/// Rows first … first + 3 of `to` = factors times sums, as far as they exist.
__device__ inline void store_rows(head_rows<float> to,
                                  float2 const (&sums)[warp_rows],
                                  float const (&factors)[warp_rows],
                                  int first) {
#pragma unroll
  for (auto r = 0; r < warp_rows; ++r) {
    if (first + r < to.count) {
      auto const two = make_float2(sums[r].x * factors[r], sums[r].y * factors[r]);
      __stcg(reinterpret_cast<float2*>(to.row(first + r) + 2 * lane_id()), two);  // as one store
    }
  }
}

[[nodiscard]] __device__ inline float warp_sum(float x) {
  for (auto mask = 16; mask > 0; mask /= 2) { x += __shfl_xor_sync(~0U, x, mask); }
  return x;
}

[[nodiscard]] __device__ inline float warp_max(float x) {
  for (auto mask = 16; mask > 0; mask /= 2) { x = fmaxf(x, __shfl_xor_sync(~0U, x, mask)); }
  return x;
}

[[nodiscard]] __device__ inline bool kept(block_work const& work, int query, int key) {
  return attention_factor(work.drop,
                          work.sample,
                          static_cast<std::uint32_t>(query),
                          static_cast<std::uint32_t>(key)) != 0;
}

/// context (T, H, 64) and lse (H, T) from qkv.
template <class Value>
__global__ void __launch_bounds__(threads, blocks_per_sm)
    forward_kernel(kernel_arguments<Value> const a) {
  __shared__ shared_tile q;
  __shared__ shared_tile k;
  __shared__ shared_tile v;
  __shared__ shared_weights weights;

  auto const work = block_work{a, block_rows};
  if (work.empty()) { return; }
  auto const lane  = lane_id();
  auto const own   = warp_id() * warp_rows;  // this warp's first row in the block
  auto const query = work.first + own;       // and in the sequence

  float largest[warp_rows];  // score so far, times log2(e)
  float sum[warp_rows]  = {};
  float2 out[warp_rows] = {};
  for (auto& value : largest) { value = -INFINITY; }

  copy_rows(q, work.packed(a.qkv, 0, a.heads), work.first);
  for (auto first_key = 0; first_key < work.length; first_key += streamed) {
    __syncthreads();
    copy_rows(k, work.packed(a.qkv, 1, a.heads), first_key);
    copy_rows(v, work.packed(a.qkv, 2, a.heads), first_key);
    __syncthreads();
    if (query >= work.length) { continue; }  // nothing of this warp exists
    auto const key = first_key + lane;
    float scores[warp_rows];
    multiply_transposed(scores, q, own, k);
#pragma unroll
    for (auto r = 0; r < warp_rows; ++r) {
      auto const score  = key < work.length ? scores[r] * scale_log2 : -INFINITY;
      auto const now    = fmaxf(largest[r], warp_max(score));
      auto const shrink = exp2f(largest[r] - now);
      auto const p      = exp2f(score - now);
      largest[r]        = now;
      sum[r]            = sum[r] * shrink + p;
      out[r].x *= shrink;
      out[r].y *= shrink;
      weights.values[own + r][lane] = kept(work, query + r, key) ? p : 0;
    }
    __syncwarp();
    multiply_add(out, weights, own, v);
    __syncwarp();
  }
  float factors[warp_rows];
  auto lse = 0.0F;  // lane r: of row r
#pragma unroll
  for (auto r = 0; r < warp_rows; ++r) {
    auto const total = warp_sum(sum[r]);
    factors[r]       = work.drop.scale / total;
    if (lane == r) { lse = largest[r] / log2_e + logf(total); }
  }
  if (lane < warp_rows && query + lane < work.length) {
    a.lse_out[work.place(a.rows) + query + lane] = lse;
  }
  store_rows(work.plain(a.out, a.heads), out, factors, query);
}

/// dq of dqkv (T, 3, H, 64), and row_terms for dkv_kernel.
template <class Value>
__global__ void __launch_bounds__(threads, blocks_per_sm)
    dq_kernel(kernel_arguments<Value> const a) {
  __shared__ shared_tile q;
  __shared__ shared_tile dcontext;
  __shared__ shared_tile k;
  __shared__ shared_tile v;
  __shared__ shared_weights weights;

  auto const work = block_work{a, block_rows};
  if (work.empty()) { return; }
  auto const lane    = lane_id();
  auto const own     = warp_id() * warp_rows;
  auto const query   = work.first + own;
  auto const context = work.plain(a.context, a.heads);

  copy_rows(q, work.packed(a.qkv, 0, a.heads), work.first);
  copy_rows(dcontext, work.plain(a.dcontext, a.heads), work.first);
  __syncthreads();
  float lse2[warp_rows]  = {};
  float delta[warp_rows] = {};
  float2 dq[warp_rows]   = {};
  auto terms             = detail::row_terms{};  // lane r: of row r
#pragma unroll
  for (auto r = 0; r < warp_rows; ++r) {
    if (query + r < work.length) {
      auto const x = *reinterpret_cast<float2 const*>(context.row(query + r) + 2 * lane);
      auto const y = dcontext.two(own + r, 2 * lane);
      lse2[r]      = a.lse[work.place(a.rows) + query + r] * log2_e;
      delta[r]     = warp_sum(x.x * y.x + x.y * y.y) / work.drop.scale;
      if (lane == r) { terms = {lse2[r], delta[r]}; }
    }
  }
  if (lane < warp_rows && query + lane < work.length) {
    a.terms[work.place(a.rows) + query + lane] = terms;
  }
  for (auto first_key = 0; first_key < work.length; first_key += streamed) {
    __syncthreads();
    copy_rows(k, work.packed(a.qkv, 1, a.heads), first_key);
    copy_rows(v, work.packed(a.qkv, 2, a.heads), first_key);
    __syncthreads();
    if (query >= work.length) { continue; }  // nothing of this warp exists
    auto const key = first_key + lane;
    float scores[warp_rows];
    float dp[warp_rows];
    multiply_transposed(scores, q, own, k);
    multiply_transposed(dp, dcontext, own, v);
#pragma unroll
    for (auto r = 0; r < warp_rows; ++r) {
      auto const p = key < work.length ? exp2f(scores[r] * scale_log2 - lse2[r]) : 0;
      weights.values[own + r][lane] = p * ((kept(work, query + r, key) ? dp[r] : 0) - delta[r]);
    }
    __syncwarp();
    multiply_add(dq, weights, own, k);
    __syncwarp();
  }
  float factors[warp_rows];
  for (auto& factor : factors) { factor = score_scale * work.drop.scale; }
  store_rows(work.packed(a.out, 0, a.heads), dq, factors, query);
}

/// dk and dv of dqkv (T, 3, H, 64).
template <class Value>
__global__ void __launch_bounds__(threads, blocks_per_sm)
    dkv_kernel(kernel_arguments<Value> const a) {
  __shared__ shared_tile k;
  __shared__ shared_tile v;
  __shared__ shared_tile q;
  __shared__ shared_tile dcontext;
  __shared__ shared_weights p_weights;
  __shared__ shared_weights ds_weights;

  auto const work = block_work{a, block_rows};
  if (work.empty()) { return; }
  auto const lane = lane_id();
  auto const own  = warp_id() * warp_rows;
  auto const key  = work.first + own;

  copy_rows(k, work.packed(a.qkv, 1, a.heads), work.first);
  copy_rows(v, work.packed(a.qkv, 2, a.heads), work.first);
  float2 dk[warp_rows] = {};
  float2 dv[warp_rows] = {};
  for (auto first_query = 0; first_query < work.length; first_query += streamed) {
    __syncthreads();
    copy_rows(q, work.packed(a.qkv, 0, a.heads), first_query);
    copy_rows(dcontext, work.plain(a.dcontext, a.heads), first_query);
    __syncthreads();
    if (key >= work.length) { continue; }  // nothing of this warp exists
    auto const query  = first_query + lane;
    auto const exists = query < work.length;
    auto const terms =
        exists ? a.terms[work.place(a.rows) + query] : detail::row_terms{INFINITY, 0};
    float scores[warp_rows];
    float dp[warp_rows];
    multiply_transposed(scores, k, own, q);
    multiply_transposed(dp, v, own, dcontext);
#pragma unroll
    for (auto r = 0; r < warp_rows; ++r) {
      auto const p                     = exp2f(scores[r] * scale_log2 - terms.lse2);
      auto const keep                  = kept(work, query, key + r);
      p_weights.values[own + r][lane]  = keep ? p : 0;
      ds_weights.values[own + r][lane] = p * ((keep ? dp[r] : 0) - terms.delta);
    }
    __syncwarp();
    multiply_add(dv, p_weights, own, dcontext);
    multiply_add(dk, ds_weights, own, q);
    __syncwarp();
  }
  float dk_factors[warp_rows];
  float dv_factors[warp_rows];
  for (auto& factor : dk_factors) { factor = score_scale * work.drop.scale; }
  for (auto& factor : dv_factors) { factor = work.drop.scale; }
  store_rows(work.packed(a.out, 1, a.heads), dk, dk_factors, key);
  store_rows(work.packed(a.out, 2, a.heads), dv, dv_factors, key);
}

}  // namespace bert::attention::cuda_core

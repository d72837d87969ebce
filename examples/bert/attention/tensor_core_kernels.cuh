// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "block_work.cuh"   // for block_work, kernel_arguments
#include "dropout.hpp"      // for attention_bytes
#include "tensor_core.cuh"  // for shared_tile, sums, multiply_transposed

#include <cmath>    // for INFINITY
#include <cstdint>  // for uint32_t

/// The three kernels for a 16-bit Element: context and lse; dq and row_terms; dk and dv.
///
/// A block is 4 warps. Each warp keeps rows of one side (queries; keys for dk and dv) in registers
/// and meets all rows of the other side, 64 at a time, in shared memory. No atomics, sums in a
/// fixed order. A warp whose rows lie beyond the sequence's end only takes part in copies and
/// barriers.
namespace bert::attention::tensor_core {

using detail::block_work;
using detail::kernel_arguments;
using detail::log2_e;
using detail::row_terms;
using detail::score_scale;
using detail::warp_id;

inline constexpr int warps        = 4;
inline constexpr int threads      = warps * 32;
inline constexpr int streamed     = 64;  // rows a round
inline constexpr float scale_log2 = score_scale * log2_e;

inline constexpr int backward_rows = 64;  // of a block of dq_kernel and dkv_kernel

// Blocks that an SM must have room for: as many as there are registers for without spilling.
constexpr int forward_blocks_per_sm(int rows_per_block) { return rows_per_block == 128 ? 2 : 3; }
inline constexpr int dq_blocks_per_sm  = 3;
inline constexpr int dkv_blocks_per_sm = 2;

[[nodiscard]] __device__ inline float exp2_approximate(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

[[nodiscard]] __device__ inline int rounds(int length) {
  return (length + streamed - 1) / streamed;
}

// ---- forward ----------------------------------------------------------------------------------

/// Softmax of rows g and g + 8 that arrive 64 scores at a time.
///
/// Exponentials are relative to a score that follows the largest one only when that has grown by
/// more than `slack`: what was summed so far then needs rescaling in the first round, and rarely
/// later. Exponentials stay below 2^8, which 16 bits hold as well as 1. Rows decide each for
/// itself: their bits do not depend on which rows share a warp.
struct running_softmax {
  static constexpr auto slack = 8 / scale_log2;

  float reference[2] = {-INFINITY, -INFINITY};  // score
  float sum[2]       = {0, 0};                  // of exponentials in this lane's columns

  /// Scores become exponentials relative to the reference, to which `out` is rescaled.
  __device__ void fold(sums& scores, sums& out) {
    float now[2];
#pragma unroll
    for (auto i = 0; i < 2; ++i) {
      auto largest = reference[i];
#pragma unroll
      for (auto n = 0; n < 8; ++n) {
        largest = fmaxf(largest, fmaxf(scores.at[n][2 * i], scores.at[n][2 * i + 1]));
      }
      largest = row_max(largest);
      now[i]  = largest - reference[i] > slack ? largest : reference[i];
    }
    if (__any_sync(~0U, now[0] != reference[0] || now[1] != reference[1])) { follow(now, out); }
#pragma unroll
    for (auto i = 0; i < 2; ++i) {
      auto const subtract = reference[i] * scale_log2;
#pragma unroll
      for (auto n = 0; n < 8; ++n) {
#pragma unroll
        for (auto e = 2 * i; e < 2 * i + 2; ++e) {
          scores.at[n][e] = exp2_approximate(scores.at[n][e] * scale_log2 - subtract);
          sum[i] += scores.at[n][e];
        }
      }
    }
  }

 private:
  __device__ void follow(float const (&now)[2], sums& out) {
    float shrink[2];
#pragma unroll
    for (auto i = 0; i < 2; ++i) {
      shrink[i] =
          now[i] == reference[i] ? 1 : exp2_approximate((reference[i] - now[i]) * scale_log2);
      reference[i] = now[i];
      sum[i] *= shrink[i];
    }
    scale_rows(out, shrink[0], shrink[1]);
  }
};

/// Columns from `count` on get no weight.
__device__ inline void mask_columns(sums& scores, int count) {
#pragma unroll
  for (auto n = 0; n < 8; ++n) {
#pragma unroll
    for (auto e = 0; e < 4; ++e) {
      if (n * 8 + lane_id() % 4 * 2 + e % 2 >= count) { scores.at[n][e] = -INFINITY; }
    }
  }
}

/// Dropout's bytes for one step of 16 columns (keys) and the 32 rows (queries) around this lane's
/// first: word w is of row g + 8 w, byte 2 n + e of column 8 n + 2 t + e.
[[nodiscard]] __device__ inline philox_words step_bytes(block_work const& work,
                                                        int query,
                                                        int key) {
  return attention_bytes(work.drop,
                         work.sample,
                         static_cast<std::uint32_t>(query + lane_id() / 4),
                         static_cast<std::uint32_t>(key + lane_id() % 4 * 2));
}

/// Those of rows g and g + 8 of the first or the second 16 rows.
[[nodiscard]] __device__ inline uint2 of_row_block(philox_words const& bytes, int second) {
  return second == 0 ? uint2{bytes.x, bytes.y} : uint2{bytes.z, bytes.w};
}

/// Which of four bytes are `threshold` or more: bit 7 of each says so, the others mean nothing.
[[nodiscard]] __device__ inline std::uint32_t dropped(std::uint32_t bytes,
                                                      std::uint32_t threshold) {
  // A carry into bit 7 tells whether the low seven bits are large. Bit 7 of the byte must be set,
  // too, if the threshold is above 128; otherwise it is enough by itself.
  auto const enough = static_cast<std::uint32_t>((static_cast<int>(threshold) - 129) >> 31);
  auto const carry  = 256 - threshold - (enough & 128U);
  auto const large  = (bytes & 0x7F7F7F7FU) + carry * 0x01010101U;
  return (bytes & large) | (enough & (bytes | large));
}

/// Zeroes each of a pair of elements whose byte of `marks`, 2 n or 2 n + 1, has bit 7 set.
[[nodiscard]] __device__ inline std::uint32_t keep_pair(std::uint32_t pair,
                                                        std::uint32_t marks,
                                                        int n) {
  std::uint32_t mask;  // prmt's 8 + b is the sign of byte b, eight times
  asm("prmt.b32 %0, %1, 0, %2;" : "=r"(mask) : "r"(marks), "r"(n == 0 ? 0x9988U : 0xBBAAU));
  return pair & ~mask;
}

/// Zeroes what is dropped of a step's probabilities. They are packed already: half as many masks
/// as elements, a quarter as many comparisons.
template <class Element>
__device__ inline void drop(left_operand<Element>& p, uint2 const& bytes, std::uint32_t threshold) {
  auto const low  = dropped(bytes.x, threshold);
  auto const high = dropped(bytes.y, threshold);
#pragma unroll
  for (auto n = 0; n < 2; ++n) {
    p.part[2 * n]     = keep_pair(p.part[2 * n], low, n);
    p.part[2 * n + 1] = keep_pair(p.part[2 * n + 1], high, n);
  }
}

/// context (T, H, 64) and lse (H, T) from qkv.
/// @tparam RowsPerBlock  queries: 128 (a warp reads a key or value for 32 of them, half the traffic
/// of shared memory) or 64 (less waste on short sequences). The bits that result are the same.
template <class Element, int RowsPerBlock, bool Dropout>
__global__ void __launch_bounds__(threads, forward_blocks_per_sm(RowsPerBlock))
    forward_kernel(kernel_arguments<Element> const a) {
  constexpr auto M         = RowsPerBlock / (16 * warps);  // row blocks of a warp
  constexpr auto warp_rows = 16 * M;
  struct tiles_in_use {
    shared_tile<Element, RowsPerBlock> q;
    shared_tile<Element, streamed> k[2];
    shared_tile<Element, streamed> v[2];
  };
  __shared__ tiles_in_use tiles;

  auto const work = block_work{a, RowsPerBlock};
  if (work.empty()) { return; }
  auto const q      = work.packed(a.qkv, 0, a.heads);
  auto const k      = work.packed(a.qkv, 1, a.heads);
  auto const v      = work.packed(a.qkv, 2, a.heads);
  auto const own    = warp_id() * warp_rows;  // this warp's first row in the block
  auto const active = work.first + own < work.length;

  left_operand<Element> query[M][4];
  sums out[M];
  running_softmax softmax[M];
#pragma unroll
  for (auto m = 0; m < M; ++m) { clear(out[m]); }

  copy_rows<threads>(tiles.q, q, work.first);
  auto const fetch = [&](int j, int slot) {
    copy_rows<threads>(tiles.k[slot], k, j * streamed);
    copy_rows<threads>(tiles.v[slot], v, j * streamed);
  };
  pipelined(rounds(work.length), fetch, [&](int j, int slot) {
    if (!active) { return; }
    if (j == 0) {
#pragma unroll
      for (auto m = 0; m < M; ++m) { load(query[m], tiles.q, own + m * 16); }
    }
    sums p[M];
    multiply_transposed(p, query, tiles.k[slot]);
    auto const left = work.length - j * streamed;  // keys
    if (left < streamed) {
#pragma unroll
      for (auto m = 0; m < M; ++m) { mask_columns(p[m], left); }
    }
#pragma unroll
    for (auto m = 0; m < M; ++m) { softmax[m].fold(p[m], out[m]); }
#pragma unroll
    for (auto step = 0; step < 4; ++step) {
      left_operand<Element> weights[M];
#pragma unroll
      for (auto m = 0; m < M; ++m) { weights[m] = rounded<Element>(p[m], step); }
      if constexpr (Dropout) {
        auto const query = work.first + own;
        auto const bytes = step_bytes(work, query, j * streamed + step * 16);
#pragma unroll
        for (auto m = 0; m < M; ++m) {
          auto const second = M == 2 ? m : query / 16 % 2;
          drop(weights[m], of_row_block(bytes, second), work.drop.threshold);
        }
      }
      multiply_add_step(out, weights, tiles.v[slot], step);
    }
  });
  if (!active) { return; }

  auto const lane    = lane_id();
  auto const context = work.plain(a.out, a.heads);
#pragma unroll
  for (auto m = 0; m < M; ++m) {
    float factor[2];
#pragma unroll
    for (auto i = 0; i < 2; ++i) {
      auto const sum = row_sum(softmax[m].sum[i]);
      auto const row = work.first + own + m * 16 + i * 8 + lane / 4;
      factor[i]      = work.drop.scale / sum;
      if (lane % 4 == 0 && row < work.length) {
        a.lse_out[work.place(a.rows) + row] = softmax[m].reference[i] * score_scale + __logf(sum);
      }
    }
    scale_rows(out[m], factor[0], factor[1]);
    // the warp's own rows of q are in registers by now
    store_rows(context, out[m], tiles.q, own + m * 16, work.first);
  }
}

// ---- backward: see kernel_arguments ------------------------------------------------------------

/// dq of dqkv (T, 3, H, 64), and row_terms for dkv_kernel.
template <class Element, bool Dropout>
__global__ void __launch_bounds__(threads, dq_blocks_per_sm)
    dq_kernel(kernel_arguments<Element> const a) {
  struct tiles_in_use {
    shared_tile<Element, backward_rows> q;
    shared_tile<Element, streamed> k[2];
    shared_tile<Element, streamed> v[2];
  };
  __shared__ tiles_in_use tiles;

  auto const work = block_work{a, backward_rows};
  if (work.empty()) { return; }
  auto const k      = work.packed(a.qkv, 1, a.heads);
  auto const v      = work.packed(a.qkv, 2, a.heads);
  auto const lane   = lane_id();
  auto const own    = warp_id() * 16;
  auto const active = work.first + own < work.length;

  // context and dcontext borrow tiles that are not in use yet
  copy_rows<threads>(tiles.q, work.packed(a.qkv, 0, a.heads), work.first);
  copy_rows<threads>(tiles.k[0], work.plain(a.context, a.heads), work.first);
  copy_rows<threads>(tiles.v[0], work.plain(a.dcontext, a.heads), work.first);
  commit_copies();
  wait_for_copies();
  __syncthreads();
  left_operand<Element> query[1][4];
  left_operand<Element> dcontext[1][4];
  load(query[0], tiles.q, own);
  load(dcontext[0], tiles.v[0], own);
  float delta[2] = {0, 0};
#pragma unroll
  for (auto step = 0; step < 4; ++step) {
    left_operand<Element> context;
    load(context, tiles.k[0], own, step);
#pragma unroll
    for (auto part = 0; part < 4; ++part) {
      delta[part % 2] += dot<Element>(context.part[part], dcontext[0][step].part[part]);
    }
  }
  float lse2[2];
#pragma unroll
  for (auto i = 0; i < 2; ++i) {
    auto const row = work.first + own + i * 8 + lane / 4;
    delta[i]       = row_sum(delta[i]) / work.drop.scale;
    lse2[i]        = row < work.length ? a.lse[work.place(a.rows) + row] * log2_e : 0;
    if (lane % 4 == 0 && row < work.length) {
      a.terms[work.place(a.rows) + row] = {lse2[i], delta[i]};
    }
  }
  __syncthreads();

  sums dq[1];
  clear(dq[0]);
  auto const fetch = [&](int j, int slot) {
    copy_rows<threads>(tiles.k[slot], k, j * streamed);
    copy_rows<threads>(tiles.v[slot], v, j * streamed);
  };
  pipelined(rounds(work.length), fetch, [&](int j, int slot) {
    if (!active) { return; }
    sums ds[1];  // scores at first
    sums dp[1];
    multiply_transposed(ds, query, tiles.k[slot]);
    multiply_transposed(dp, dcontext, tiles.v[slot]);
    auto const left = work.length - j * streamed;
    if (left < streamed) { mask_columns(ds[0], left); }
#pragma unroll
    for (auto step = 0; step < 4; ++step) {
      uint2 bytes{};
      if constexpr (Dropout) {
        auto const query = work.first + own;
        auto const all   = step_bytes(work, query, j * streamed + step * 16);
        bytes            = of_row_block(all, query / 16 % 2);
      }
#pragma unroll
      for (auto n = 2 * step; n < 2 * step + 2; ++n) {
#pragma unroll
        for (auto e = 0; e < 4; ++e) {
          auto const p  = exp2_approximate(ds[0].at[n][e] * scale_log2 - lse2[e / 2]);
          auto gradient = dp[0].at[n][e];
          if constexpr (Dropout) {
            auto const byte = (e < 2 ? bytes.x : bytes.y) >> (n % 2 * 16 + e % 2 * 8) & 0xFFU;
            if (byte >= work.drop.threshold) { gradient = 0; }
          }
          ds[0].at[n][e] = p * (gradient - delta[e / 2]);
        }
      }
    }
    multiply_add(dq, ds[0], tiles.k[slot]);
  });
  if (!active) { return; }
  auto const scale = score_scale * work.drop.scale;
  scale_rows(dq[0], scale, scale);
  store_rows(work.packed(a.out, 0, a.heads), dq[0], tiles.q, own, work.first);
}

/// dk and dv of dqkv (T, 3, H, 64). Rows are keys: what would be transposed of p and ds is their
/// natural form here, and stays in registers.
template <class Element, bool Dropout>
__global__ void __launch_bounds__(threads, dkv_blocks_per_sm)
    dkv_kernel(kernel_arguments<Element> const a) {
  struct tiles_in_use {
    shared_tile<Element, streamed> q[2];
    shared_tile<Element, streamed> dcontext[2];
    row_terms terms[2][streamed];
  };
  __shared__ tiles_in_use tiles;

  auto const work = block_work{a, backward_rows};
  if (work.empty()) { return; }
  auto const q        = work.packed(a.qkv, 0, a.heads);
  auto const dcontext = work.plain(a.dcontext, a.heads);
  auto const lane     = lane_id();
  auto const own      = warp_id() * 16;
  auto const active   = work.first + own < work.length;

  copy_rows<threads>(tiles.q[0], work.packed(a.qkv, 1, a.heads), work.first);
  copy_rows<threads>(tiles.dcontext[0], work.packed(a.qkv, 2, a.heads), work.first);
  commit_copies();
  wait_for_copies();
  __syncthreads();
  left_operand<Element> key[1][4];
  left_operand<Element> value[1][4];
  load(key[0], tiles.q[0], own);
  load(value[0], tiles.dcontext[0], own);
  __syncthreads();

  sums dk[1];
  sums dv[1];
  clear(dk[0]);
  clear(dv[0]);
  auto const fetch = [&](int j, int slot) {
    copy_rows<threads>(tiles.q[slot], q, j * streamed);
    copy_rows<threads>(tiles.dcontext[slot], dcontext, j * streamed);
    auto const i   = static_cast<int>(threadIdx.x);
    auto const row = j * streamed + i;
    if (i < streamed) {  // zeros for queries that do not exist: their q and dcontext are zero, too
      copy_or_zero<sizeof(row_terms)>(&tiles.terms[slot][i],
                                      a.terms + work.place(a.rows) + (row < work.length ? row : 0),
                                      row < work.length);
    }
  };
  pipelined(rounds(work.length), fetch, [&](int j, int slot) {
    if (!active) { return; }
    sums p[1];   // scores at first
    sums ds[1];  // dp at first
    multiply_transposed(p, key, tiles.q[slot]);
    multiply_transposed(ds, value, tiles.dcontext[slot]);
    // 32 queries share calls of Philox: one for each of a lane's two columns
#pragma unroll
    for (auto block = 0; block < 2; ++block) {
      philox_words bytes[2];
#pragma unroll
      for (auto e = 0; e < 2; ++e) {
        if constexpr (Dropout) {
          bytes[e] = attention_bytes(
              work.drop,
              work.sample,
              static_cast<std::uint32_t>(j * streamed + block * 32 + lane % 4 * 2 + e),
              static_cast<std::uint32_t>(work.first + own + lane / 4));
        }
      }
#pragma unroll
      for (auto word = 0; word < 4; ++word) {
        auto const n                 = block * 4 + word;
        auto const* const of_columns = &tiles.terms[slot][n * 8 + lane % 4 * 2];
        auto const both              = *reinterpret_cast<float4 const*>(of_columns);
#pragma unroll
        for (auto e = 0; e < 2; ++e) {
          auto const lse2  = e == 0 ? both.x : both.z;
          auto const delta = e == 0 ? both.y : both.w;
#pragma unroll
          for (auto i = 0; i < 2; ++i) {
            auto& weight     = p[0].at[n][2 * i + e];
            auto& gradient   = ds[0].at[n][2 * i + e];
            auto const plain = exp2_approximate(weight * scale_log2 - lse2);
            weight           = plain;
            if constexpr (Dropout) {
              auto const byte = bert::detail::byte_of(bytes[e], word, i * 2 + lane / 4 % 2);
              if (byte >= work.drop.threshold) { weight = gradient = 0; }
            }
            gradient = plain * (gradient - delta);
          }
        }
      }
    }
    multiply_add(dv, p[0], tiles.dcontext[slot]);
    multiply_add(dk, ds[0], tiles.q[slot]);
  });
  __syncthreads();  // all have read the last queries: their tile can take results on their way out
  if (!active) { return; }
  auto const scale = work.drop.scale;
  scale_rows(dk[0], score_scale * scale, score_scale * scale);
  scale_rows(dv[0], scale, scale);
  store_rows(work.packed(a.out, 1, a.heads), dk[0], tiles.q[0], own, work.first);
  store_rows(work.packed(a.out, 2, a.heads), dv[0], tiles.dcontext[0], own, work.first);
}

}  // namespace bert::attention::tensor_core

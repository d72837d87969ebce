// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "dropout.hpp"    // for dropout
#include "work_list.hpp"  // for tile, tile_rows

#include <cuda_runtime.h>

#include <cstdint>  // for int32_t, int64_t, uint32_t

namespace bert::attention::detail {

inline constexpr int head_size     = 64;
inline constexpr float score_scale = 0.125F;  // 1 / sqrt(head_size)
inline constexpr float log2_e      = 1.44269504F;

/// What the kernel of dq leaves for that of dk and dv about each row of probabilities.
struct alignas(8) row_terms {
  float lse2;   // log-sum-exp in base 2: a probability is exp2(log2(e) score - lse2)
  float delta;  // (dcontext · context) / dropout's scale
};

/// All that kernels see, in device memory; T rows, H heads. Each kernel uses a part.
///
/// The backward pass, with s = scale of dropout, p = exp(score - lse) and, of each element of p
/// and of dp = dcontext vᵀ, kept(x) = x or 0:
///   delta = dcontext · context     = the row's sum of p s kept(dp)
///   ds    = p (s kept(dp) - delta) = s p (kept(dp) - delta / s)
///   dq = ds k / 8      dk = dsᵀ q / 8      dv = s kept(p)ᵀ dcontext
/// so that s, like the 1 / 8, meets only the 64 sums of a row.
template <class Value>
struct kernel_arguments {
  std::int32_t const* starts;    // (B + 1)
  std::uint32_t const* samples;  // (B), or null without dropout
  tile const* tiles;
  int heads;
  int rows;
  dropout drop;           // of head 0
  Value const* qkv;       // (T, 3, H, 64)
  Value const* context;   // (T, H, 64)
  Value const* dcontext;  // (T, H, 64)
  float const* lse;       // (H, T)
  row_terms* terms;       // (H, T)
  float* lse_out;         // (H, T), of forward
  Value* out;             // context (T, H, 64) of forward; dqkv (T, 3, H, 64) of backward
};

/// Rows of one head of one sequence in global memory.
template <class Value>
struct head_rows {
  Value* first;  // row 0
  int stride;    // from row to row, in values
  int count;     // rows that exist

  [[nodiscard]] __device__ Value* row(int i) const { return first + std::int64_t{i} * stride; }
};

[[nodiscard]] __device__ inline int lane_id() { return static_cast<int>(threadIdx.x % 32); }
[[nodiscard]] __device__ inline int warp_id() { return static_cast<int>(threadIdx.x / 32); }

/// Which rows of which head of which sequence this block works on.
///
/// Blocks are numbered (tile, part of the tile, head), heads fastest: blocks that run together read
/// neighbouring memory. A sequence's tiles start at its own first row, whatever else is in the
/// batch, so its results do not depend on that.
struct block_work {
  int head;
  int first;             // of the block's rows, counted in the sequence
  int length;            // of the sequence; rows from there on do not exist
  int start;             // the sequence's first row in the batch
  std::uint32_t sample;  // 0 without dropout
  dropout drop;          // of this head

  template <class Value>
  __device__ block_work(kernel_arguments<Value> const& a, int rows_per_block) {
    auto const parts  = static_cast<unsigned>(tile_rows / rows_per_block);
    auto const number = blockIdx.x / static_cast<unsigned>(a.heads);
    auto const mine   = a.tiles[number / parts];
    auto const s      = mine.sequence;
    head              = static_cast<int>(blockIdx.x % static_cast<unsigned>(a.heads));
    first             = mine.first_row + static_cast<int>(number % parts) * rows_per_block;
    start             = s < 0 ? 0 : a.starts[s];
    length            = s < 0 ? 0 : a.starts[s + 1] - start;
    sample            = s < 0 || a.samples == nullptr ? 0 : a.samples[s];
    drop              = a.drop.resolved();
    drop.site += static_cast<std::uint32_t>(head);
  }

  [[nodiscard]] __device__ bool empty() const { return first >= length; }

  /// This head's rows of q (0), k (1) or v (2) in a packed (T, 3, H, 64).
  template <class Value>
  [[nodiscard]] __device__ head_rows<Value> packed(Value* qkv, int part, int heads) const {
    auto const stride = 3 * heads * head_size;
    return {qkv + std::int64_t{start} * stride + (part * heads + head) * head_size, stride, length};
  }

  /// The first row's place in an (H, T).
  [[nodiscard]] __device__ std::int64_t place(int rows) const {
    return std::int64_t{head} * rows + start;
  }

  /// This head's rows of a (T, H, 64).
  template <class Value>
  [[nodiscard]] __device__ head_rows<Value> plain(Value* x, int heads) const {
    auto const stride = heads * head_size;
    return {x + std::int64_t{start} * stride + head * head_size, stride, length};
  }
};

}  // namespace bert::attention::detail

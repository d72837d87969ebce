// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "block_work.cuh"  // for head_rows, head_size, lane_id
#include "elements.cuh"    // for element_traits

#include <cstdint>  // for uint32_t

/// What the kernels for 16-bit elements are made of: tiles of 64 columns in shared memory, filled
/// by asynchronous copies and multiplied by the tensor cores' m16n8k16 (sm_80 and newer), sums in
/// fp32.
///
/// Throughout: lane = 4 g + t of a warp, g = 0 … 7, t = 0 … 3.
namespace bert::attention::tensor_core {

using detail::head_rows;
using detail::head_size;
using detail::lane_id;

/// Rows of 64 elements, 128 bytes: 8 chunks of 16 bytes. Chunk c of row r lies at place c ^ (r %
/// 8), so that the same chunk of 8 rows in turn, and all chunks of one row, lie in different banks:
/// neither 16-byte accesses nor ldmatrix, transposed or not, ever conflict.
template <class Element, int Rows>
struct shared_tile {
  alignas(128) Element values[Rows][head_size];

  [[nodiscard]] __device__ Element* chunk(int row, int c) {
    return &values[row][(c ^ (row & 7)) * 8];
  }
  [[nodiscard]] __device__ Element const* chunk(int row, int c) const {
    return &values[row][(c ^ (row & 7)) * 8];
  }
};

// ---- asynchronous copies ----------------------------------------------------------------------

[[nodiscard]] __device__ inline std::uint32_t shared_address(void const* p) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(p));
}

/// Copies Bytes (4, 8 or 16) to shared memory, or zeros it and reads nothing.
template <int Bytes>
__device__ inline void copy_or_zero(void* shared, void const* global, bool copy) {
  auto const size = copy ? Bytes : 0;
  if constexpr (Bytes == 16) {  // past L1: each row is used once a block
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)),
                 "l"(global),
                 "r"(size)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(shared_address(shared)),
                 "l"(global),
                 "n"(Bytes),
                 "r"(size)
                 : "memory");
  }
}

__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
__device__ inline void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

/// Starts copying rows first … first + Rows - 1. Rows that do not exist become zeros, which matters
/// even where their weight is 0: 0 times what happens to lie there may be NaN.
template <int Threads, class Element, int Rows>
__device__ inline void copy_rows(shared_tile<Element, Rows>& tile,
                                 head_rows<Element const> from,
                                 int first) {
  auto const c = static_cast<int>(threadIdx.x % 8);
#pragma unroll
  for (auto step = 0; step < Rows * 8 / Threads; ++step) {
    auto const row    = static_cast<int>(threadIdx.x / 8) + step * (Threads / 8);
    auto const exists = first + row < from.count;
    copy_or_zero<16>(
        tile.chunk(row, c), from.row(min(first + row, from.count - 1)) + c * 8, exists);
  }
}

/// compute(j, slot) for j = 0 … count - 1, while the copies that fetch(j + 1, other slot) starts
/// are on their way. One barrier a round: it says that round j has arrived for all threads, and
/// that none of them still reads what round j + 1 will overwrite.
template <class Fetch, class Compute>
__device__ inline void pipelined(int count, Fetch fetch, Compute compute) {
  fetch(0, 0);
  commit_copies();
#pragma unroll 1
  for (auto j = 0; j < count; ++j) {
    wait_for_copies();
    __syncthreads();
    if (j + 1 < count) {
      fetch(j + 1, (j + 1) & 1);
      commit_copies();
    }
    compute(j, j & 1);
  }
}

// ---- products ---------------------------------------------------------------------------------

/// Left operand of a product, 16 x 16: part 2 h + i holds row g + 8 i, columns 2 t + 8 h and one
/// on.
template <class Element>
struct left_operand {
  std::uint32_t part[4];
};

/// Right operand, 16 x 16 (two of the instruction's 16 x 8): part 2 n + h holds rows 2 t + 8 h and
/// one on, column g + 8 n.
template <class Element>
struct right_operand {
  std::uint32_t part[4];
};

/// 16 x 64 sums: at[n][2 i + e] is row g + 8 i, column 8 n + 2 t + e. Two neighbours in n,
/// rounded, are just what a left operand is: products chain without a trip through memory.
struct sums {
  float at[8][4];
};

__device__ inline void load_four(std::uint32_t (&to)[4], void const* row_of_lane) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(shared_address(row_of_lane))
               : "memory");
}

__device__ inline void load_four_transposed(std::uint32_t (&to)[4], void const* row_of_lane) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(shared_address(row_of_lane))
               : "memory");
}

/// Rows row … row + 15, columns 16 step … 16 step + 15 of a tile.
template <class Element, int Rows>
__device__ inline void load(left_operand<Element>& a,
                            shared_tile<Element, Rows> const& tile,
                            int row,
                            int step) {
  auto const lane = lane_id();
  load_four(a.part, tile.chunk(row + lane % 16, step * 2 + lane / 16));
}

/// All 64 columns of rows row … row + 15.
template <class Element, int Rows>
__device__ inline void load(left_operand<Element> (&a)[4],
                            shared_tile<Element, Rows> const& tile,
                            int row) {
#pragma unroll
  for (auto step = 0; step < 4; ++step) { load(a[step], tile, row, step); }
}

template <class Element>
__device__ inline void multiply_add(float (&c)[4],
                                    left_operand<Element> const& a,
                                    right_operand<Element> const& b,
                                    int n) {
  element_traits<Element>::multiply_add(c, a.part, b.part[2 * n], b.part[2 * n + 1]);
}

__device__ inline void clear(sums& c) {
#pragma unroll
  for (auto& four : c.at) {
#pragma unroll
    for (auto& value : four) { value = 0; }
  }
}

/// c (16 x 64) = a (16 x 64) tileᵀ, for M row blocks that share what is read of the tile.
template <class Element, int M>
__device__ inline void multiply_transposed(sums (&c)[M],
                                           left_operand<Element> const (&a)[M][4],
                                           shared_tile<Element, 64> const& tile) {
  auto const lane = lane_id();
#pragma unroll
  for (auto m = 0; m < M; ++m) { clear(c[m]); }
#pragma unroll
  for (auto step = 0; step < 4; ++step) {
#pragma unroll
    for (auto n = 0; n < 4; ++n) {
      right_operand<Element> b;
      load_four(b.part, tile.chunk(n * 16 + lane % 8 + lane / 16 * 8, step * 2 + lane / 8 % 2));
#pragma unroll
      for (auto m = 0; m < M; ++m) {
        multiply_add(c[m].at[2 * n], a[m][step], b, 0);
        multiply_add(c[m].at[2 * n + 1], a[m][step], b, 1);
      }
    }
  }
}

/// Columns 16 step … 16 step + 15 of p, as a left operand.
template <class Element>
[[nodiscard]] __device__ inline left_operand<Element> rounded(sums const& p, int step) {
  using traits     = element_traits<Element>;
  auto const& low  = p.at[2 * step];
  auto const& high = p.at[2 * step + 1];
  return {traits::pack(low[0], low[1]),
          traits::pack(low[2], low[3]),
          traits::pack(high[0], high[1]),
          traits::pack(high[2], high[3])};
}

/// c (16 x 64) += a (16 x 16) times rows 16 step … 16 step + 15 of the tile, for M row blocks.
template <class Element, int M>
__device__ inline void multiply_add_step(sums (&c)[M],
                                         left_operand<Element> const (&a)[M],
                                         shared_tile<Element, 64> const& tile,
                                         int step) {
  auto const lane = lane_id();
#pragma unroll
  for (auto n = 0; n < 4; ++n) {
    right_operand<Element> b;
    load_four_transposed(b.part, tile.chunk(step * 16 + lane % 16, n * 2 + lane / 16));
#pragma unroll
    for (auto m = 0; m < M; ++m) {
      multiply_add(c[m].at[2 * n], a[m], b, 0);
      multiply_add(c[m].at[2 * n + 1], a[m], b, 1);
    }
  }
}

/// c (16 x 64) += p (16 x 64, rounded) tile
template <class Element>
__device__ inline void multiply_add(sums (&c)[1],
                                    sums const& p,
                                    shared_tile<Element, 64> const& tile) {
#pragma unroll
  for (auto step = 0; step < 4; ++step) {
    left_operand<Element> const a[1] = {rounded<Element>(p, step)};
    multiply_add_step(c, a, tile, step);
  }
}

/// Products of two pairs, summed.
template <class Element>
[[nodiscard]] __device__ inline float dot(std::uint32_t a, std::uint32_t b) {
  auto const x = element_traits<Element>::unpack(a);
  auto const y = element_traits<Element>::unpack(b);
  return x.x * y.x + x.y * y.y;
}

// ---- between the lanes of a row, and back to global memory ------------------------------------

[[nodiscard]] __device__ inline float row_sum(float x) {
  x += __shfl_xor_sync(~0U, x, 1);
  return x + __shfl_xor_sync(~0U, x, 2);
}

[[nodiscard]] __device__ inline float row_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(~0U, x, 1));
  return fmaxf(x, __shfl_xor_sync(~0U, x, 2));
}

/// Rows g of c times `low`, rows g + 8 times `high`.
__device__ inline void scale_rows(sums& c, float low, float high) {
#pragma unroll
  for (auto& four : c.at) {
    four[0] *= low;
    four[1] *= low;
    four[2] *= high;
    four[3] *= high;
  }
}

/// Rows first + row … first + row + 15 of `to` = c, as far as they exist. Goes through rows
/// row … row + 15 of `space`, which no other warp may use, to store 16 bytes a lane.
template <class Element, int Rows>
__device__ inline void store_rows(
    head_rows<Element> to, sums const& c, shared_tile<Element, Rows>& space, int row, int first) {
  auto const lane = lane_id();
#pragma unroll
  for (auto n = 0; n < 8; ++n) {
#pragma unroll
    for (auto i = 0; i < 2; ++i) {
      auto* const pair = space.chunk(row + lane / 4 + 8 * i, n) + lane % 4 * 2;
      *reinterpret_cast<std::uint32_t*>(pair) =
          element_traits<Element>::pack(c.at[n][2 * i], c.at[n][2 * i + 1]);
    }
  }
  __syncwarp();
#pragma unroll
  for (auto i = lane; i < 16 * 8; i += 32) {
    auto const r = row + i / 8;
    if (first + r < to.count) {
      *reinterpret_cast<uint4*>(to.row(first + r) + i % 8 * 8) =
          *reinterpret_cast<uint4 const*>(space.chunk(r, i % 8));
    }
  }
  __syncwarp();
}

}  // namespace bert::attention::tensor_core

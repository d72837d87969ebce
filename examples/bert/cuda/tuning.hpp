// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>  // for size_t

// All numbers that trade speed for speed; results depend on those that say how sums are split.
namespace bert::cuda::tuning {

/// Floats of the memory that an operation's blocks leave their sums in.
inline constexpr std::size_t scratch_floats = std::size_t{1} << 21U;
/// Bytes that cuBLAS may work in; NVIDIA's advice for sm_90.
inline constexpr std::size_t matmul_workspace = std::size_t{32} << 20U;

// A block has a thread for each four columns and takes four rows at once. Fewer rows a block fill
// more of a GPU; but each block reads the weights, and leaves its sums, which are read once more.
inline constexpr unsigned norm_threads         = 512;  // so a row has 2048 columns at most
inline constexpr unsigned norm_rows            = 32;   // a block, at least
inline constexpr unsigned norm_blocks          = 2048;
inline constexpr unsigned norm_gradient_rows   = 48;
inline constexpr unsigned norm_gradient_blocks = 512;

// A block has a thread for each four columns of its part of a row.
inline constexpr unsigned map_threads = 256;
inline constexpr unsigned map_rows    = 16;
inline constexpr unsigned sum_rows    = 64;  // at least: the sums cost two rows of fp32

inline constexpr unsigned entropy_threads = 256;

inline constexpr unsigned partial_columns = 32;  // one sector-aligned run of floats for a warp
inline constexpr unsigned partial_slices  = 16;

inline constexpr std::size_t chunk_rows  = 32;  // of one table entry that a block adds up
inline constexpr std::size_t chunk_share = 8;   // of a block, of the chunks that there may be

inline constexpr unsigned optimizer_threads     = 256;
inline constexpr std::size_t optimizer_elements = 8192;  // a block

}  // namespace bert::cuda::tuning

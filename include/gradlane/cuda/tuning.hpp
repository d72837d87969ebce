// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>  // for uint32_t

/// The numbers that make kernels fast, and nothing else.
///
/// Chosen for about 130 multiprocessors: 512 blocks of 256 threads are resident at once, with 4
/// loads of 16 bytes under way in each thread, 8 MiB in all, which is twice what hides the latency
/// of 5 TB/s. Sums depend on all three numbers but not on the GPU.
namespace gradlane::cuda::tuning {

/// Threads of a block.
inline constexpr std::uint32_t threads = 256;

/// Elements of a tile, the unit of work of a block: 16 KiB of bf16, 32 KiB of fp32.
inline constexpr std::uint32_t tile_elements = 8192;

/// Most blocks of a reduction; each sums every 512th tile.
inline constexpr std::uint32_t most_partials = 512;

/// Loads that a thread has under way.
inline constexpr std::uint32_t loads_in_flight = 4;

}  // namespace gradlane::cuda::tuning

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/cuda/kernels.cuh>  // for GRADLANE_KERNEL
#include <gradlane/cuda/launch.cuh>   // for start
#include <gradlane/cuda/stream.hpp>   // for stream
#include <gradlane/cuda/tuning.hpp>   // for most_partials, threads

#include <cstddef>          // for byte, size_t
#include <cstdint>          // for uint32_t, uint64_t, uintptr_t
#include <source_location>  // for source_location

namespace gradlane::cuda::kernels {

namespace detail {

/// The threads of a block copy `bytes` bytes, of which both ends are aligned alike for Word.
template <class Word>
__device__ void copy_together(std::byte const* from, std::byte* to, std::uint64_t bytes) {
  auto const step = std::uint64_t{sizeof(Word)};
  auto const past = reinterpret_cast<std::uintptr_t>(from) % step;
  auto head       = past == 0 ? 0 : step - past;
  if (head > bytes) { head = bytes; }
  for (auto i = std::uint64_t{threadIdx.x}; i < head; i += blockDim.x) { to[i] = from[i]; }
  auto const words     = (bytes - head) / step;
  auto const* const in = reinterpret_cast<Word const*>(from + head);
  auto* const out      = reinterpret_cast<Word*>(to + head);
  for (auto i = std::uint64_t{threadIdx.x}; i < words; i += blockDim.x) { out[i] = in[i]; }
  auto const done = head + words * step;
  for (auto i = done + threadIdx.x; i < bytes; i += blockDim.x) { to[i] = from[i]; }
}

}  // namespace detail

/// Each block copies every gridDim'th segment, in the largest words that both its ends allow.
template <class Segment>
GRADLANE_KERNEL void copy_segments(Segment const* table, std::uint64_t count) {
  for (auto s = std::uint64_t{blockIdx.x}; s < count; s += gridDim.x) {
    auto const segment = table[s];
    auto const apart   = (reinterpret_cast<std::uintptr_t>(segment.from) ^
                        reinterpret_cast<std::uintptr_t>(segment.to));
    if (apart % 16 == 0) {
      detail::copy_together<uint4>(segment.from, segment.to, segment.bytes);
    } else if (apart % 4 == 0) {
      detail::copy_together<std::uint32_t>(segment.from, segment.to, segment.bytes);
    } else {
      detail::copy_together<std::uint8_t>(segment.from, segment.to, segment.bytes);
    }
  }
}

}  // namespace gradlane::cuda::kernels

namespace gradlane::cuda::launch {

/// @param table  in device memory, of things with `from`, `to` and `bytes`.
template <class Segment>
void copy_segments(stream const& on,
                   Segment const* table,
                   std::size_t count,
                   std::source_location at) {
  if (count == 0) { return; }
  auto const blocks =
      count < tuning::most_partials ? static_cast<std::uint32_t>(count) : tuning::most_partials;
  detail::start(on,
                blocks,
                tuning::threads,
                at,
                kernels::copy_segments<Segment>,
                table,
                std::uint64_t{count});
}

}  // namespace gradlane::cuda::launch

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/buffer_view.hpp>         // for const_buffer_view
#include <gradlane/cuda/tuning.hpp>         // for most_partials, tile_elements
#include <gradlane/detail/host_device.hpp>  // for GRADLANE_HOST_DEVICE
#include <gradlane/types.hpp>               // for size_of

#include <cstddef>  // for byte, size_t
#include <cstdint>  // for uint32_t, uint64_t

/// How tensors are cut into the pieces that blocks of threads work on.
namespace gradlane::cuda {

/// A piece of one tensor, of at most tuning::tile_elements.
struct tile {
  std::byte* data{};
  std::uint64_t offset{};  ///< its first element's place in the tensor
  std::uint32_t tensor{};  ///< place in the list
  std::uint32_t count{};
};

[[nodiscard]] constexpr std::uint32_t tiles_of(std::size_t count) noexcept {
  return static_cast<std::uint32_t>((count + tuning::tile_elements - 1) / tuning::tile_elements);
}

/// The tiles of a list, which lie in device memory, or those of a single view, which do not.
struct tile_source {
  tile const* list{};  ///< null: the tiles of the view that follows
  std::byte* data{};
  std::uint64_t count{};
  std::uint32_t element_size{};

  [[nodiscard]] GRADLANE_HOST_DEVICE tile operator[](std::uint32_t index) const {
    if (list != nullptr) { return list[index]; }
    auto const first = std::uint64_t{index} * tuning::tile_elements;
    auto const left  = count - first;
    return {
        data + first * element_size,
        first,
        0,
        left < tuning::tile_elements ? static_cast<std::uint32_t>(left) : tuning::tile_elements};
  }
};

/// The tiles of one view. Kernels do not write through a source that they only read.
[[nodiscard]] inline tile_source tiles_in(const_buffer_view x) noexcept {
  return {nullptr,
          const_cast<std::byte*>(x.data()),  // NOLINT(cppcoreguidelines-pro-type-const-cast)
          x.count(),
          static_cast<std::uint32_t>(size_of(x.type()))};
}

/// Where the blocks of a reduction meet, in device memory. Zero before the first use, and after
/// each.
struct meeting_place {
  std::uint64_t last_found{};  ///< ~key of the first element that was looked for
  std::uint32_t arrived{};     ///< blocks that have written their part
  std::uint32_t unused{};
  double partial[tuning::most_partials]{};
};

}  // namespace gradlane::cuda

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/adasum/combine.hpp>  // for pair_products
#include <gradlane/buffer_view.hpp>     // for buffer_view
#include <gradlane/cuda/error.hpp>      // for check
#include <gradlane/cuda/memory.hpp>     // for buffer
#include <gradlane/cuda/stream.hpp>     // for stream
#include <gradlane/cuda/tiles.hpp>      // for meeting_place, tile, tile_source, tiles_of
#include <gradlane/cuda/tuning.hpp>     // for tile_elements
#include <gradlane/detail/smaller.hpp>  // for smaller
#include <gradlane/error.hpp>           // for contract_error
#include <gradlane/types.hpp>           // for dtype, name_of, size_of

#include <cuda_runtime_api.h>

#include <cstddef>          // for byte, size_t
#include <cstdint>          // for uint32_t
#include <source_location>  // for source_location
#include <span>             // for span
#include <string>           // for string, to_string
#include <vector>           // for vector

namespace gradlane::cuda {

/// Views that share one dtype, cut into tiles, in device memory beside room for one reduction.
///
/// Reductions over one list (norms, products, and looking for Inf and NaN) must be ordered one
/// after the other, as those on one stream are. Work enqueued with a list stays valid when the list
/// is moved.
class tensor_list {
 public:
  /// Blocks. @param on  a stream without work that holds it up.
  /// @throws contract_error where the dtypes differ.
  tensor_list(stream const& on,
              std::span<buffer_view const> tensors,
              std::source_location at = std::source_location::current())
      : tensors_(tensors.begin(), tensors.end()) {
    auto tiles = std::vector<tile>{};
    for (auto i = std::size_t{0}; i < tensors_.size(); ++i) {
      check_type(i, at);
      append_tiles(tiles, tensors_[i], i);
    }
    tile_count_ = static_cast<std::uint32_t>(tiles.size());
    memory_     = buffer{on.device_index(),
                     sizeof(meeting_place) + tiles.size() * (sizeof(tile) + sizeof(pair_products)),
                     at};
    check(cudaMemsetAsync(memory_.data(), 0, sizeof(meeting_place), on.get()), at);
    check(cudaMemcpyAsync(memory_.data() + sizeof(meeting_place),
                          tiles.data(),
                          tiles.size() * sizeof(tile),
                          cudaMemcpyHostToDevice,
                          on.get()),
          at);
    check(cudaStreamSynchronize(on.get()), at);
  }

  [[nodiscard]] std::span<buffer_view const> tensors() const noexcept { return tensors_; }
  [[nodiscard]] dtype type() const noexcept {
    return tensors_.empty() ? dtype::fp32 : tensors_.front().type();
  }

  /// For kernels.
  [[nodiscard]] tile_source tiles() const noexcept {
    return {.list = reinterpret_cast<tile const*>(memory_.data() + sizeof(meeting_place))};
  }
  [[nodiscard]] std::uint32_t tile_count() const noexcept { return tile_count_; }
  [[nodiscard]] meeting_place* place() const noexcept {
    return reinterpret_cast<meeting_place*>(memory_.data());
  }
  /// (tiles)
  [[nodiscard]] pair_products* partial_products() const noexcept {
    return reinterpret_cast<pair_products*>(memory_.data() + sizeof(meeting_place) +
                                            tile_count_ * sizeof(tile));
  }

 private:
  static_assert(sizeof(meeting_place) % alignof(tile) == 0);
  static_assert(sizeof(tile) % alignof(pair_products) == 0);

  void check_type(std::size_t index, std::source_location at) const {
    auto const found = tensors_[index].type();
    if (found == type()) { return; }
    throw contract_error{"cuda::tensor_list: tensor " + std::to_string(index) + " is " +
                             std::string{name_of(found)} + ", tensor 0 is " +
                             std::string{name_of(type())} + "; make one list per dtype",
                         at};
  }

  static void append_tiles(std::vector<tile>& to, buffer_view tensor, std::size_t index) {
    for (auto first = std::size_t{0}; first < tensor.count(); first += tuning::tile_elements) {
      auto const count =
          gradlane::detail::smaller(std::size_t{tuning::tile_elements}, tensor.count() - first);
      to.push_back({.data   = tensor.data() + first * size_of(tensor.type()),
                    .offset = first,
                    .tensor = static_cast<std::uint32_t>(index),
                    .count  = static_cast<std::uint32_t>(count)});
    }
  }

  std::vector<buffer_view> tensors_;
  std::uint32_t tile_count_{0};
  buffer memory_;  // meeting_place, then the tiles, then a pair_products for each of them
};

}  // namespace gradlane::cuda

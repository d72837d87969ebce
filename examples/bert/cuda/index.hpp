// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../attention/work_list.hpp"  // for tile
#include "../batch_index.hpp"          // for batch_index
#include "memory.hpp"                  // for device_buffer
#include "prefetch.hpp"                // for prefetch
#include "row_groups.hpp"              // for chunk_sums, row_chunk, row_groups

#include <gradlane/cuda/stream.hpp>  // for stream

#include <cstddef>  // for size_t, byte
#include <cstdint>  // for int32_t, uint32_t
#include <span>     // for span
#include <vector>   // for vector

namespace bert::cuda {

/// The rows of a table that a batch takes, in the device's memory.
struct group_view {
  std::span<std::int32_t const> order;  // rows by (entry, row)
  std::span<row_chunk const> chunks;
  std::span<chunk_sums const> sums;
};

/// A batch in the device's memory, with all that kernels look up by row. Reused from step to step.
///
/// Where each part lies, and how long its list is, depends on the batch's shape alone (and on
/// whether it has next-sentence labels): a graph that was captured with one batch serves all of its
/// shape, until a larger one makes the memory grow.
class index {
 public:
  /// Copies a batch, in one transfer that is ready when the stream comes to it. Waits only where
  /// the stream has not come as far as the batch before the last.
  void assign(batch const& data, gradlane::cuda::stream const& stream);

  /// Makes room for batches up to this size; returns the bytes of device memory.
  std::size_t reserve(batch_shape const& largest, gradlane::cuda::stream const& stream);

  /// The batch in host memory.
  [[nodiscard]] batch const& data() const { return host_.data(); }
  [[nodiscard]] std::size_t rows() const { return host_.rows(); }

  // All below are in the device's memory.

  [[nodiscard]] std::span<std::int32_t const> tokens() const { return tokens_; }
  [[nodiscard]] std::span<std::int32_t const> segments() const { return segments_; }
  [[nodiscard]] std::span<std::int32_t const> positions() const { return positions_; }
  [[nodiscard]] std::span<std::uint32_t const> row_samples() const { return row_samples_; }
  [[nodiscard]] std::span<std::int32_t const> starts() const { return starts_; }
  [[nodiscard]] std::span<std::uint32_t const> samples() const { return samples_; }
  /// The work of attention, longest sequences first.
  [[nodiscard]] std::span<attention::tile const> tiles() const { return tiles_; }
  [[nodiscard]] std::span<std::int32_t const> first_rows() const { return first_rows_; }
  [[nodiscard]] std::span<std::int32_t const> predicted() const { return predicted_; }
  [[nodiscard]] std::span<std::int32_t const> labels() const { return labels_; }
  [[nodiscard]] std::span<std::int32_t const> next() const { return next_; }
  /// Without token 0, which does not train through the look-up.
  [[nodiscard]] group_view const& by_token() const { return by_token_; }
  [[nodiscard]] group_view const& by_position() const { return by_position_; }
  [[nodiscard]] group_view const& by_segment() const { return by_segment_; }

 private:
  template <class Visit>
  void visit(Visit&& each);

  batch_index host_;
  std::vector<attention::tile> tiles_on_host_;
  row_groups tokens_on_host_;
  row_groups positions_on_host_;
  row_groups segments_on_host_;
  prefetch transfers_;
  device_buffer<std::byte> bytes_;
  std::span<std::int32_t const> tokens_;
  std::span<std::int32_t const> segments_;
  std::span<std::int32_t const> positions_;
  std::span<std::uint32_t const> row_samples_;
  std::span<std::int32_t const> starts_;
  std::span<std::uint32_t const> samples_;
  std::span<attention::tile const> tiles_;
  std::span<std::int32_t const> first_rows_;
  std::span<std::int32_t const> predicted_;
  std::span<std::int32_t const> labels_;
  std::span<std::int32_t const> next_;
  group_view by_token_;
  group_view by_position_;
  group_view by_segment_;
};

}  // namespace bert::cuda

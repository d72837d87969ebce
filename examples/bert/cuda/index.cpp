// SPDX-License-Identifier: Apache-2.0
#include "index.hpp"

#include "tuning.hpp"  // for chunk_rows

#include <algorithm>    // for max_element
#include <cstring>      // for memcpy
#include <type_traits>  // for remove_cvref_t

namespace bert::cuda {

namespace {

constexpr auto alignment = std::size_t{16};

constexpr std::size_t aligned(std::size_t bytes) {
  return (bytes + alignment - 1) / alignment * alignment;
}

void group(std::vector<std::int32_t> const& entry_of, std::size_t first_entry, row_groups& into) {
  auto const largest = std::max_element(entry_of.begin(), entry_of.end());
  auto const entries = largest == entry_of.end() ? 0 : static_cast<std::size_t>(*largest) + 1;
  into.assign(entry_of, entries, first_entry, tuning::chunk_rows);
  into.fill_up(entry_of.size(), tuning::chunk_rows);
}

/// As many as no batch of this shape exceeds.
constexpr std::size_t tiles_of(batch_shape const& shape) {
  return shape.sequences + shape.tokens / attention::tile_rows;
}

/// Bytes that no batch of this shape exceeds.
constexpr std::size_t room_for(batch_shape const& shape) {
  constexpr auto id    = sizeof(std::int32_t);
  constexpr auto group = id + sizeof(row_chunk) + sizeof(chunk_sums);
  auto const t         = shape.tokens;
  auto const b         = shape.sequences;
  return t * (4 * id + 3 * group) + (b + 1) * 4 * id + tiles_of(shape) * sizeof(attention::tile) +
         shape.predictions * 2 * id + 32 * alignment;
}

}  // namespace

/// Calls each(host vector, device span) for all that is copied, always in the same order.
template <class Visit>
void index::visit(Visit&& each) {
  each(host_.data().tokens, tokens_);
  each(host_.data().segments, segments_);
  each(host_.positions(), positions_);
  each(host_.row_samples(), row_samples_);
  each(host_.data().starts, starts_);
  each(host_.data().samples, samples_);
  each(tiles_on_host_, tiles_);
  each(host_.first_rows(), first_rows_);
  each(host_.predicted(), predicted_);
  each(host_.labels(), labels_);
  each(host_.next(), next_);
  auto const group = [&](row_groups const& from, group_view& to) {
    each(from.order, to.order);
    each(from.chunks, to.chunks);
    each(from.sums, to.sums);
  };
  group(tokens_on_host_, by_token_);
  group(positions_on_host_, by_position_);
  group(segments_on_host_, by_segment_);
}

void index::assign(batch const& data, gradlane::cuda::stream const& stream) {
  host_.assign(data);
  tiles_on_host_.resize(tiles_of(data.shape()));
  attention::fill_tiles(data.starts, tiles_on_host_);
  group(data.tokens, 1, tokens_on_host_);
  group(host_.positions(), 0, positions_on_host_);
  group(data.segments, 0, segments_on_host_);

  bytes_.grow(room_for(data.shape()));
  auto* const stage = transfers_.sync_next(bytes_.size(), stream.device_index());
  auto place        = std::size_t{0};
  visit([&](auto const& from, auto& to) {
    auto const size = from.size() * sizeof(from[0]);
    using element   = typename std::remove_cvref_t<decltype(to)>::element_type;
    if (size > 0) { std::memcpy(stage + place, from.data(), size); }
    to = {reinterpret_cast<element*>(bytes_.data() + place), from.size()};
    place += aligned(size);
  });
  transfers_.deliver(bytes_.data(), place, stream);
}

std::size_t index::reserve(batch_shape const& largest, gradlane::cuda::stream const& stream) {
  bytes_.grow(room_for(largest));
  return bytes_.size() + transfers_.reserve(bytes_.size(), stream.device_index());
}

}  // namespace bert::cuda

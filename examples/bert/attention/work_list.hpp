// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>  // for sort, fill
#include <cstddef>    // for size_t, ptrdiff_t
#include <cstdint>    // for int32_t
#include <span>       // for span
#include <stdexcept>  // for invalid_argument
#include <string>     // for string, to_string
#include <tuple>      // for tuple

namespace bert::attention {

/// Rows of a tile. Kernels that want fewer rows a block split each tile evenly.
inline constexpr std::int32_t tile_rows = 128;

/// The rows first_row … first_row + tile_rows - 1 of a sequence, as far as it has them. Blocks of a
/// tile whose sequence is negative have nothing to do.
struct tile {
  std::int32_t sequence  = -1;
  std::int32_t first_row = 0;

  friend bool operator==(tile const&, tile const&) = default;
};

/// How many tiles these sequences have: at most B + T / tile_rows.
/// @param starts  (B + 1) cumulative lengths; none at all means no sequence.
/// @throws std::invalid_argument if they descend.
[[nodiscard]] inline std::size_t count_tiles(std::span<std::int32_t const> starts) {
  auto count = std::size_t{0};
  for (auto s = std::size_t{1}; s < starts.size(); ++s) {
    if (starts[s] < starts[s - 1]) {
      throw std::invalid_argument{"count_tiles: starts[" + std::to_string(s) + "] is " +
                                  std::to_string(starts[s]) + ", less than the one before"};
    }
    auto const length = std::int64_t{starts[s]} - starts[s - 1];
    count += static_cast<std::size_t>((length + tile_rows - 1) / tile_rows);
  }
  return count;
}

/// Writes the tiles of all sequences, those of the longest sequences first, so that a GPU that
/// hands out blocks in order ends with the short ones. Empty sequences have no tile.
///
/// What is left of `tiles` becomes tiles without work: a captured graph can be replayed with other
/// lengths as long as they fit into the list that was there when it was captured.
/// @returns the number of tiles with work.
/// @throws std::invalid_argument if `tiles` is too short or `starts` descend.
inline std::size_t fill_tiles(std::span<std::int32_t const> starts, std::span<tile> tiles) {
  auto const count = count_tiles(starts);
  if (count > tiles.size()) {
    throw std::invalid_argument{"fill_tiles: needs room for " + std::to_string(count) +
                                " tiles, there is room for " + std::to_string(tiles.size())};
  }
  auto const length = [&](std::int32_t sequence) {
    auto const s = static_cast<std::size_t>(sequence);
    return starts[s + 1] - starts[s];
  };
  auto next = tiles.begin();
  for (auto s = std::int32_t{0}; static_cast<std::size_t>(s) + 1 < starts.size(); ++s) {
    for (auto row = std::int64_t{0}; row < length(s); row += tile_rows) {
      *next++ = {s, static_cast<std::int32_t>(row)};
    }
  }
  std::sort(tiles.begin(), next, [&](tile const& a, tile const& b) {
    return std::tuple{-length(a.sequence), a.sequence, a.first_row} <
           std::tuple{-length(b.sequence), b.sequence, b.first_row};
  });
  std::fill(next, tiles.end(), tile{});
  return count;
}

}  // namespace bert::attention

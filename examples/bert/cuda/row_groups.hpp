// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>  // for min
#include <cstddef>    // for size_t
#include <cstdint>    // for int32_t
#include <vector>     // for vector

namespace bert::cuda {

/// Up to chunk_rows rows that add to one entry of a table: order[first] … order[first + count - 1].
struct row_chunk {
  std::int32_t first = 0;
  std::int32_t count = 0;  // 0: nothing to do
  std::int32_t entry = -1;
  std::int32_t slot  = -1;  // for the sum, where the entry has several chunks; else -1
};

/// The slots of an entry that has several chunks.
struct chunk_sums {
  std::int32_t entry = -1;
  std::int32_t first = 0;
  std::int32_t count = 0;  // 0: nothing to do
};

/// The rows of a batch by the entry of a table that they take, cut so that no block of a kernel has
/// much more to add up than another. Reused from step to step.
struct row_groups {
  std::vector<std::int32_t> order;  // rows by (entry, row)
  std::vector<row_chunk> chunks;
  std::vector<chunk_sums> sums;
  std::size_t slots = 0;

  /// @param entry_of  (rows) entries below `entries`; rows of an entry below `first_entry` count
  ///                  for nothing.
  void assign(std::vector<std::int32_t> const& entry_of,
              std::size_t entries,
              std::size_t first_entry,
              std::size_t chunk_rows) {
    begins_.assign(entries + 1, 0);
    for (auto const entry : entry_of) { ++begins_[static_cast<std::size_t>(entry) + 1]; }
    for (auto i = std::size_t{0}; i < entries; ++i) { begins_[i + 1] += begins_[i]; }
    order.resize(entry_of.size());
    next_.assign(begins_.begin(), begins_.end() - 1);
    for (auto row = std::size_t{0}; row < entry_of.size(); ++row) {
      auto& place                              = next_[static_cast<std::size_t>(entry_of[row])];
      order[static_cast<std::size_t>(place++)] = static_cast<std::int32_t>(row);
    }
    chunks.clear();
    sums.clear();
    slots = 0;
    for (auto entry = first_entry; entry < entries; ++entry) {
      add(static_cast<std::int32_t>(entry),
          begins_[entry],
          begins_[entry + 1],
          static_cast<std::int32_t>(chunk_rows));
    }
  }

  /// Appends chunks and sums without work, so that there are as many as no batch of so many rows
  /// exceeds.
  void fill_up(std::size_t rows, std::size_t chunk_rows) {
    chunks.resize(rows);
    sums.resize(rows / chunk_rows);
  }

 private:
  void add(std::int32_t entry, std::int32_t begin, std::int32_t end, std::int32_t chunk_rows) {
    auto const several = end - begin > chunk_rows;
    auto const first   = static_cast<std::int32_t>(slots);
    for (auto at = begin; at < end; at += chunk_rows) {
      auto const slot = several ? static_cast<std::int32_t>(slots++) : -1;
      chunks.push_back({at, std::min(chunk_rows, end - at), entry, slot});
    }
    if (several) { sums.push_back({entry, first, static_cast<std::int32_t>(slots) - first}); }
  }

  std::vector<std::int32_t> begins_;  // (entries + 1)
  std::vector<std::int32_t> next_;    // (entries)
};

}  // namespace bert::cuda

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../matrix_view.hpp"  // for matrix_view
#include "quads.cuh"           // for load, quad, store
#include "row_groups.hpp"      // for chunk_sums, row_chunk

#include <cstddef>  // for size_t
#include <cstdint>  // for int32_t

// Gradients of an embedding table (entries, H): rows (T, H) added to the entries that they came
// from, in the order of rows, by blocks that share no entry. A thread owns four columns.
namespace bert::cuda {

/// A chunk's rows in order, added to the table or left in its slot (slots, H). A block takes every
/// gridDim.x-th chunk, up to the first without rows: those are last.
template <unsigned Threads>
__global__ void __launch_bounds__(Threads) add_chunks(row_chunk const* chunks,
                                                      unsigned count,
                                                      std::int32_t const* order,
                                                      matrix_view<float const> rows,
                                                      float* table,
                                                      float* slots) {
  auto const columns = static_cast<int>(rows.cols);
  auto const column  = static_cast<int>(4 * threadIdx.x);
  if (column >= columns) { return; }
  for (auto number = blockIdx.x; number < count; number += gridDim.x) {
    auto const chunk = chunks[number];
    if (chunk.count == 0) { return; }
    auto sum = quad{};
    for (auto first = 0; first < chunk.count; first += 4) {
      quad row[4]{};
      for (auto r = 0; r < 4; ++r) {
        if (first + r < chunk.count) {
          row[r] =
              load(rows.row(static_cast<std::size_t>(order[chunk.first + first + r])) + column);
        }
      }
      for (auto r = 0; r < 4; ++r) { sum += row[r]; }
    }
    auto const alone = chunk.slot < 0;
    auto const place = static_cast<std::size_t>(alone ? chunk.entry : chunk.slot) * rows.cols;
    auto* const to   = (alone ? table : slots) + place + column;
    if (alone) { sum += load(to); }
    store(sum, to);
  }
}

/// One block an entry that has several chunks; nothing for one that has none.
template <unsigned Threads>
__global__ void __launch_bounds__(Threads)
    add_chunk_sums(chunk_sums const* sums, float const* slots, float* table, int columns) {
  auto const entry  = sums[blockIdx.x];
  auto const column = static_cast<int>(4 * threadIdx.x);
  auto const width  = static_cast<std::size_t>(columns);
  if (column >= columns || entry.count == 0) { return; }
  auto* const to = table + static_cast<std::size_t>(entry.entry) * width + column;
  auto sum       = load(to);
  for (auto i = 0; i < entry.count; ++i) {
    sum += load(slots + static_cast<std::size_t>(entry.first + i) * width + column);
  }
  store(sum, to);
}

}  // namespace bert::cuda

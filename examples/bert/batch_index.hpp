// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "batch.hpp"  // for batch

#include <algorithm>  // for sort
#include <cstddef>    // for size_t
#include <cstdint>    // for int32_t, uint32_t
#include <numeric>    // for iota
#include <vector>     // for vector

namespace bert {

/// A batch in host memory with all that the operations look up by row. Reused from step to step.
class batch_index {
 public:
  void assign(batch const& b) {
    data_        = b;
    auto const n = b.token_count();
    positions_.resize(n);
    row_samples_.resize(n);
    for (auto s = std::size_t{0}; s < b.sequence_count(); ++s) {
      for (auto row = b.starts[s]; row < b.starts[s + 1]; ++row) {
        positions_[static_cast<std::size_t>(row)]   = row - b.starts[s];
        row_samples_[static_cast<std::size_t>(row)] = b.samples[s];
      }
    }
    first_rows_.resize(b.sequence_count());
    for (auto s = std::size_t{0}; s < first_rows_.size(); ++s) {
      first_rows_[s] = b.next.empty() || b.next[s] >= 0 ? b.starts[s] : -1;
    }
    by_token_.resize(n);
    std::iota(by_token_.begin(), by_token_.end(), 0);
    std::sort(by_token_.begin(), by_token_.end(), [&](std::int32_t x, std::int32_t y) {
      auto const tx = b.tokens[static_cast<std::size_t>(x)];
      auto const ty = b.tokens[static_cast<std::size_t>(y)];
      return tx != ty ? tx < ty : x < y;
    });
  }

  [[nodiscard]] batch const& data() const { return data_; }
  /// The parts of the batch that operations take as lists of rows and labels.
  [[nodiscard]] std::vector<std::int32_t> const& predicted() const { return data_.predicted; }
  [[nodiscard]] std::vector<std::int32_t> const& labels() const { return data_.labels; }
  [[nodiscard]] std::vector<std::int32_t> const& next() const { return data_.next; }
  [[nodiscard]] std::size_t rows() const { return data_.token_count(); }
  [[nodiscard]] std::size_t length(std::size_t sequence) const {
    return static_cast<std::size_t>(data_.starts[sequence + 1] - data_.starts[sequence]);
  }

  /// (T) place of each row in its own sequence.
  [[nodiscard]] std::vector<std::int32_t> const& positions() const { return positions_; }
  /// (T) global sample id of each row.
  [[nodiscard]] std::vector<std::uint32_t> const& row_samples() const { return row_samples_; }
  /// (B) the row of each sequence's [CLS]; -1 where its next-sentence label is.
  [[nodiscard]] std::vector<std::int32_t> const& first_rows() const { return first_rows_; }
  /// (T) all rows by (token, row): the rows of one token adjoin, always in the same order.
  [[nodiscard]] std::vector<std::int32_t> const& by_token() const { return by_token_; }

 private:
  batch data_;
  std::vector<std::int32_t> positions_;
  std::vector<std::uint32_t> row_samples_;
  std::vector<std::int32_t> first_rows_;
  std::vector<std::int32_t> by_token_;
};

}  // namespace bert

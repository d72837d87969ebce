// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "config.hpp"  // for model_config

#include <gradlane/error.hpp>  // for contract_error

#include <algorithm>  // for count_if
#include <cstddef>    // for size_t
#include <cstdint>    // for int32_t, uint32_t
#include <string>     // for string, to_string
#include <vector>     // for vector

namespace bert {

/// The extents of a batch, or bounds of them.
struct batch_shape {
  std::size_t tokens      = 0;
  std::size_t sequences   = 0;
  std::size_t predictions = 0;
};

/// Sequences of any lengths, back to back: no padding exists, so none is ever computed, but for the
/// filler of pad(), whose entries of -1 count for nothing.
struct batch {
  std::vector<std::int32_t> tokens;     // (T)
  std::vector<std::int32_t> segments;   // (T)
  std::vector<std::int32_t> starts;     // (B + 1) cumulative lengths: 0 … T
  std::vector<std::uint32_t> samples;   // (B) global sample ids, which key the dropout masks
  std::vector<std::int32_t> predicted;  // (P) the rows, ascending, that were masked; then -1s
  std::vector<std::int32_t> labels;     // (P) their original tokens; then -1s
  std::vector<std::int32_t> next;       // (B) 0: the second sentence follows, 1 or -1; or ()

  [[nodiscard]] std::size_t token_count() const { return tokens.size(); }
  [[nodiscard]] std::size_t sequence_count() const { return samples.size(); }
  [[nodiscard]] std::size_t prediction_count() const { return predicted.size(); }
  /// Without filler.
  [[nodiscard]] std::size_t counted_predictions() const { return counted(labels); }
  [[nodiscard]] std::size_t counted_next() const { return counted(next); }
  [[nodiscard]] batch_shape shape() const {
    return {token_count(), sequence_count(), prediction_count()};
  }

  /// Appends one sequence; `predicted_positions` count from its own first token.
  void append(std::uint32_t sample,
              std::vector<std::int32_t> const& ids,
              std::vector<std::int32_t> const& segment_ids,
              std::vector<std::int32_t> const& predicted_positions,
              std::vector<std::int32_t> const& prediction_labels,
              std::int32_t next_label) {
    auto const first = static_cast<std::int32_t>(tokens.size());
    if (starts.empty()) { starts.push_back(0); }
    tokens.insert(tokens.end(), ids.begin(), ids.end());
    segments.insert(segments.end(), segment_ids.begin(), segment_ids.end());
    starts.push_back(static_cast<std::int32_t>(tokens.size()));
    samples.push_back(sample);
    for (auto const position : predicted_positions) { predicted.push_back(first + position); }
    labels.insert(labels.end(), prediction_labels.begin(), prediction_labels.end());
    next.push_back(next_label);
  }

 private:
  [[nodiscard]] static std::size_t counted(std::vector<std::int32_t> const& labels) {
    return static_cast<std::size_t>(
        std::count_if(labels.begin(), labels.end(), [](auto label) { return label >= 0; }));
  }
};

namespace detail {

inline void expect_range(std::vector<std::int32_t> const& values,
                         std::size_t limit,
                         std::string const& what,
                         bool may_be_filler = false) {
  for (auto i = std::size_t{0}; i < values.size(); ++i) {
    if (may_be_filler && values[i] == -1) { continue; }
    if (values[i] < 0 || static_cast<std::size_t>(values[i]) >= limit) {
      throw gradlane::contract_error{"batch: " + what + "[" + std::to_string(i) + "] is " +
                                     std::to_string(values[i]) + ", must lie in [0, " +
                                     std::to_string(limit) + ")"};
    }
  }
}

}  // namespace detail

/// @throws gradlane::contract_error naming the first entry that the model cannot take. A batch
/// without sequences is legal, and so is one without predictions; an empty sequence only where its
/// next-sentence label is -1.
inline void check(batch const& b, model_config const& config) {
  using gradlane::expects;
  expects(b.segments.size() == b.tokens.size(), "batch: needs one segment id for each token");
  expects(b.starts.size() == b.samples.size() + 1 || (b.starts.empty() && b.samples.empty()),
          "batch: starts must have one entry more than samples");
  expects(b.next.empty() || b.next.size() == b.samples.size(),
          "batch: needs one next-sentence label for each sample, or none at all");
  expects(b.labels.size() == b.predicted.size(), "batch: needs one label for each predicted row");
  detail::expect_range(b.tokens, config.vocab_size, "tokens");
  detail::expect_range(b.segments, config.type_vocab_size, "segments");
  detail::expect_range(b.labels, config.vocab_size, "labels", true);
  detail::expect_range(b.next, 2, "next", true);
  detail::expect_range(b.predicted, b.tokens.size(), "predicted", true);
  for (auto i = std::size_t{0}; i < b.predicted.size(); ++i) {
    expects((b.predicted[i] < 0) == (b.labels[i] < 0),
            "batch: predicted and labels must be -1 together");
    expects(i == 0 || b.predicted[i] < 0 || b.predicted[i - 1] < b.predicted[i],
            "batch: predicted must ascend");
    expects(i == 0 || b.predicted[i] < 0 || b.predicted[i - 1] >= 0,
            "batch: nothing may be predicted after filler");
  }
  if (b.samples.empty()) {
    expects(b.tokens.empty(), "batch: tokens without a sequence");
    return;
  }
  expects(b.starts.front() == 0 && static_cast<std::size_t>(b.starts.back()) == b.tokens.size(),
          "batch: starts must run from 0 to the number of tokens");
  for (auto i = std::size_t{0}; i < b.samples.size(); ++i) {
    auto const length   = b.starts[i + 1] - b.starts[i];
    auto const shortest = !b.next.empty() && b.next[i] < 0 ? 0 : 1;
    if (length < shortest || static_cast<std::size_t>(length) > config.max_position_embeddings) {
      throw gradlane::contract_error{"batch: sequence " + std::to_string(i) + " has length " +
                                     std::to_string(length) + ", must be 1 to " +
                                     std::to_string(config.max_position_embeddings)};
    }
  }
}

}  // namespace bert

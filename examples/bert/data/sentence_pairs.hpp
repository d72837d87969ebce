// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "token_cache.hpp"  // for token_cache, index_range

#include <cstddef>  // for size_t
#include <cstdint>  // for uint32_t, uint64_t
#include <vector>   // for vector

namespace bert {

/// How text is cut into samples.
struct pair_settings {
  std::size_t max_length   = 128;   // of a sample, [CLS] and two [SEP] included; 5 … 65535
  double short_probability = 0.1;   // of a sample that is made shorter on purpose
  double held_out          = 0.05;  // of the documents, for evaluation
  std::uint32_t seed       = 1;
};

enum class data_part { training, held_out };

/// Two stretches of tokens of a cache: [CLS] first [SEP] second [SEP].
struct sentence_pair {
  std::uint64_t first;   // token
  std::uint64_t second;  // token
  std::uint16_t first_length;
  std::uint16_t second_length;
  bool follows;  // the second stretch is what follows the first, not one of another document

  [[nodiscard]] std::size_t length() const { return std::size_t{first_length} + second_length + 3; }
  friend bool operator==(sentence_pair const&, sentence_pair const&) = default;
};

/// The documents of one part, ascending. Each document is in exactly one of the parts, which a
/// random number of its own decides; neither part is empty.
/// @throws input_error unless there are two documents.
[[nodiscard]] std::vector<std::uint32_t> documents_of(token_cache const& text,
                                                      pair_settings const& settings,
                                                      data_part part);

/// Cuts the documents of one part into pairs for next-sentence prediction, as Google's BERT does.
///
/// Sentences are gathered up to the length wanted and split at random; for half of the pairs (and
/// for a sentence that stands alone) the second stretch comes from another document, and the
/// sentences not used go into the next pair. What is too long loses tokens at its ends, at random.
/// Source: create_instances_from_document of google-research/bert, create_pretraining_data.py.
/// @throws input_error as documents_of() does, and for settings out of range.
[[nodiscard]] std::vector<sentence_pair> make_pairs(token_cache const& text,
                                                    pair_settings const& settings,
                                                    data_part part);

}  // namespace bert

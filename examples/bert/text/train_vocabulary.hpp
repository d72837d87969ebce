// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "documents.hpp"   // for document_rule
#include "sources.hpp"     // for text_source
#include "vocabulary.hpp"  // for vocabulary
#include "words.hpp"       // for letter_case

#include <cstddef>  // for size_t
#include <cstdint>  // for uint64_t
#include <span>     // for span
#include <string>   // for string
#include <utility>  // for pair
#include <vector>   // for vector

namespace bert {

/// A word and how often it occurs.
using word_count = std::pair<std::string, std::uint64_t>;

/// The words of the text, as BERT's basic tokenizer splits it, most frequent first.
///
/// Of text beyond `most_bytes` evenly spread parts are read. The result does not depend on
/// `threads`.
[[nodiscard]] std::vector<word_count> count_words(std::span<text_source const> sources,
                                                  letter_case letters,
                                                  std::size_t threads,
                                                  std::uint64_t most_bytes = std::uint64_t{1}
                                                                             << 30U);

/// Learns a WordPiece vocabulary from words by SentencePiece's byte-pair encoding.
///
/// [PAD] [UNK] [CLS] [SEP] [MASK] come first, then the characters, most frequent first, as the
/// beginning and as the continuation of a word, then the pieces in the order in which they were
/// learned. Characters that would take more than 1/8 of the entries are left out, rarest first.
/// @param size  entries; the result has fewer where the text does not have that many pieces.
/// @throws input_error if there is no word, or `size` is too small to hold any piece.
[[nodiscard]] vocabulary train_vocabulary(std::span<word_count const> words, std::size_t size);

}  // namespace bert

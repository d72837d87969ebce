// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>      // for size_t
#include <string>       // for string
#include <string_view>  // for string_view

namespace bert {

/// SentencePiece's byte-pair encoding: its pieces, one to a line, in the order they were learned.
///
/// Pieces that begin a word begin with `word_mark`. Only strings cross this function, since
/// SentencePiece is not compiled with the checked containers that we may be compiled with.
/// @param words  lines of "word<tab>count".
/// @throws input_error with SentencePiece's reason.
[[nodiscard]] std::string learn_byte_pairs(std::string_view words, std::size_t size);

inline constexpr auto word_mark = std::string_view{"\xE2\x96\x81"};  // U+2581

}  // namespace bert

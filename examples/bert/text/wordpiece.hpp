// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "vocabulary.hpp"  // for vocabulary
#include "words.hpp"       // for word_splitter, letter_case

#include <cstddef>        // for size_t
#include <cstdint>        // for int32_t
#include <string>         // for string
#include <string_view>    // for string_view
#include <unordered_map>  // for unordered_map
#include <vector>         // for vector

namespace bert {

/// Text to ids as BERT does it: words, then for each the longest pieces from left to right.
///
/// A word that the pieces cannot cover, or of more than 100 characters, is one [UNK]. Adds neither
/// [CLS] nor [SEP]. Remembers the words that it has seen: one to a thread.
class wordpiece {
 public:
  /// @param pieces  must outlive this object.
  wordpiece(vocabulary const& pieces, letter_case letters) : pieces_{pieces}, words_{letters} {}

  /// Appends the ids of `text`.
  void encode(std::string_view text, std::vector<std::int32_t>& ids);

 private:
  struct text_hash {
    using is_transparent = void;
    [[nodiscard]] std::size_t operator()(std::string_view text) const {
      return std::hash<std::string_view>{}(text);
    }
  };
  struct range {
    std::uint32_t first;
    std::uint32_t count;
  };

  void encode_word(std::string_view word, std::vector<std::int32_t>& ids) const;
  [[nodiscard]] range remember(std::string_view word);

  vocabulary const& pieces_;
  word_splitter words_;
  std::unordered_map<std::string, range, text_hash, std::equal_to<>> known_;
  std::vector<std::int32_t> known_ids_;
};

}  // namespace bert

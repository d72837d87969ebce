// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>      // for int32_t
#include <string>       // for string
#include <string_view>  // for string_view
#include <vector>       // for vector

namespace bert {

enum class letter_case {
  lower,  ///< lower-case letters without accents ("uncased" models)
  keep    ///< text as it is ("cased" models)
};

/// BERT's basic tokenizer: cleans text and sets one blank between its words.
///
/// Control characters, U+FFFD and bytes that are no UTF-8 are dropped; every Chinese character and
/// every punctuation character is a word. With letter_case::lower text is decomposed (NFD),
/// non-spacing marks are dropped and letters lowered one by one, as in Hugging Face's tokenizers.
/// Text that spells [MASK] and its like is taken apart as any other. Holds scratch memory: one to
/// a thread.
class word_splitter {
 public:
  explicit word_splitter(letter_case letters) : letters_{letters} {}

  /// The words of `text`, in UTF-8, with one blank between them; valid until the next call.
  [[nodiscard]] std::string_view split(std::string_view text);

 private:
  void ascii(unsigned char c);
  void word_break();
  void put(std::int32_t code);
  std::size_t collect(std::string_view text, std::size_t position);
  void flush_collected();

  letter_case letters_;
  std::string out_;
  std::vector<std::int32_t> codes_;  // a run of characters beyond ASCII
};

}  // namespace bert

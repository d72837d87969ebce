// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>       // for string
#include <string_view>  // for string_view
#include <vector>       // for vector

namespace bert {

/// Splits a paragraph into sentences by rule and appends them.
///
/// A sentence ends after . ! ? and closing quotes or brackets, where white space and something
/// that begins a sentence follow: no lower-case letter. A dot after an abbreviation or a single
/// capital ends none. The full stops of Chinese and Japanese end one by themselves. What is longer
/// than `longest` bytes is cut at a space. White space is one blank; a line break is white space.
void split_sentences(std::string_view paragraph,
                     std::vector<std::string>& sentences,
                     std::size_t longest = 800);

}  // namespace bert

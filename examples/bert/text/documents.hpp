// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sources.hpp"  // for text_source

#include <string>  // for string
#include <vector>  // for vector

namespace bert {

/// Where plain text is cut into documents; an HTML page always is one.
enum class document_rule {
  file,       ///< a file (or, of a long one, the part that is read at once) is a document
  blank_line  ///< an empty line ends a document, as in the input of Google's BERT
};

/// Consecutive sentences that belong together; never empty.
struct document {
  std::vector<std::string> sentences;
};

/// Reads a source, strips HTML, and splits into documents and sentences.
/// @throws input_error if it is not UTF-8 text, file_system_error if it cannot be read.
[[nodiscard]] std::vector<document> read_documents(text_source const& source, document_rule rule);

}  // namespace bert

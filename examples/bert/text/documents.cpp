// SPDX-License-Identifier: Apache-2.0
#include "documents.hpp"

#include "../errors.hpp"  // for input_error
#include "../files.hpp"   // for read_file
#include "html.hpp"       // for html_to_text
#include "sentences.hpp"  // for split_sentences

#include <algorithm>    // for min
#include <cstddef>      // for size_t
#include <string_view>  // for string_view
#include <utility>      // for move

namespace bert {

namespace {

constexpr auto byte_order_mark = std::string_view{"\xEF\xBB\xBF"};

/// The end of the paragraph: an empty line, or one of white space only.
[[nodiscard]] std::size_t paragraph_end(std::string_view text) {
  for (auto line = std::size_t{0}; line < text.size();) {
    auto const end     = std::min(text.find('\n', line), text.size());
    auto const content = text.substr(line, end - line);
    if (content.find_first_not_of(" \t\r\f") == std::string_view::npos) { return line; }
    line = end + 1;
  }
  return text.size();
}

}  // namespace

std::vector<document> read_documents(text_source const& source, document_rule rule) {
  auto raw = read_file(source.path, source.begin, source.end - source.begin);
  if (raw.find('\0') != std::string::npos) {
    throw input_error{"text " + source.path.string() +
                      ": holds a zero byte, so it is binary or UTF-16; give text in UTF-8"};
  }
  if (raw.starts_with(byte_order_mark)) { raw.erase(0, byte_order_mark.size()); }
  if (source.html) { raw = html_to_text(raw); }

  auto documents   = std::vector<document>{};
  auto current     = document{};
  auto const close = [&] {
    if (!current.sentences.empty()) { documents.push_back(std::move(current)); }
    current = {};
  };
  auto text = std::string_view{raw};
  while (!text.empty()) {
    auto const end = paragraph_end(text);
    split_sentences(text.substr(0, end), current.sentences);
    auto const next = text.find('\n', end);
    text.remove_prefix(next == std::string_view::npos ? text.size() : next + 1);
    if (rule == document_rule::blank_line && !source.html) { close(); }
  }
  close();
  return documents;
}

}  // namespace bert

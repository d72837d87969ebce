// SPDX-License-Identifier: Apache-2.0
#include "words.hpp"

#include <utf8proc.h>  // for utf8proc_iterate, utf8proc_category

#include <algorithm>  // for stable_sort
#include <array>      // for array
#include <cstddef>    // for size_t

namespace bert {

namespace {

enum class kind : std::uint8_t { dropped, space, punctuation, other };

[[nodiscard]] constexpr kind ascii_kind(unsigned char c) {
  if (c == ' ' || c == '\t' || c == '\n' || c == '\r') { return kind::space; }
  if (c < 0x20 || c == 0x7F) { return kind::dropped; }
  auto const alphanumeric =
      (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
  return alphanumeric ? kind::other : kind::punctuation;
}

constexpr auto ascii_kinds = [] {
  auto table = std::array<kind, 128>{};
  for (auto i = std::size_t{0}; i < table.size(); ++i) {
    table[i] = ascii_kind(static_cast<unsigned char>(i));
  }
  return table;
}();

/// Before normalisation, beyond ASCII.
[[nodiscard]] kind raw_kind(std::int32_t code) {
  if (code == 0xFFFD) { return kind::dropped; }
  switch (utf8proc_category(code)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
      return kind::dropped;
    case UTF8PROC_CATEGORY_ZS:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
      return kind::space;
    default:
      return kind::other;
  }
}

[[nodiscard]] bool is_punctuation(std::int32_t code) {
  auto const category = utf8proc_category(code);
  return category >= UTF8PROC_CATEGORY_PC && category <= UTF8PROC_CATEGORY_PO;
}

/// The blocks of Chinese characters that BERT names.
[[nodiscard]] constexpr bool is_chinese(std::int32_t code) {
  return (code >= 0x4E00 && code <= 0x9FFF) || (code >= 0x3400 && code <= 0x4DBF) ||
         (code >= 0x20000 && code <= 0x2A6DF) || (code >= 0x2A700 && code <= 0x2B73F) ||
         (code >= 0x2B740 && code <= 0x2B81F) || (code >= 0x2B820 && code <= 0x2CEAF) ||
         (code >= 0xF900 && code <= 0xFAFF) || (code >= 0x2F800 && code <= 0x2FA1F);
}

void append_decomposed(std::int32_t code, std::vector<std::int32_t>& codes) {
  auto parts = std::array<utf8proc_int32_t, 16>{};  // the longest has 4
  auto state = 0;
  auto count =
      utf8proc_decompose_char(code, parts.data(), std::ssize(parts), UTF8PROC_DECOMPOSE, &state);
  codes.insert(codes.end(), parts.begin(), parts.begin() + count);
}

/// Unicode's canonical order: marks that follow a letter sorted by their class.
void order_marks(std::vector<std::int32_t>& codes) {
  auto const mark_class = [](std::int32_t code) {
    return utf8proc_get_property(code)->combining_class;
  };
  for (auto begin = codes.begin(); begin != codes.end();) {
    if (mark_class(*begin) == 0) {
      ++begin;
      continue;
    }
    auto const end =
        std::find_if(begin, codes.end(), [&](std::int32_t code) { return mark_class(code) == 0; });
    std::stable_sort(
        begin, end, [&](std::int32_t a, std::int32_t b) { return mark_class(a) < mark_class(b); });
    begin = end;
  }
}

}  // namespace

std::string_view word_splitter::split(std::string_view text) {
  out_.clear();
  for (auto position = std::size_t{0}; position < text.size();) {
    auto const c = static_cast<unsigned char>(text[position]);
    if (c < 0x80) {
      ascii(c);
      ++position;
    } else {
      position = collect(text, position);
      flush_collected();
    }
  }
  if (out_.ends_with(' ')) { out_.pop_back(); }
  return out_;
}

void word_splitter::ascii(unsigned char c) {
  switch (ascii_kinds[c]) {
    case kind::dropped:
      return;
    case kind::space:
      word_break();
      return;
    case kind::punctuation:
      word_break();
      out_ += static_cast<char>(c);
      out_ += ' ';
      return;
    case kind::other:
      break;
  }
  auto const lowered = letters_ == letter_case::lower && c >= 'A' && c <= 'Z';
  out_ += static_cast<char>(lowered ? c - 'A' + 'a' : c);
}

void word_splitter::word_break() {
  if (!out_.empty() && out_.back() != ' ') { out_ += ' '; }
}

/// Gathers the characters beyond ASCII from `position` on; blanks stand for white space.
std::size_t word_splitter::collect(std::string_view text, std::size_t position) {
  codes_.clear();
  while (position < text.size() && static_cast<unsigned char>(text[position]) >= 0x80) {
    auto const rest = text.substr(position);
    auto code       = utf8proc_int32_t{};
    auto const size = utf8proc_iterate(
        reinterpret_cast<utf8proc_uint8_t const*>(rest.data()), std::ssize(rest), &code);
    if (size < 1) {  // no UTF-8
      ++position;
      continue;
    }
    position += static_cast<std::size_t>(size);
    auto const what = raw_kind(code);
    if (what == kind::dropped) { continue; }
    auto const chinese = is_chinese(code);
    if (what == kind::space || chinese) { codes_.push_back(' '); }
    if (what == kind::space) { continue; }
    if (letters_ == letter_case::lower) {
      append_decomposed(code, codes_);
    } else {
      codes_.push_back(code);
    }
    if (chinese) { codes_.push_back(' '); }
  }
  return position;
}

void word_splitter::flush_collected() {
  if (letters_ == letter_case::lower) { order_marks(codes_); }
  for (auto const code : codes_) { put(code); }
}

void word_splitter::put(std::int32_t code) {
  if (code < 0x80) {
    ascii(static_cast<unsigned char>(code));
    return;
  }
  if (letters_ == letter_case::lower) {
    if (utf8proc_category(code) == UTF8PROC_CATEGORY_MN) { return; }
    code = utf8proc_tolower(code);
  }
  auto const separate = is_punctuation(code);
  if (separate) { word_break(); }
  auto bytes      = std::array<utf8proc_uint8_t, 4>{};
  auto const size = utf8proc_encode_char(code, bytes.data());
  out_.append(bytes.begin(), bytes.begin() + size);
  if (separate) { out_ += ' '; }
}

}  // namespace bert

// SPDX-License-Identifier: Apache-2.0
#include "sentences.hpp"

#include <algorithm>  // for binary_search
#include <array>      // for array
#include <cstddef>    // for size_t

namespace bert {

namespace {

using namespace std::string_view_literals;

constexpr auto abbreviations = std::array{
    "al"sv,  "approx"sv, "cf"sv,   "ch"sv,   "co"sv,  "corp"sv, "dept"sv, "dr"sv,  "e.g"sv,
    "ed"sv,  "eds"sv,    "eg"sv,   "eq"sv,   "esp"sv, "etc"sv,  "fig"sv,  "i.e"sv, "ie"sv,
    "inc"sv, "jr"sv,     "ltd"sv,  "mr"sv,   "mrs"sv, "ms"sv,   "mt"sv,   "no"sv,  "nr"sv,
    "p"sv,   "pp"sv,     "prof"sv, "resp"sv, "sec"sv, "sr"sv,   "st"sv,   "vol"sv, "vs"sv};
static_assert(std::is_sorted(abbreviations.begin(), abbreviations.end()));

constexpr auto closing    = std::array{"\""sv, "'"sv, ")"sv, "]"sv, "”"sv, "’"sv, "»"sv};
constexpr auto full_stops = std::array{"。"sv, "！"sv, "？"sv};

[[nodiscard]] constexpr bool is_space(char c) {
  return c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\f' || c == '\v';
}
[[nodiscard]] constexpr bool is_upper(char c) { return c >= 'A' && c <= 'Z'; }
[[nodiscard]] constexpr bool is_lower(char c) { return c >= 'a' && c <= 'z'; }

[[nodiscard]] std::string collapse(std::string_view text) {
  auto result = std::string{};
  result.reserve(text.size());
  for (auto const c : text) {
    if (!is_space(c)) {
      result += c;
    } else if (!result.empty() && result.back() != ' ') {
      result += ' ';
    }
  }
  if (result.ends_with(' ')) { result.pop_back(); }
  return result;
}

/// Bytes of the one of `marks` that is at `position`, else 0.
template <class Marks>
[[nodiscard]] std::size_t mark_at(Marks const& marks, std::string_view text, std::size_t position) {
  for (auto const mark : marks) {
    if (text.substr(position).starts_with(mark)) { return mark.size(); }
  }
  return 0;
}

/// Whether the dot at `position` belongs to an abbreviation or an initial.
[[nodiscard]] bool is_abbreviation(std::string_view text, std::size_t position) {
  auto begin = position;
  while (begin > 0 && text[begin - 1] != ' ' && text[begin - 1] != '(' && text[begin - 1] != '[') {
    --begin;
  }
  auto const word = text.substr(begin, position - begin);
  if (word.size() == 1 && is_upper(word[0])) { return true; }
  auto lower = std::string{word};
  for (auto& c : lower) {
    if (is_upper(c)) { c = static_cast<char>(c - 'A' + 'a'); }
  }
  return std::binary_search(abbreviations.begin(), abbreviations.end(), lower);
}

/// The end of the sentence that ends with the mark at `position`, or 0 where none does.
[[nodiscard]] std::size_t sentence_end(std::string_view text, std::size_t position) {
  if (auto const size = mark_at(full_stops, text, position); size > 0) { return position + size; }
  auto const c = text[position];
  if (c != '.' && c != '!' && c != '?') { return 0; }
  auto end = position + 1;
  for (auto size = std::size_t{1}; size > 0 && end < text.size(); end += size) {
    size = mark_at(closing, text, end);
  }
  if (end == text.size()) { return end; }
  if (text[end] != ' ' || is_lower(text[end + 1])) { return 0; }
  return c == '.' && is_abbreviation(text, position) ? 0 : end;
}

/// Cuts at spaces, or where there are none between two UTF-8 characters.
void append_pieces(std::string_view sentence,
                   std::size_t longest,
                   std::vector<std::string>& sentences) {
  while (sentence.size() > longest) {
    auto cut = sentence.rfind(' ', longest);
    if (cut == std::string_view::npos || cut == 0) {
      cut = longest;
      while (cut > 1 && (static_cast<unsigned char>(sentence[cut]) & 0xC0U) == 0x80U) { --cut; }
    }
    sentences.emplace_back(sentence.substr(0, cut));
    sentence.remove_prefix(sentence[cut] == ' ' ? cut + 1 : cut);
  }
  if (!sentence.empty()) { sentences.emplace_back(sentence); }
}

}  // namespace

void split_sentences(std::string_view paragraph,
                     std::vector<std::string>& sentences,
                     std::size_t longest) {
  auto const collapsed = collapse(paragraph);
  auto const text      = std::string_view{collapsed};
  auto begin           = std::size_t{0};
  for (auto i = std::size_t{0}; i < text.size();) {
    auto const end = sentence_end(text, i);
    if (end == 0) {
      ++i;
      continue;
    }
    append_pieces(text.substr(begin, end - begin), longest, sentences);
    begin = end < text.size() && text[end] == ' ' ? end + 1 : end;
    i     = begin;
  }
  append_pieces(text.substr(begin), longest, sentences);
}

}  // namespace bert

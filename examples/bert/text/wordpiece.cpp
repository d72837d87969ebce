// SPDX-License-Identifier: Apache-2.0
#include "wordpiece.hpp"

#include <algorithm>  // for min, count_if

namespace bert {

namespace {

constexpr auto most_characters = std::size_t{100};       // of a word that is no [UNK]
constexpr auto most_remembered = std::size_t{1} << 18U;  // words: some 20 MB

[[nodiscard]] bool begins_character(char c) {
  return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U;
}

}  // namespace

void wordpiece::encode(std::string_view text, std::vector<std::int32_t>& ids) {
  auto const words = words_.split(text);
  for (auto begin = std::size_t{0}; begin < words.size();) {
    auto const end   = std::min(words.find(' ', begin), words.size());
    auto const word  = words.substr(begin, end - begin);
    auto const found = known_.find(word);
    auto const place = found != known_.end() ? found->second : remember(word);
    auto const first = known_ids_.begin() + place.first;
    ids.insert(ids.end(), first, first + place.count);
    begin = end + 1;
  }
}

wordpiece::range wordpiece::remember(std::string_view word) {
  if (known_.size() == most_remembered) {
    known_.clear();
    known_ids_.clear();
  }
  auto const first = known_ids_.size();
  encode_word(word, known_ids_);
  auto const place = range{static_cast<std::uint32_t>(first),
                           static_cast<std::uint32_t>(known_ids_.size() - first)};
  known_.emplace(word, place);
  return place;
}

void wordpiece::encode_word(std::string_view word, std::vector<std::int32_t>& ids) const {
  auto const characters = std::count_if(word.begin(), word.end(), begins_character);
  auto const before     = ids.size();
  auto position         = std::size_t{0};
  while (position < word.size() && static_cast<std::size_t>(characters) <= most_characters) {
    auto size = std::min(word.size() - position, pieces_.longest());
    auto id   = std::optional<std::int32_t>{};
    for (; size > 0 && !id; --size) {
      id = pieces_.find(word.substr(position, size), position > 0);
    }
    if (!id) { break; }
    ids.push_back(*id);
    position += size + 1;  // the loop took one off after it had found the piece
  }
  if (position < word.size()) {
    ids.resize(before);
    ids.push_back(pieces_.unknown());
  }
}

}  // namespace bert

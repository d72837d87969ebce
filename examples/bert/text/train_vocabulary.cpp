// SPDX-License-Identifier: Apache-2.0
#include "train_vocabulary.hpp"

#include "../errors.hpp"        // for input_error
#include "../parallel_for.hpp"  // for parallel_for
#include "byte_pairs.hpp"       // for learn_byte_pairs, word_mark

#include <algorithm>      // for sort, min
#include <map>            // for map
#include <set>            // for set
#include <string_view>    // for string_view
#include <unordered_map>  // for unordered_map
#include <unordered_set>  // for unordered_set

namespace bert {

namespace {

using counts = std::unordered_map<std::string, std::uint64_t>;

constexpr auto longest_word    = std::size_t{200};  // bytes
constexpr auto special_pieces  = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"};
constexpr auto character_share = std::size_t{8};

void sort_by_count(std::vector<word_count>& words) {
  std::sort(words.begin(), words.end(), [](word_count const& a, word_count const& b) {
    return a.second != b.second ? a.second > b.second : a.first < b.first;
  });
}

void count_in(text_source const& source, word_splitter& splitter, counts& result) {
  auto key = std::string{};
  for (auto const& document : read_documents(source, document_rule::file)) {
    for (auto const& sentence : document.sentences) {
      auto const words = splitter.split(sentence);
      for (auto begin = std::size_t{0}; begin < words.size();) {
        auto const end = std::min(words.find(' ', begin), words.size());
        key.assign(words.substr(begin, end - begin));
        ++result[key];
        begin = end + 1;
      }
    }
  }
}

/// Every source, or evenly spread ones that hold about `most_bytes`.
[[nodiscard]] std::vector<text_source> choose(std::span<text_source const> sources,
                                              std::uint64_t most_bytes) {
  auto total = std::uint64_t{0};
  for (auto const& source : sources) { total += source.end - source.begin; }
  auto result = std::vector<text_source>{};
  auto passed = std::uint64_t{0};
  auto chosen = std::uint64_t{0};
  for (auto const& source : sources) {
    // Keeps chosen / passed at most_bytes / total.
    auto const due =
        total <= most_bytes || static_cast<double>(chosen) * static_cast<double>(total) <=
                                   static_cast<double>(passed) * static_cast<double>(most_bytes);
    passed += source.end - source.begin;
    if (due) {
      result.push_back(source);
      chosen += source.end - source.begin;
    }
  }
  return result;
}

[[nodiscard]] std::vector<std::string> characters_of(std::string_view word) {
  auto result = std::vector<std::string>{};
  for (auto const c : word) {
    if ((static_cast<unsigned char>(c) & 0xC0U) != 0x80U) { result.emplace_back(); }
    result.back() += c;
  }
  return result;
}

/// Most frequent first.
[[nodiscard]] std::vector<std::string> alphabet(std::span<word_count const> words,
                                                std::size_t most) {
  auto found = std::map<std::string, std::uint64_t>{};
  for (auto const& [word, count] : words) {
    for (auto const& character : characters_of(word)) { found[character] += count; }
  }
  auto sorted = std::vector<word_count>{found.begin(), found.end()};
  sort_by_count(sorted);
  auto result = std::vector<std::string>{};
  for (auto const& [character, count] : sorted) {
    if (result.size() < most && character != word_mark) { result.push_back(character); }
  }
  return result;
}

/// "word<tab>count" of the words that have no other characters.
[[nodiscard]] std::string make_lines(std::span<word_count const> words,
                                     std::vector<std::string> const& letters) {
  auto const known = std::set<std::string>{letters.begin(), letters.end()};
  auto result      = std::string{};
  for (auto const& [word, count] : words) {
    auto const characters = characters_of(word);
    auto const covered    = std::all_of(
        characters.begin(), characters.end(), [&](auto const& c) { return known.contains(c); });
    if (covered && word.size() <= longest_word) {
      result += word + "\t" + std::to_string(count) + "\n";
    }
  }
  return result;
}

/// Pieces in WordPiece's form, in the order they were learned; no single characters.
[[nodiscard]] std::vector<std::string> learn(std::string_view lines, std::size_t size) {
  auto const learned = learn_byte_pairs(lines, size);
  auto result        = std::vector<std::string>{};
  for (auto begin = std::size_t{0}; begin < learned.size();) {
    auto const end    = learned.find('\n', begin);
    auto piece        = learned.substr(begin, end - begin);
    auto const begins = piece.starts_with(word_mark);
    if (begins) { piece.erase(0, word_mark.size()); }
    if (characters_of(piece).size() > 1) { result.push_back(begins ? piece : "##" + piece); }
    begin = end + 1;
  }
  return result;
}

}  // namespace

std::vector<word_count> count_words(std::span<text_source const> sources,
                                    letter_case letters,
                                    std::size_t threads,
                                    std::uint64_t most_bytes) {
  auto const chosen = choose(sources, most_bytes);
  auto partial      = std::vector<counts>(threads);
  auto splitters    = std::vector<word_splitter>(threads, word_splitter{letters});
  parallel_for(chosen.size(), threads, [&](std::size_t i, std::size_t thread) {
    count_in(chosen[i], splitters[thread], partial[thread]);
  });
  auto total = std::move(partial.front());
  for (auto i = std::size_t{1}; i < threads; ++i) {
    for (auto const& [word, count] : partial[i]) { total[word] += count; }
  }
  auto result = std::vector<word_count>{total.begin(), total.end()};
  sort_by_count(result);
  return result;
}

vocabulary train_vocabulary(std::span<word_count const> words, std::size_t size) {
  auto const letters = alphabet(words, size / character_share / 2);
  auto const lines   = make_lines(words, letters);
  if (letters.empty() || lines.empty()) {
    throw input_error{words.empty() ? "a vocabulary cannot be learned: the text holds no word"
                                    : "a vocabulary of " + std::to_string(size) +
                                          " pieces is too small for this text: ask for more"};
  }
  auto pieces    = std::vector<std::string>{special_pieces.begin(), special_pieces.end()};
  auto known     = std::unordered_set<std::string>{pieces.begin(), pieces.end()};
  auto const add = [&](std::string const& piece) {
    if (pieces.size() < size && known.insert(piece).second) { pieces.push_back(piece); }
  };
  for (auto const& letter : letters) { add(letter); }
  for (auto const& letter : letters) { add("##" + letter); }
  // Besides the wanted pieces SentencePiece counts its controls, characters, and those that it
  // joined to the mark of a word's beginning; what is too much is cut below.
  for (auto const& piece : learn(lines, size + 2 * letters.size())) { add(piece); }
  return vocabulary{std::move(pieces), "learned vocabulary"};
}

}  // namespace bert

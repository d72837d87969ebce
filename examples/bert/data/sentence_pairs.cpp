// SPDX-License-Identifier: Apache-2.0
#include "sentence_pairs.hpp"

#include "../errors.hpp"  // for input_error
#include "random.hpp"     // for random_stream

#include <algorithm>  // for min_element, max_element
#include <limits>     // for numeric_limits
#include <string>     // for to_string

namespace bert {

namespace {

constexpr auto special_tokens = std::size_t{3};
constexpr auto most_tries     = 10;  // at drawing another document

void check(pair_settings const& settings) {
  if (settings.max_length < special_tokens + 2 || settings.max_length > 65535) {
    throw input_error{"samples of at most " + std::to_string(settings.max_length) +
                      " tokens cannot be made: the length must lie in 5 to 65535"};
  }
  if (!(settings.short_probability >= 0 && settings.short_probability <= 1)) {
    throw input_error{"the probability of short samples must lie in 0 to 1"};
  }
  if (!(settings.held_out > 0 && settings.held_out < 1)) {
    throw input_error{"the share of held-out documents must lie between 0 and 1"};
  }
}

class pair_maker {
 public:
  pair_maker(token_cache const& text,
             pair_settings const& settings,
             std::vector<std::uint32_t> const& documents,
             std::vector<sentence_pair>& out)
      : text_{text}, settings_{settings}, documents_{documents}, out_{out} {}

  void make(std::size_t place) {
    place_               = place;
    auto const sentences = text_.document(documents_[place]);
    random_              = {settings_.seed, draw::pairs, documents_[place], 0};
    auto target          = draw_target();
    auto begin           = sentences.begin;
    for (auto end = begin + 1; end <= sentences.end; ++end) {
      if (end < sentences.end && tokens_of({begin, end}).size() < target) { continue; }
      begin  = add({begin, end}, target);
      end    = begin;
      target = draw_target();
    }
  }

 private:
  [[nodiscard]] std::size_t most() const { return settings_.max_length - special_tokens; }

  [[nodiscard]] std::size_t draw_target() {
    auto const most_tokens = static_cast<std::uint32_t>(most());
    if (random_.uniform() >= settings_.short_probability) { return most_tokens; }
    return 2 + random_.below(most_tokens - 1);
  }

  [[nodiscard]] index_range tokens_of(index_range sentences) const {
    return {text_.sentence(sentences.begin).begin, text_.sentence(sentences.end - 1).end};
  }

  /// Makes a pair that begins with the sentence chunk.begin; returns the first unused sentence.
  std::uint64_t add(index_range chunk, std::size_t target) {
    auto const alone = chunk.size() == 1;
    auto const split =
        alone ? chunk.end
              : chunk.begin + 1 + random_.below(static_cast<std::uint32_t>(chunk.size() - 1));
    auto first         = tokens_of({chunk.begin, split});
    auto const follows = !alone && random_.uniform() >= 0.5;
    auto second        = follows ? tokens_of({split, chunk.end})
                                 : draw_other(target > first.size() ? target - first.size() : 1);
    truncate(first, second);
    out_.push_back({first.begin,
                    second.begin,
                    static_cast<std::uint16_t>(first.size()),
                    static_cast<std::uint16_t>(second.size()),
                    follows});
    return follows ? chunk.end : split;
  }

  /// Sentences from a random place on, at least `wanted` tokens where the document has them.
  [[nodiscard]] index_range draw_other(std::size_t wanted) {
    auto const count = static_cast<std::uint32_t>(documents_.size());
    auto other       = random_.below(count);
    for (auto i = 1; i < most_tries && other == place_; ++i) { other = random_.below(count); }
    auto const sentences = text_.document(documents_[other]);
    auto const begin =
        sentences.begin + random_.below(static_cast<std::uint32_t>(sentences.size()));
    auto end = begin + 1;
    while (end < sentences.end && tokens_of({begin, end}).size() < wanted) { ++end; }
    return tokens_of({begin, end});
  }

  void truncate(index_range& first, index_range& second) {
    while (first.size() + second.size() > most()) {
      auto& longer = first.size() > second.size() ? first : second;
      if (random_.uniform() < 0.5) {
        ++longer.begin;
      } else {
        --longer.end;
      }
    }
  }

  token_cache const& text_;
  pair_settings const& settings_;
  std::vector<std::uint32_t> const& documents_;
  std::vector<sentence_pair>& out_;
  std::size_t place_ = 0;
  random_stream random_{0, draw::pairs, 0, 0};
};

}  // namespace

std::vector<std::uint32_t> documents_of(token_cache const& text,
                                        pair_settings const& settings,
                                        data_part part) {
  check(settings);
  auto const count = text.documents();
  if (count < 2) {
    throw input_error{
        "the text is too short: it is a single document, and one must be held out "
        "for evaluation; give more files, or let empty lines end documents"};
  }
  auto scores = std::vector<double>(count);
  for (auto i = std::size_t{0}; i < count; ++i) {
    auto const document = static_cast<std::uint32_t>(i);
    scores[i]           = random_stream{settings.seed, draw::held_out, document, 0}.uniform();
  }
  *std::min_element(scores.begin(), scores.end()) = 0;  // so that neither part is empty
  *std::max_element(scores.begin(), scores.end()) = 1;
  auto result                                     = std::vector<std::uint32_t>{};
  for (auto i = std::size_t{0}; i < count; ++i) {
    auto const held_out = scores[i] < settings.held_out;
    if (held_out == (part == data_part::held_out)) {
      result.push_back(static_cast<std::uint32_t>(i));
    }
  }
  return result;
}

std::vector<sentence_pair> make_pairs(token_cache const& text,
                                      pair_settings const& settings,
                                      data_part part) {
  auto const documents = documents_of(text, settings, part);
  auto result          = std::vector<sentence_pair>{};
  auto maker           = pair_maker{text, settings, documents, result};
  for (auto place = std::size_t{0}; place < documents.size(); ++place) { maker.make(place); }
  if (result.size() > std::numeric_limits<std::uint32_t>::max()) {
    throw input_error{"the text makes more samples than 32 bits can count: take longer samples"};
  }
  return result;
}

}  // namespace bert

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../text/vocabulary.hpp"  // for vocabulary
#include "masking.hpp"             // for masking_rule, mask_tokens
#include "sample_source.hpp"       // for sample_source
#include "sentence_pairs.hpp"      // for sentence_pair, pair_settings, make_pairs

#include <algorithm>  // for max
#include <memory>     // for shared_ptr
#include <utility>    // for move

namespace bert {

/// BERT's rule for the pieces of a vocabulary; a random token is never [PAD] [UNK] [CLS] … .
[[nodiscard]] inline masking_rule masking_for(vocabulary const& pieces, double probability = 0.15) {
  auto rule        = masking_rule{};
  rule.probability = probability;
  rule.mask        = pieces.mask();
  for (auto i = std::size_t{0}; i < pieces.size(); ++i) {
    auto const id = static_cast<std::int32_t>(i);
    if (!pieces.is_special(id)) { rule.replacements.push_back(id); }
  }
  return rule;
}

/// Sentence pairs of tokenized text, masked anew in every epoch.
class text_samples final : public sample_source {
 public:
  /// @param text  shared with other parts of the same text.
  /// @throws as make_pairs() does.
  text_samples(std::shared_ptr<token_cache const> text,
               vocabulary const& pieces,
               pair_settings const& settings,
               data_part part,
               double mask_probability = 0.15)
      : text_{std::move(text)},
        pairs_{make_pairs(*text_, settings, part)},
        masking_{masking_for(pieces, mask_probability)},
        classify_{pieces.classify()},
        separator_{pieces.separator()},
        seed_{settings.seed} {}

  [[nodiscard]] std::size_t size() const override { return pairs_.size(); }
  [[nodiscard]] std::size_t length(std::uint32_t sample) const override {
    return pairs_[sample].length();
  }

  void append(std::uint32_t sample, std::uint32_t epoch, batch& out) const override {
    auto const& pair = pairs_[sample];
    auto tokens      = std::vector<std::int32_t>{};
    tokens.reserve(pair.length());
    tokens.push_back(classify_);
    text_->copy({pair.first, pair.first + pair.first_length}, tokens);
    tokens.push_back(separator_);
    auto const second = tokens.size();
    text_->copy({pair.second, pair.second + pair.second_length}, tokens);
    tokens.push_back(separator_);

    auto segments = std::vector<std::int32_t>(tokens.size(), 1);
    std::fill_n(segments.begin(), second, 0);
    auto candidates = std::vector<std::int32_t>{};
    for (auto i = std::size_t{1}; i + 1 < tokens.size(); ++i) {
      if (i + 1 != second) { candidates.push_back(static_cast<std::int32_t>(i)); }
    }
    auto const masked = mask_tokens(masking_, seed_, epoch, sample, std::move(candidates), tokens);
    out.append(sample, tokens, segments, masked.predicted, masked.labels, pair.follows ? 0 : 1);
  }

  [[nodiscard]] std::vector<std::uint64_t> count_tokens() const override {
    auto result = std::vector<std::uint64_t>{};
    auto tokens = std::vector<std::int32_t>{};
    for (auto const& pair : pairs_) {
      tokens.clear();
      text_->copy({pair.first, pair.first + pair.first_length}, tokens);
      text_->copy({pair.second, pair.second + pair.second_length}, tokens);
      for (auto const token : tokens) {
        auto const place = static_cast<std::size_t>(token);
        if (place >= result.size()) { result.resize(place + 1); }
        ++result[place];
      }
    }
    return result;
  }

  [[nodiscard]] std::uint64_t fingerprint() const override {
    auto sum = checksum{};
    sum.add(text_->key().text);
    sum.add(text_->key().vocabulary);
    for (auto const& pair : pairs_) {
      sum.add(pair.first);
      sum.add(pair.second);
      sum.add(std::uint64_t{pair.first_length} << 32U | pair.second_length);
    }
    return sum.value();
  }

 private:
  std::shared_ptr<token_cache const> text_;
  std::vector<sentence_pair> pairs_;
  masking_rule masking_;
  std::int32_t classify_;
  std::int32_t separator_;
  std::uint32_t seed_;
};

}  // namespace bert

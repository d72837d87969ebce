// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "random.hpp"  // for random_stream

#include <algorithm>  // for sort, min, max, clamp
#include <cmath>      // for round
#include <cstddef>    // for size_t
#include <cstdint>    // for int32_t, uint32_t
#include <limits>     // for numeric_limits
#include <utility>    // for swap
#include <vector>     // for vector

namespace bert {

/// BERT's masked-LM rule: of each sequence 15 % of the tokens, [CLS] and [SEP] counted but never
/// chosen, and at least one; 80 % of them become [MASK], 10 % a random token, 10 % stay.
struct masking_rule {
  double probability           = 0.15;
  std::size_t most_predictions = std::numeric_limits<std::size_t>::max();
  std::int32_t mask            = 0;        // the id of [MASK]
  std::vector<std::int32_t> replacements;  // tokens that a random one is drawn from
};

/// What a sequence is asked to predict.
struct masked_positions {
  std::vector<std::int32_t> predicted;  // ascending
  std::vector<std::int32_t> labels;     // the tokens that were there
};

/// Masks `tokens` in place: a pure function of (tokens, seed, epoch, sample).
/// @param candidates  positions that may be chosen, ascending.
[[nodiscard]] inline masked_positions mask_tokens(masking_rule const& rule,
                                                  std::uint32_t seed,
                                                  std::uint32_t epoch,
                                                  std::uint32_t sample,
                                                  std::vector<std::int32_t> candidates,
                                                  std::vector<std::int32_t>& tokens) {
  auto random      = random_stream{seed, draw::masks, epoch, sample};
  auto const share = std::round(rule.probability * static_cast<double>(tokens.size()));
  auto const count = std::min({std::max(static_cast<std::size_t>(share), std::size_t{1}),
                               rule.most_predictions,
                               candidates.size()});
  for (auto i = std::size_t{0}; i < count; ++i) {
    auto const rest = static_cast<std::uint32_t>(candidates.size() - i);
    std::swap(candidates[i], candidates[i + random.below(rest)]);
  }
  candidates.resize(count);
  std::sort(candidates.begin(), candidates.end());
  auto result      = masked_positions{};
  result.predicted = std::move(candidates);
  for (auto const position : result.predicted) {
    auto& token = tokens[static_cast<std::size_t>(position)];
    result.labels.push_back(token);
    auto const kind = random.below(10);
    if (kind < 8) {
      token = rule.mask;
    } else if (kind == 8 && !rule.replacements.empty()) {
      token = rule.replacements[random.below(static_cast<std::uint32_t>(rule.replacements.size()))];
    }
  }
  return result;
}

}  // namespace bert

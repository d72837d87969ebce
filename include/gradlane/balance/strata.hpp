// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/balance/histogram.hpp>      // for length_histogram
#include <gradlane/detail/first_where.hpp>     // for first_where
#include <gradlane/detail/sorted_indices.hpp>  // for indices, sorted
#include <gradlane/error.hpp>                  // for contract_error, expects

#include <cmath>    // for floor
#include <cstddef>  // for size_t
#include <cstdint>  // for uint32_t, uint64_t
#include <limits>   // for numeric_limits
#include <span>     // for span
#include <string>   // for string, to_string
#include <utility>  // for move
#include <vector>   // for vector

namespace gradlane::balance {

/// Ranges of sequence lengths, from which samples are drawn in proportion.
///
/// Stratum s holds the lengths above longest()[s - 1] up to and with longest()[s]. Where samples
/// are spread over an epoch (sample_order::stratified without quotas), sixteen of equal probability
/// balance better than few.
class strata {
 public:
  /// @param longest  length of each stratum, rising.
  /// @throws contract_error for none, and for lengths that do not rise.
  explicit strata(std::vector<std::uint32_t> longest) : longest_{std::move(longest)} {
    expects(!longest_.empty(), "strata: there must be at least one stratum");
    for (std::size_t s = 1; s < longest_.size(); ++s) {
      expects(longest_[s - 1] < longest_[s], "strata: the longest lengths must rise");
    }
  }

  /// The paper's for BERT: up to 128, 256, 384 and 512 tokens.
  /// Source: Kim et al. 2024, arXiv 2402.02447, Figure 3.
  [[nodiscard]] static strata of_bert() { return strata{{128, 256, 384, 512}}; }

  /// At most `count` strata of equally many samples, as far as equal lengths allow.
  /// @throws contract_error for a count of 0, and for an empty histogram.
  [[nodiscard]] static strata of_equal_probability(length_histogram const& lengths,
                                                   std::size_t count) {
    return divided(lengths, count, static_cast<double>(lengths.samples()), [](auto const& entry) {
      return static_cast<double>(entry.count);
    });
  }

  /// At most `count` strata of equally many tokens, as far as equal lengths allow.
  /// @throws contract_error for a count of 0, and for a histogram without tokens.
  [[nodiscard]] static strata of_equal_tokens(length_histogram const& lengths, std::size_t count) {
    return divided(lengths, count, static_cast<double>(lengths.tokens()), [](auto const& entry) {
      return static_cast<double>(entry.count) * static_cast<double>(entry.length);
    });
  }

  [[nodiscard]] std::size_t size() const noexcept { return longest_.size(); }
  [[nodiscard]] std::span<std::uint32_t const> longest() const noexcept {
    return {longest_.data(), longest_.size()};
  }

  /// The stratum that holds a length.
  /// @throws contract_error for one above them all.
  [[nodiscard]] std::size_t index_of(std::uint32_t length) const {
    if (length > longest_.back()) {
      throw contract_error{"strata: length " + std::to_string(length) +
                           " is above the last stratum, which ends at " +
                           std::to_string(longest_.back()) + "; give one that holds it"};
    }
    return gradlane::detail::first_where(size(),
                                         [&](std::size_t s) { return longest_[s] >= length; });
  }

 private:
  /// Ends a stratum where the running sum is nearest to the next multiple of total / count.
  template <class Weight>
  [[nodiscard]] static strata divided(length_histogram const& lengths,
                                      std::size_t count,
                                      double total,
                                      Weight weight) {
    expects(count > 0, "strata: there must be at least one stratum");
    expects(total > 0, "strata: no lengths to divide");
    auto const entries = lengths.entries();
    auto const share   = total / static_cast<double>(count);
    auto longest       = std::vector<std::uint32_t>{};
    auto sum           = 0.0;
    auto shares        = 1.0;  // up to the end of the stratum that is being filled
    for (std::size_t i = 0; i + 1 < entries.size(); ++i) {
      sum += weight(entries[i]);
      auto const nearest = sum + weight(entries[i + 1]) / 2;
      if (nearest < shares * share) { continue; }
      longest.push_back(entries[i].length);
      auto const passed = std::floor(nearest / share);
      shares            = (passed > shares ? passed : shares) + 1;
    }
    longest.push_back(entries.back().length);
    return strata{std::move(longest)};
  }

  std::vector<std::uint32_t> longest_;
};

/// What a stratum holds.
struct stratum_total {
  std::uint64_t samples{};
  std::uint64_t tokens{};
};

/// The totals of each stratum.
/// @throws contract_error for a length above all strata.
[[nodiscard]] inline std::vector<stratum_total> totals_of(strata const& by,
                                                          length_histogram const& lengths) {
  auto totals = std::vector<stratum_total>(by.size());
  for (auto const& entry : lengths.entries()) {
    auto& total = totals[by.index_of(entry.length)];
    total.samples += entry.count;
    total.tokens += entry.count * entry.length;
  }
  return totals;
}

/// Divides `count` in proportion to `weights`, by largest remainder; equal ones: the first.
/// @throws contract_error unless weights are finite, also times the count, not negative, and one is
///   positive; for a count of 2^32 and more, which fp64 might not divide to the last one.
[[nodiscard]] inline std::vector<std::size_t> largest_remainder(std::span<double const> weights,
                                                                std::size_t count) {
  auto sum = 0.0;
  for (auto const w : weights) {
    expects(w >= 0, "largest_remainder: weights must not be negative");
    sum += w;
  }
  auto const most = static_cast<double>(count) * sum;  // of what follows
  expects(sum > 0 && most - most == 0,
          "largest_remainder: weights must be finite, also times the count, and one positive");
  expects(count <= std::numeric_limits<std::uint32_t>::max(),
          "largest_remainder: 2^32 or more cannot be divided exactly");
  auto parts     = std::vector<std::size_t>{};
  auto remainder = std::vector<double>{};
  auto left      = count;
  for (auto const w : weights) {
    auto const exact = static_cast<double>(count) * w / sum;
    parts.push_back(static_cast<std::size_t>(exact));
    remainder.push_back(exact - static_cast<double>(parts.back()));
    left -= parts.back();
  }
  auto const order =
      gradlane::detail::sorted(gradlane::detail::indices(weights.size()),
                               [&](auto a, auto b) { return remainder[a] > remainder[b]; });
  for (std::size_t i = 0; i < left; ++i) { ++parts[order[i]]; }
  return parts;
}

/// How batches of fixed quotas differ from the data set that they are drawn from.
struct quota_bias {
  /// Of each stratum: its share of a batch less its share of the data.
  std::vector<double> share;
  double mean_length{};  ///< in tokens, of a batch
  double true_length{};  ///< in tokens, of the data
  /// Samples that are left when the first stratum is used up: what dropping them would lose.
  std::uint64_t left_over{};
};

/// The expected bias of drawing `quotas[s]` samples of each stratum s into every batch.
/// @throws contract_error unless there is one quota a stratum, and one of a stratum with samples.
[[nodiscard]] inline quota_bias bias_of(std::span<std::size_t const> quotas,
                                        std::span<stratum_total const> totals) {
  expects(quotas.size() == totals.size(), "bias_of: there must be one quota for each stratum");
  auto batch   = std::uint64_t{0};  // samples in one, without those of empty strata
  auto samples = std::uint64_t{0};
  auto tokens  = std::uint64_t{0};
  for (std::size_t s = 0; s < quotas.size(); ++s) {
    batch += totals[s].samples > 0 ? quotas[s] : 0;
    samples += totals[s].samples;
    tokens += totals[s].tokens;
  }
  expects(batch > 0, "bias_of: no quota of a stratum that has samples");
  auto result  = quota_bias{};
  auto batches = samples;  // full ones
  for (std::size_t s = 0; s < quotas.size(); ++s) {
    auto const count = static_cast<double>(totals[s].samples);
    auto const drawn = totals[s].samples > 0 ? static_cast<double>(quotas[s]) : 0.0;
    auto const share = drawn / static_cast<double>(batch);
    result.share.push_back(share - count / static_cast<double>(samples));
    if (drawn == 0) { continue; }
    result.mean_length += share * static_cast<double>(totals[s].tokens) / count;
    if (totals[s].samples / quotas[s] < batches) { batches = totals[s].samples / quotas[s]; }
  }
  result.true_length = static_cast<double>(tokens) / static_cast<double>(samples);
  result.left_over   = samples - batches * batch;
  return result;
}

}  // namespace gradlane::balance

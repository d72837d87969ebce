// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "draws.hpp"  // for draws, random_bits

#include <gradlane/balance/deal.hpp>                  // for sample
#include <gradlane/balance/detail/stratum_turns.hpp>  // for phase_of, stratum_times, stratum_turns
#include <gradlane/balance/histogram.hpp>             // for length_histogram
#include <gradlane/balance/pack.hpp>                  // for pack
#include <gradlane/balance/strata.hpp>                // for largest_remainder, strata, totals_of
#include <gradlane/error.hpp>                         // for expects

#include <algorithm>  // for max
#include <array>      // for array
#include <cstddef>    // for size_t
#include <cstdint>    // for uint8_t, uint32_t, uint64_t
#include <span>       // for span
#include <utility>    // for move
#include <vector>     // for vector

namespace simulation {

namespace balance = gradlane::balance;

/// Where the sequences of a step come from.
enum class source : std::uint8_t {
  any,            ///< at random
  strata,         ///< each GPU's by fixed quotas of the paper's four strata
  spread,         ///< the same strata, as sample_order::stratified spreads them over an epoch
  spread_finely,  ///< sixteen strata of equal probability, spread likewise
  packs_of_3,     ///< packs of 512 tokens, batch/2 a GPU
  packs_of_12,
};
constexpr auto sample_sources = std::size_t{4};  // the first ones, which give single sequences

/// Lengths added up.
struct load {
  std::uint64_t tokens{};
  std::uint64_t squares{};

  load& operator+=(load const& other) {
    tokens += other.tokens;
    squares += other.squares;
    return *this;
  }
  [[nodiscard]] double cost(double n0) const {
    return static_cast<double>(tokens) + static_cast<double>(squares) / n0;
  }
};

[[nodiscard]] inline load of_length(std::uint32_t length) {
  return {length, std::uint64_t{length} * length};
}

/// A data set to draw from, in all the ways of `source`, with replacement.
class population {
 public:
  population(balance::length_histogram const& lengths, std::size_t batch)
      : any_{draws_between(lengths, 0, longest(lengths))},
        strata_{lengths, paper_strata(lengths)},
        fine_{lengths, balance::strata::of_equal_probability(lengths, 16)},
        quotas_{balance::largest_remainder(strata_.weights, batch)},
        packs_{pack_draws(lengths, 3), pack_draws(lengths, 12)},
        packs_a_gpu_{std::max<std::size_t>(1, batch / 2)} {}

  /// The sequences of GPUs that follow each other in one step.
  /// @param place  of the first in an endless epoch, for those that are spread over it.
  void fill(source from,
            random_bits& random,
            std::uint64_t place,
            std::span<balance::sample> out) const {
    switch (from) {
      case source::any:
        for (auto& s : out) { s.length = any_(random); }
        break;
      case source::strata:
        for (std::size_t i = 0; i < out.size();) {
          for (std::size_t s = 0; s < quotas_.size(); ++s) {
            for (std::size_t k = 0; k < quotas_[s]; ++k) {
              out[i++].length = strata_.of[s](random);
            }
          }
        }
        break;
      case source::spread:
        strata_.fill(random, place, out);
        break;
      case source::spread_finely:
        fine_.fill(random, place, out);
        break;
      case source::packs_of_3:
      case source::packs_of_12:
        break;
    }
  }

  /// What a GPU computes in a step if it is given packs.
  [[nodiscard]] load of_packs(source from, random_bits& random) const {
    auto const& packs = packs_[from == source::packs_of_3 ? 0 : 1];
    auto result       = load{};
    for (std::size_t i = 0; i < packs_a_gpu_; ++i) { result += packs(random); }
    return result;
  }

 private:
  [[nodiscard]] static std::uint32_t longest(balance::length_histogram const& lengths) {
    gradlane::expects(lengths.samples() > 0, "simulation: the histogram counts no sequences");
    return lengths.entries().back().length;
  }

  [[nodiscard]] static balance::strata paper_strata(balance::length_histogram const& lengths) {
    return balance::strata{{128, 256, 384, std::max(512U, longest(lengths))}};
  }

  [[nodiscard]] static draws<std::uint32_t> draws_between(balance::length_histogram const& lengths,
                                                          std::uint32_t above,
                                                          std::uint32_t last) {
    auto values  = std::vector<std::uint32_t>{};
    auto weights = std::vector<double>{};
    for (auto const& entry : lengths.entries()) {
      if (entry.length > last || (entry.length <= above && above > 0)) { continue; }
      values.push_back(entry.length);
      weights.push_back(static_cast<double>(entry.count));
    }
    return {std::move(values), weights};
  }

  [[nodiscard]] static draws<load> pack_draws(balance::length_histogram const& lengths,
                                              std::size_t most) {
    auto const capacity = std::max(512U, longest(lengths));
    auto values         = std::vector<load>{};
    auto weights        = std::vector<double>{};
    for (auto const& pattern :
         balance::pack(lengths, {.capacity = capacity, .most = most}).patterns) {
      auto sum = load{};
      for (auto const length : pattern.lengths) { sum += of_length(length); }
      values.push_back(sum);
      weights.push_back(static_cast<double>(pattern.count));
    }
    return {std::move(values), weights};
  }

  struct stratified {
    stratified(balance::length_histogram const& lengths, balance::strata const& by) {
      auto above = std::uint32_t{0};
      for (auto const last : by.longest()) {
        of.push_back(draws_between(lengths, above, last));
        above = last;
      }
      for (auto const& total : balance::totals_of(by, lengths)) {
        weights.push_back(static_cast<double>(total.samples));
      }
      auto times  = std::vector<balance::detail::stratum_times>{};
      auto counts = balance::largest_remainder(weights, turns.size());
      for (std::size_t s = 0; s < counts.size(); ++s) {
        times.push_back({counts[s], static_cast<double>(counts[s]), balance::detail::phase_of(s)});
      }
      auto next = balance::detail::stratum_turns{times, 0};
      for (auto& turn : turns) { turn = static_cast<std::uint8_t>(next.next().stratum); }
    }

    void fill(random_bits& random, std::uint64_t place, std::span<balance::sample> out) const {
      for (auto& s : out) { s.length = of[turns[place++ % turns.size()]](random); }
    }

    std::vector<draws<std::uint32_t>> of{};
    std::vector<double> weights{};
    std::vector<std::uint8_t> turns = std::vector<std::uint8_t>(std::size_t{1} << 20U);
  };

  draws<std::uint32_t> any_;
  stratified strata_;
  stratified fine_;
  std::vector<std::size_t> quotas_;
  std::array<draws<load>, 2> packs_;
  std::size_t packs_a_gpu_;
};

}  // namespace simulation

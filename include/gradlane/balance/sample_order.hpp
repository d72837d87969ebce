// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/balance/detail/permutation.hpp>    // for permutation
#include <gradlane/balance/detail/stratum_turns.hpp>  // for phase_of, stratum_times, stratum_turns
#include <gradlane/balance/strata.hpp>                // for strata
#include <gradlane/detail/mixed.hpp>                  // for mixed
#include <gradlane/error.hpp>                         // for expects

#include <cstddef>  // for size_t
#include <cstdint>  // for uint32_t, uint64_t, uint8_t
#include <limits>   // for numeric_limits
#include <span>     // for span
#include <vector>   // for vector

namespace gradlane::balance {

/// The order in which an epoch goes through a data set: a pure function of (seed, epoch).
///
/// It knows nothing of ranks and batches, which cut it where they like. Random orders are computed,
/// not stored, by integer arithmetic of our own: the same on every machine, and any position of any
/// epoch is found without those before it. Of constant size, but for the stratified order, which
/// keeps 4 bytes a sample. Several threads may read one.
class sample_order {
 public:
  /// 0, 1, 2, … in every epoch.
  /// @throws contract_error for 2^32 samples and more.
  [[nodiscard]] static sample_order sequential(std::uint64_t samples) {
    return sample_order{kind::sequential, samples, 0};
  }

  /// Another random order in each epoch.
  /// @throws contract_error for 2^32 samples and more.
  [[nodiscard]] static sample_order random(std::uint64_t samples, std::uint64_t seed) {
    return sample_order{kind::random, samples, seed};
  }

  /// A random order of which every stretch holds its share of each stratum.
  ///
  /// The samples of a stratum, in random order, are spread evenly over the epoch. What rounding
  /// takes from it in one batch comes in the next: a stretch of any length strays by one or two
  /// samples from its share, and all strata last to the end of the epoch.
  ///
  /// With `quotas`, batches of as many samples as these add up to hold exactly so many of each
  /// stratum until one is used up; the others go on without it, strata of quota 0 at the very end.
  /// bias_of() says what that costs.
  /// @param lengths  of all samples, in tokens.
  /// @throws contract_error for a length above all strata, for quotas that are not one a stratum or
  ///   all 0, and for 2^32 samples and more.
  [[nodiscard]] static sample_order stratified(std::span<std::uint32_t const> lengths,
                                               strata const& by,
                                               std::uint64_t seed,
                                               std::span<std::size_t const> quotas = {}) {
    auto order = sample_order{kind::stratified, lengths.size(), seed};
    order.sort_into(by, lengths);
    order.set_times(quotas);
    return order;
  }

  [[nodiscard]] std::uint64_t size() const noexcept { return size_; }

  /// Differs where kind, seed, number of samples, strata or quotas do.
  [[nodiscard]] std::uint64_t fingerprint() const noexcept { return fingerprint_; }

  /// The samples at positions [first, first + out.size()) of an epoch.
  /// @throws contract_error for positions beyond its end.
  void fill(std::uint64_t epoch, std::uint64_t first, std::span<std::uint32_t> out) const {
    expects(first <= size_ && out.size() <= size_ - first,
            "sample_order: the epoch has no such positions");
    switch (kind_) {
      case kind::sequential:
        for (auto& sample : out) { sample = static_cast<std::uint32_t>(first++); }
        break;
      case kind::random: {
        auto const order = shuffled(size_, epoch, 0);
        for (auto& sample : out) { sample = static_cast<std::uint32_t>(order(first++)); }
        break;
      }
      case kind::stratified:
        fill_stratified(epoch, first, out);
        break;
    }
  }

 private:
  enum class kind : std::uint8_t { sequential, random, stratified };

  sample_order(kind k, std::uint64_t samples, std::uint64_t seed)
      : kind_{k}, size_{samples}, seed_{seed} {
    expects(samples <= std::numeric_limits<std::uint32_t>::max(),
            "sample_order: 2^32 samples or more; give each part of the data an order of its own");
    note(static_cast<std::uint64_t>(k));
    note(samples);
    note(seed);
  }

  void note(std::uint64_t value) { fingerprint_ = gradlane::detail::mixed(fingerprint_ ^ value); }

  [[nodiscard]] detail::permutation shuffled(std::uint64_t size,
                                             std::uint64_t epoch,
                                             std::uint64_t part) const noexcept {
    auto const key = gradlane::detail::mixed(
        gradlane::detail::mixed(gradlane::detail::mixed(seed_) ^ epoch) ^ part);
    return detail::permutation{size, key};
  }

  void sort_into(strata const& by, std::span<std::uint32_t const> lengths) {
    begins_.assign(by.size() + 1, 0);
    for (auto const length : lengths) { ++begins_[by.index_of(length) + 1]; }
    for (std::size_t s = 0; s < by.size(); ++s) {
      note(by.longest()[s]);
      note(begins_[s + 1]);
      begins_[s + 1] += begins_[s];
    }
    members_.resize(lengths.size());
    auto next = begins_;
    for (std::size_t i = 0; i < lengths.size(); ++i) {
      members_[next[by.index_of(lengths[i])]++] = static_cast<std::uint32_t>(i);
    }
  }

  void set_times(std::span<std::size_t const> quotas) {
    auto const count = begins_.size() - 1;
    expects(quotas.empty() || quotas.size() == count,
            "sample_order: there must be one quota for each stratum");
    auto end = 0.0;  // of the strata that have quotas
    auto sum = std::size_t{0};
    for (auto const quota : quotas) { sum += quota; }
    expects(quotas.empty() || sum > 0, "sample_order: one quota must be positive");
    for (std::size_t s = 0; s < count; ++s) {
      auto times  = detail::stratum_times{};
      times.count = begins_[s + 1] - begins_[s];
      times.phase = detail::phase_of(s);
      times.rate  = static_cast<double>(quotas.empty() ? times.count : quotas[s]);
      if (times.rate > 0 && times.end() > end) { end = times.end(); }
      times_.push_back(times);
    }
    for (auto const quota : quotas) { note(quota); }
    for (auto& times : times_) {
      if (times.rate > 0) { continue; }
      times.start = end;
      times.rate  = 1;
    }
  }

  void fill_stratified(std::uint64_t epoch,
                       std::uint64_t first,
                       std::span<std::uint32_t> out) const {
    auto orders = std::vector<detail::permutation>{};
    for (std::size_t s = 0; s < times_.size(); ++s) {
      orders.push_back(shuffled(times_[s].count, epoch, s + 1));
    }
    auto turns = detail::stratum_turns{times_, first};
    for (auto& sample : out) {
      auto const turn = turns.next();
      sample          = members_[begins_[turn.stratum] + orders[turn.stratum](turn.k)];
    }
  }

  kind kind_;
  std::uint64_t size_;
  std::uint64_t seed_;
  std::uint64_t fingerprint_{};
  std::vector<std::uint32_t> members_;  // of the strata, one after the other
  std::vector<std::uint64_t> begins_;   // of each stratum in members_, and its size
  std::vector<detail::stratum_times> times_;
};

}  // namespace gradlane::balance

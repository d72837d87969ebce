// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>      // for bit_cast, bit_ceil
#include <cstddef>  // for size_t
#include <cstdint>  // for uint32_t, uint64_t
#include <limits>   // for numeric_limits
#include <vector>   // for vector

namespace gradlane::balance::detail {

/// The part that costs least so far of those that may still be given samples.
///
/// Of equally dear ones it is the one with fewer samples, then the first. A tree of winners: parts
/// play against their neighbours, winners against winners; whatever changes a part replays the
/// games on its way up, in the same number of steps for any outcome.
class least_loaded {
 public:
  explicit least_loaded(std::size_t parts)
      : leaves_{std::bit_ceil(parts)}, costs_(2 * leaves_, closed), ranks_(2 * leaves_) {
    for (std::size_t p = 0; p < leaves_; ++p) { ranks_[leaves_ + p] = p; }
    for (auto p = parts; p > 0; --p) { set(p - 1, 0, p - 1); }
  }

  [[nodiscard]] std::uint32_t top() const { return static_cast<std::uint32_t>(ranks_[1]); }
  [[nodiscard]] std::size_t top_count() const { return ranks_[1] >> 32U; }

  /// @param cost  not negative.
  void give(double cost) {
    auto const sum = std::bit_cast<double>(costs_[1]) + cost;
    set(top(), std::bit_cast<std::uint64_t>(sum), ranks_[1] + (std::uint64_t{1} << 32U));
  }

  /// Takes the top out, for good.
  void close_top() { set(top(), closed, ranks_[1]); }

 private:
  static constexpr auto closed = std::numeric_limits<std::uint64_t>::max();

  /// Puts a leaf in place, and the winner of each game on its way up.
  void set(std::size_t part, std::uint64_t cost, std::uint64_t rank) {
    for (auto node = leaves_ + part;; node /= 2) {
      costs_[node] = cost;
      ranks_[node] = rank;
      if (node == 1) { return; }
      auto const other_cost = costs_[node ^ 1U];
      auto const other_rank = ranks_[node ^ 1U];
      auto const loses      = std::uint64_t{other_cost < cost} |
                         (std::uint64_t{other_cost == cost} & std::uint64_t{other_rank < rank});
      auto const taken = std::uint64_t{0} - loses;  // all ones or none: no branch to mispredict
      cost ^= (cost ^ other_cost) & taken;
      rank ^= (rank ^ other_rank) & taken;
    }
  }

  // Node n has the children 2n and 2n + 1; part p is node leaves_ + p.
  std::size_t leaves_;
  std::vector<std::uint64_t> costs_;  // bits of doubles, which have their order
  std::vector<std::uint64_t> ranks_;  // of the winner: samples in the upper half, part in the lower
};

}  // namespace gradlane::balance::detail

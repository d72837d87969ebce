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
    for (std::size_t p = 0; p < leaves_; ++p) {
      if (p < parts) { costs_[leaves_ + p] = 0; }
      ranks_[leaves_ + p] = p;
    }
    for (auto node = leaves_ - 1; node > 0; --node) { play(node); }
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

  void set(std::size_t part, std::uint64_t cost, std::uint64_t rank) {
    auto node    = leaves_ + part;
    costs_[node] = cost;
    ranks_[node] = rank;
    for (node /= 2; node > 0; node /= 2) { play(node); }
  }

  void play(std::size_t node) {
    auto const left  = costs_[2 * node];
    auto const right = costs_[2 * node + 1];
    auto const l     = ranks_[2 * node];
    auto const r     = ranks_[2 * node + 1];
    auto const wins =
        std::uint64_t{right < left} | (std::uint64_t{right == left} & std::uint64_t{r < l});
    auto const taken =
        std::uint64_t{0} - wins;  // all ones where right wins: no branch to mispredict
    costs_[node] = left ^ ((left ^ right) & taken);
    ranks_[node] = l ^ ((l ^ r) & taken);
  }

  // Node n has the children 2n and 2n + 1; part p is node leaves_ + p.
  std::size_t leaves_;
  std::vector<std::uint64_t> costs_;  // bits of doubles, which have their order
  std::vector<std::uint64_t> ranks_;  // of the winner: samples in the upper half, part in the lower
};

}  // namespace gradlane::balance::detail

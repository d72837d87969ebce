// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/element_range.hpp>  // for element_range
#include <gradlane/error.hpp>          // for expects

#include <algorithm>  // for clamp, min
#include <bit>        // for bit_floor
#include <cstddef>    // for size_t
#include <utility>    // for swap
#include <vector>     // for vector

namespace gradlane {

/// One rank's part in one level of the tree: two groups of ranks hold the vectors a and b, each
/// rank a slice of its own group's; it is joined with the partner, who holds the same slice of the
/// other vector.
struct tree_level {
  static constexpr int nobody = -1;

  int partner{nobody};  ///< nobody: this rank takes no part
  bool holds_a{true};   ///< its group is that of the lower ranks
  element_range keep;   ///< of its slice: what it receives of the other vector, and combines
  element_range give;   ///< of its slice: what the partner receives, and combines
  /// With whom the scalars of both groups are added up, one after the other; as long on all ranks,
  /// `nobody` where this rank takes no part.
  std::vector<int> sharers;
  int holders{1};   ///< ranks that a vector is spread over, in slices
  int a_leaves{1};  ///< ranks whose gradients a is made of
  int b_leaves{1};
};

/// The binary tree in which the gradients of any number of ranks are joined.
///
/// With p the largest power of two that is not above the number of ranks, and s the surplus, first
/// the 2s lowest ranks are joined in pairs of neighbours, then the p results pairwise as
/// neighbours:
///
///     W = 4: ((0 1) (2 3))      W = 3: ((0 1) 2)      W = 6: (((0 1) (2 3)) (4 5))
///     W = 5: (((0 1) 2) (3 4))                        W = 7: (((0 1) (2 3)) ((4 5) 6))
///
/// It depends on the number of ranks alone, never on where they run.
/// Source: recursive vector halving with distance doubling as in Maleki et al. 2020, arXiv
/// 2006.02924; the fold of surplus ranks as in Rabenseifner, Träff 2004 (EuroPVM/MPI, p. 36).
class rank_tree {
 public:
  /// @param ranks  at least 1.
  explicit rank_tree(int ranks)
      : ranks_{ranks},
        power_{static_cast<int>(std::bit_floor(static_cast<unsigned>(ranks)))},
        surplus_{ranks - power_} {
    expects(ranks >= 1, "rank_tree: needs at least one rank");
  }

  /// Ranks that hand their gradients to a neighbour first, and get the result from it in the end.
  [[nodiscard]] int surplus() const noexcept { return surplus_; }

  /// The part of `rank` in each level, for `count` elements; as many levels on all ranks.
  ///
  /// Slices are halved at multiples of `granularity` elements. Run backwards, giving `keep` and
  /// receiving `give`, the levels gather the result on all ranks.
  [[nodiscard]] std::vector<tree_level> levels(int rank,
                                               std::size_t count,
                                               std::size_t granularity = 1) const {
    expects(rank >= 0 && rank < ranks_, "rank_tree: no such rank");
    expects(granularity > 0, "rank_tree: the granularity must be at least 1");
    auto result       = std::vector<tree_level>{};
    auto const all    = element_range{.begin = 0, .end = count};
    auto const folds  = rank < 2 * surplus_;
    auto const folded = folds && rank % 2 == 1;
    if (surplus_ > 0) { result.push_back(folds ? fold(rank, all) : idle(1)); }
    auto slice = all;
    for (auto distance = 1, sharers = 1; distance < power_; distance *= 2, ++sharers) {
      if (folded) {
        result.push_back(idle(sharers));
        continue;
      }
      result.push_back(halve(rank, distance, slice, granularity));
      slice = result.back().keep;
    }
    return result;
  }

 private:
  [[nodiscard]] int position_of(int rank) const noexcept {
    return rank < 2 * surplus_ ? rank / 2 : rank - surplus_;
  }
  [[nodiscard]] int rank_at(int position) const noexcept {
    return position < surplus_ ? 2 * position : position + surplus_;
  }
  [[nodiscard]] int leaves(int position, int count) const noexcept {
    return count + std::clamp(surplus_ - position, 0, count);
  }

  [[nodiscard]] static tree_level idle(int sharers) {
    auto result = tree_level{};
    result.sharers.assign(static_cast<std::size_t>(sharers), tree_level::nobody);
    return result;
  }

  /// The even rank gets and combines all of the odd one's vector.
  [[nodiscard]] static tree_level fold(int rank, element_range all) {
    auto result                                  = tree_level{};
    result.holds_a                               = rank % 2 == 0;
    result.partner                               = result.holds_a ? rank + 1 : rank - 1;
    result.sharers                               = {result.partner};
    (result.holds_a ? result.keep : result.give) = all;
    return result;
  }

  [[nodiscard]] tree_level halve(int rank,
                                 int distance,
                                 element_range slice,
                                 std::size_t granularity) const {
    auto const position = position_of(rank);
    auto const first    = position / (2 * distance) * (2 * distance);
    auto const half     = (slice.count() + 1) / 2;
    auto const lower    = (half + granularity - 1) / granularity * granularity;
    auto const middle   = slice.begin + std::min(lower, slice.count());
    auto result         = tree_level{};
    result.holds_a      = position < first + distance;
    result.partner      = rank_at(result.holds_a ? position + distance : position - distance);
    result.keep         = {.begin = slice.begin, .end = middle};
    result.give         = {.begin = middle, .end = slice.end};
    if (!result.holds_a) { std::swap(result.keep, result.give); }
    result.holders  = distance;
    result.a_leaves = leaves(first, distance);
    result.b_leaves = leaves(first + distance, distance);
    for (auto d = 1; d <= distance; d *= 2) {
      auto const upper = (position / d) % 2 == 1;
      result.sharers.push_back(rank_at(upper ? position - d : position + d));
    }
    return result;
  }

  int ranks_;
  int power_;
  int surplus_;
};

}  // namespace gradlane

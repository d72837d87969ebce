// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>      // for bit_ceil
#include <cstddef>  // for size_t
#include <cstdint>  // for uint32_t
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
      : leaves_{std::bit_ceil(parts)}, loads_(leaves_, closed), winners_(2 * leaves_) {
    for (std::size_t p = 0; p < parts; ++p) { loads_[p] = {}; }
    for (std::size_t p = 0; p < leaves_; ++p) {
      winners_[leaves_ + p] = static_cast<std::uint32_t>(p);
    }
    for (auto node = leaves_ - 1; node > 0; --node) { play(node); }
  }

  [[nodiscard]] std::uint32_t top() const { return winners_[1]; }
  [[nodiscard]] std::size_t top_count() const { return loads_[top()].count; }

  void give(double cost) {
    auto& winner = loads_[top()];
    winner.cost += cost;
    ++winner.count;
    replay();
  }

  /// Takes the top out, for good.
  void close_top() {
    loads_[top()] = closed;
    replay();
  }

 private:
  struct load {
    double cost{};
    std::size_t count{};
  };
  static constexpr auto closed =
      load{std::numeric_limits<double>::infinity(), std::numeric_limits<std::size_t>::max()};

  void replay() {
    for (auto node = (leaves_ + top()) / 2; node > 0; node /= 2) { play(node); }
  }

  void play(std::size_t node) {
    auto const left  = winners_[2 * node];
    auto const right = winners_[2 * node + 1];
    auto const& l    = loads_[left];
    auto const& r    = loads_[right];
    auto const wins =
        static_cast<unsigned>(r.cost < l.cost) |
        (static_cast<unsigned>(r.cost == l.cost) & static_cast<unsigned>(r.count < l.count));
    winners_[node] = wins != 0 ? right : left;
  }

  std::size_t leaves_;
  std::vector<load> loads_;
  std::vector<std::uint32_t> winners_;  // node n has the children 2n and 2n + 1; [leaves_ + p] is p
};

}  // namespace gradlane::balance::detail

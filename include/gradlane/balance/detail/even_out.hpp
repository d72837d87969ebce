// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>   // for size_t
#include <cstdint>   // for uint32_t
#include <optional>  // for optional
#include <span>      // for span
#include <vector>    // for vector

namespace gradlane::balance::detail {

/// Exchanges pairs of samples between the dearest and the cheapest part, until that helps no more
/// or the dearest is all but equal to the mean.
class even_out {
 public:
  /// @param costs  of the samples, largest first.
  /// @param part   of each sample, to be changed; below `parts`.
  even_out(std::span<double const> costs, std::span<std::uint32_t> part, std::size_t parts)
      : costs_{costs}, part_{part}, loads_(parts) {
    auto sum = 0.0;
    for (std::size_t i = 0; i < part.size(); ++i) {
      loads_[part[i]] += costs[i];
      sum += costs[i];
    }
    enough_ = sum / static_cast<double>(parts) * (1 + 0x1p-12);
  }

  void run(std::size_t most_swaps) {
    for (std::size_t n = 0; n < most_swaps; ++n) {
      if (!swap_once()) { return; }
    }
  }

 private:
  struct pair {
    std::uint32_t dear;
    std::uint32_t cheap;
  };

  [[nodiscard]] bool swap_once() {
    std::uint32_t high = 0;
    std::uint32_t low  = 0;
    for (std::uint32_t p = 1; p < loads_.size(); ++p) {
      if (loads_[p] > loads_[high]) { high = p; }
      if (loads_[p] < loads_[low]) { low = p; }
    }
    if (loads_[high] <= enough_) { return false; }
    auto const found = best_pair(high, low);
    if (!found) { return false; }
    auto const moved = costs_[found->dear] - costs_[found->cheap];
    loads_[high] -= moved;
    loads_[low] += moved;
    part_[found->dear]  = low;
    part_[found->cheap] = high;
    return true;
  }

  /// The exchange that leaves the larger of both loads smallest, if it lowers it.
  [[nodiscard]] std::optional<pair> best_pair(std::uint32_t high, std::uint32_t low) {
    gather(high, low);
    auto const gap  = loads_[high] - loads_[low];
    auto best       = std::optional<pair>{};
    auto best_moved = 0.0;  // that of no exchange: half the gap is ideal, the whole gap as bad
    auto const off  = [&](double moved) {
      return moved > gap / 2 ? moved - gap / 2 : gap / 2 - moved;
    };
    std::size_t l = 0;
    for (std::size_t h = 0; h < of_high_.count; ++h) {
      // As the dear one gets cheaper, so does its best partner: both lists are walked once.
      auto const dear     = of_high_.members[h];
      auto const moved_by = [&](std::size_t k) {
        return costs_[dear] - costs_[of_low_.members[k]];
      };
      while (l + 1 < of_low_.count && off(moved_by(l + 1)) <= off(moved_by(l))) { ++l; }
      if (l < of_low_.count && off(moved_by(l)) < off(best_moved)) {
        best_moved = moved_by(l);
        best       = pair{dear, of_low_.members[l]};
      }
    }
    return best;
  }

  /// Some of the samples, dearest first.
  struct list {
    std::vector<std::uint32_t> members{};
    std::size_t count{};
  };

  void gather(std::uint32_t high, std::uint32_t low) {
    of_high_.count = 0;
    of_low_.count  = 0;
    for (std::size_t i = 0; i < part_.size(); ++i) {
      // Written always and kept sometimes: no branches to mispredict.
      of_high_.members[of_high_.count] = static_cast<std::uint32_t>(i);
      of_low_.members[of_low_.count]   = static_cast<std::uint32_t>(i);
      of_high_.count += part_[i] == high ? 1U : 0U;
      of_low_.count += part_[i] == low ? 1U : 0U;
    }
  }

  std::span<double const> costs_;
  std::span<std::uint32_t> part_;
  std::vector<double> loads_;
  double enough_{};  // the dearest part need not be cheaper
  list of_high_{std::vector<std::uint32_t>(costs_.size())};
  list of_low_{std::vector<std::uint32_t>(costs_.size())};
};

}  // namespace gradlane::balance::detail

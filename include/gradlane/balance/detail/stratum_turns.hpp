// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>    // for ceil
#include <cstddef>  // for size_t
#include <cstdint>  // for uint64_t
#include <limits>   // for numeric_limits
#include <span>     // for span
#include <vector>   // for vector

namespace gradlane::balance::detail {

/// When the samples of a stratum have their turns: the k-th at time start + (k + phase) / rate.
struct stratum_times {
  std::uint64_t count{};
  double rate{1.0};   // samples per unit of time
  double phase{0.5};  // in (0, 1)
  double start{0.0};

  [[nodiscard]] double time_of(std::uint64_t k) const noexcept {
    return start + (static_cast<double>(k) + phase) / rate;
  }

  /// After the last one.
  [[nodiscard]] double end() const noexcept { return start + static_cast<double>(count) / rate; }

  /// Samples whose time is before `time`: an estimate, then put right to the last bit.
  [[nodiscard]] std::uint64_t before(double time) const noexcept {
    auto const about = std::ceil((time - start) * rate - phase);
    auto k           = std::uint64_t{0};
    if (about > 0) {
      k = about < static_cast<double>(count) ? static_cast<std::uint64_t>(about) : count;
    }
    while (k > 0 && time_of(k - 1) >= time) { --k; }
    while (k < count && time_of(k) < time) { ++k; }
    return k;
  }
};

/// All turns of all strata by their times, equal ones by stratum, from any position on.
class stratum_turns {
 public:
  /// @param strata  must outlive the turns.
  /// @param first   turns to pass over, at most those that there are.
  stratum_turns(std::span<stratum_times const> strata, std::uint64_t first)
      : strata_{strata}, next_(strata.size()) {
    auto low  = 0.0;  // turns before it are at most `first`
    auto high = 0.0;
    for (auto const& s : strata_) { high = s.end() > high ? s.end() : high; }
    if (before(high) <= first) { low = high; }
    for (auto middle = low + (high - low) / 2; low < middle && middle < high;
         middle      = low + (high - low) / 2) {
      (before(middle) <= first ? low : high) = middle;
    }
    auto passed = std::uint64_t{0};
    for (std::size_t s = 0; s < strata_.size(); ++s) {
      next_[s].k = strata_[s].before(low);
      passed += next_[s].k;
      set_time(s);
    }
    for (; passed < first; ++passed) { static_cast<void>(next()); }
  }

  struct turn {
    std::size_t stratum;
    std::uint64_t k;  // of the stratum's samples
  };

  /// Only as often as there are turns left.
  [[nodiscard]] turn next() {
    auto first = std::size_t{0};
    for (std::size_t s = 1; s < next_.size(); ++s) {
      if (next_[s].time < next_[first].time) { first = s; }
    }
    auto const k = next_[first].k++;
    set_time(first);
    return {first, k};
  }

 private:
  [[nodiscard]] std::uint64_t before(double time) const {
    auto sum = std::uint64_t{0};
    for (auto const& s : strata_) { sum += s.before(time); }
    return sum;
  }

  void set_time(std::size_t s) {
    next_[s].time = next_[s].k < strata_[s].count ? strata_[s].time_of(next_[s].k)
                                                  : std::numeric_limits<double>::infinity();
  }

  struct upcoming {
    std::uint64_t k{};
    double time{};
  };

  std::span<stratum_times const> strata_;
  std::vector<upcoming> next_;
};

/// Where stratum s begins: multiples of the golden ratio, so that neighbouring strata alternate and
/// any stretch holds short samples and long ones, however many strata there are.
[[nodiscard]] inline double phase_of(std::size_t stratum) noexcept {
  constexpr auto half_golden = std::uint64_t{0x4F1BBCDCBFA53E0B};  // as a fraction of 2^64
  auto const turns           = (2 * std::uint64_t{stratum} + 1) * half_golden;
  return (static_cast<double>(turns >> 32U) + 0.5) * 0x1p-32;  // exact
}

}  // namespace gradlane::balance::detail

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>  // for size_t
#include <cstdint>  // for uint32_t, uint64_t
#include <utility>  // for move
#include <vector>   // for vector

namespace simulation {

/// 64 random bits a call, a stream for each (seed, number).
/// Source: SplitMix64; Steele, Lea and Flood, "Fast splittable pseudorandom number generators",
/// 2014.
class random_bits {
 public:
  random_bits(std::uint64_t seed, std::uint64_t number) : state_{mixed(mixed(seed) + number)} {}

  [[nodiscard]] std::uint64_t operator()() { return mixed(state_ += 0x9E3779B97F4A7C15); }

  /// Below `limit`, which is at most 2^32.
  [[nodiscard]] std::uint64_t below(std::uint64_t limit) {
    return (((*this)() >> 32U) * limit) >> 32U;
  }

 private:
  [[nodiscard]] static std::uint64_t mixed(std::uint64_t x) {
    x = (x ^ (x >> 30U)) * 0xBF58476D1CE4E5B9;
    x = (x ^ (x >> 27U)) * 0x94D049BB133111EB;
    return x ^ (x >> 31U);
  }

  std::uint64_t state_;
};

/// Draws values with given weights, in constant time, to within 2^-32 of their probabilities.
/// Source: Walker, "An efficient method for generating discrete random variables", 1977.
template <class Value>
class draws {
 public:
  draws(std::vector<Value> values, std::vector<double> const& weights) {
    auto sum = 0.0;
    for (auto const w : weights) { sum += w; }
    auto share = std::vector<double>{};  // of a cell, which are all equally likely
    auto small = std::vector<std::size_t>{};
    auto large = std::vector<std::size_t>{};
    for (std::size_t i = 0; i < values.size(); ++i) {
      share.push_back(weights[i] / sum * static_cast<double>(values.size()));
      (share[i] < 1 ? small : large).push_back(i);
      cells_.push_back({values[i], values[i], full});
    }
    while (!small.empty() && !large.empty()) {
      auto const low  = small.back();
      auto const high = large.back();
      small.pop_back();
      cells_[low].other = values[high];
      cells_[low].limit = static_cast<std::uint32_t>(share[low] * 0x1p32);
      share[high] -= 1 - share[low];
      if (share[high] < 1) {
        large.pop_back();
        small.push_back(high);
      }
    }
  }

  [[nodiscard]] Value operator()(random_bits& random) const {
    auto const bits   = random();
    auto const& drawn = cells_[((bits >> 32U) * cells_.size()) >> 32U];
    return static_cast<std::uint32_t>(bits) <= drawn.limit ? drawn.own : drawn.other;
  }

 private:
  static constexpr auto full = ~std::uint32_t{0};
  struct cell {
    Value own;
    Value other;
    std::uint32_t limit;
  };
  std::vector<cell> cells_;
};

}  // namespace simulation

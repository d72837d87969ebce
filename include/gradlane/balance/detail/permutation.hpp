// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/detail/mixed.hpp>  // for mixed

#include <cmath>    // for sqrt
#include <cstdint>  // for uint32_t, uint64_t

namespace gradlane::balance::detail {

/// A random order of 0 … size-1 that is computed instead of stored: operator() is a bijection.
///
/// A Feistel cipher on pairs (l, r) with l < rows, r < columns, rows · columns just above size;
/// what falls outside walks on. The same on every machine, since all is integer arithmetic.
/// Source: Black and Rogaway, "Ciphers with arbitrary finite domains", 2002.
class permutation {
 public:
  /// @param size  below 2^32.
  permutation(std::uint64_t size, std::uint64_t key) noexcept
      : size_{size}, rows_{rows_for(size)}, columns_{(size + rows_ - 1) / rows_}, key_{key} {}

  /// @param i  below size.
  [[nodiscard]] std::uint64_t operator()(std::uint64_t i) const noexcept {
    i = shuffled_once(i);
    while (i >= size_) { i = shuffled_once(i); }
    return i;
  }

 private:
  /// So many that all orders of five, six, … samples are equally likely; four would do for many.
  static constexpr std::uint64_t rounds = 24;

  [[nodiscard]] static std::uint64_t rows_for(std::uint64_t size) noexcept {
    auto const root = static_cast<std::uint64_t>(std::sqrt(static_cast<double>(size)));
    return root < 2 ? 2 : root;
  }

  [[nodiscard]] std::uint64_t shuffled_once(std::uint64_t i) const noexcept {
    auto l = i / columns_;
    auto r = i % columns_;
    for (std::uint64_t round = 0; round < rounds; round += 2) {
      l = wrapped(l + below(rows_, r, round), rows_);
      r = wrapped(r + below(columns_, l, round + 1), columns_);
    }
    return l * columns_ + r;
  }

  [[nodiscard]] static std::uint64_t wrapped(std::uint64_t sum, std::uint64_t limit) noexcept {
    return sum < limit ? sum : sum - limit;
  }

  /// A function of the key, the round and `half`, in [0, limit).
  [[nodiscard]] std::uint64_t below(std::uint64_t limit,
                                    std::uint64_t half,
                                    std::uint64_t round) const noexcept {
    auto const bits = gradlane::detail::mixed(key_ ^ (half * rounds + round));
    return ((bits >> 32U) * limit) >> 32U;
  }

  std::uint64_t size_;
  std::uint64_t rows_;
  std::uint64_t columns_;
  std::uint64_t key_;
};

}  // namespace gradlane::balance::detail

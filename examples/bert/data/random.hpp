// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../attention/philox.hpp"  // for philox

#include <cstdint>  // for uint32_t, uint64_t

namespace bert {

/// What random numbers are drawn for; keeps the streams of one seed apart.
enum class draw : std::uint32_t { held_out = 0x48454C44, pairs = 0x50414952, masks = 0x4D41534B };

/// Random numbers that depend on nothing but (seed, purpose, a, b): the same on every machine,
/// rank and thread. Philox with ten rounds, counted up.
class random_stream {
 public:
  random_stream(std::uint32_t seed, draw purpose, std::uint32_t a, std::uint32_t b)
      : seed_{seed}, purpose_{static_cast<std::uint32_t>(purpose)}, a_{a}, b_{b} {}

  [[nodiscard]] std::uint32_t next() {
    auto const place = position_++ % 4;
    if (place == 0) {
      auto const block = position_ / 4;
      words_           = philox<10>(
          {static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32U), a_, b_},
          seed_,
          purpose_);
    }
    return place == 0 ? words_.x : place == 1 ? words_.y : place == 2 ? words_.z : words_.w;
  }

  /// In [0, 1), a multiple of 2^-32.
  [[nodiscard]] double uniform() { return next() * 0x1p-32; }

  /// Below `limit`, which is positive; all numbers are equally likely.
  /// Source: Lemire, "Fast random integer generation in an interval", 2019.
  [[nodiscard]] std::uint32_t below(std::uint32_t limit) {
    auto product = std::uint64_t{next()} * limit;
    if (static_cast<std::uint32_t>(product) < limit) {
      auto const least = (0U - limit) % limit;
      while (static_cast<std::uint32_t>(product) < least) {
        product = std::uint64_t{next()} * limit;
      }
    }
    return static_cast<std::uint32_t>(product >> 32U);
  }

 private:
  std::uint32_t seed_;
  std::uint32_t purpose_;
  std::uint32_t a_;
  std::uint32_t b_;
  std::uint64_t position_ = 0;
  philox_words words_{};
};

}  // namespace bert

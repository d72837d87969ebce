// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../dropout.hpp"  // for dropout, row_bytes, attention_bytes

#include <cstddef>  // for size_t
#include <cstdint>  // for uint8_t, uint16_t, uint32_t
#include <cstring>  // for memcpy

namespace bert::cpu {

/// The factors that bytes stand for. To be copied before a loop over bytes, which is then free of
/// branches.
class byte_factor {
 public:
  explicit byte_factor(dropout const& drop) : threshold_{drop.threshold}, scale_{drop.scale} {}
  [[nodiscard]] float operator()(std::uint8_t byte) const {
    return std::uint32_t{byte} < threshold_ ? scale_ : 0.0F;
  }

 private:
  std::uint32_t threshold_;
  float scale_;
};

/// Bytes of the elements 0 … count - 1 of a row. `bytes` has room for count rounded up to 256.
inline void fill_row_bytes(dropout const& drop,
                           std::uint32_t sample,
                           std::uint32_t position,
                           std::size_t count,
                           std::uint8_t* bytes) {
  constexpr auto lanes = std::uint32_t{16};
  auto const groups    = static_cast<std::uint32_t>((count + 15) / 16);
  for (auto first = std::uint32_t{0}; first < groups; first += lanes) {
    std::uint32_t words[4][lanes];
#pragma omp simd
    for (std::uint32_t lane = 0; lane < lanes; ++lane) {
      auto const random = row_bytes(drop, sample, position, first + lane);
      words[0][lane]    = random.x;
      words[1][lane]    = random.y;
      words[2][lane]    = random.z;
      words[3][lane]    = random.w;
    }
    std::uint32_t in_order[lanes][4];
    for (std::uint32_t lane = 0; lane < lanes; ++lane) {
      for (auto word = 0; word < 4; ++word) { in_order[lane][word] = words[word][lane]; }
    }
    std::memcpy(bytes + std::size_t{16} * first, in_order, sizeof in_order);
  }
}

/// Bytes of queries q0 … q0 + 31 (q0 a multiple of 32) by keys 0 … keys - 1 of one head, as rows
/// of `stride` bytes, a multiple of 64 that is at least `keys`.
inline void fill_attention_bytes(dropout const& head,
                                 std::uint32_t sample,
                                 std::uint32_t q0,
                                 std::size_t keys,
                                 std::size_t stride,
                                 std::uint8_t* bytes) {
  constexpr auto lanes = std::uint32_t{16};  // four to 16 keys
  for (auto q = std::uint32_t{0}; q < 8; ++q) {
    for (auto chunk = std::size_t{0}; chunk < keys; chunk += 64) {
      std::uint32_t words[4][lanes];
#pragma omp simd
      for (std::uint32_t lane = 0; lane < lanes; ++lane) {
        auto const k      = static_cast<std::uint32_t>(chunk) + lane / 4 * 16 + lane % 4 * 2;
        auto const random = attention_bytes(head, sample, q0 + q, k);
        words[0][lane]    = random.x;
        words[1][lane]    = random.y;
        words[2][lane]    = random.z;
        words[3][lane]    = random.w;
      }
      for (auto word = std::size_t{0}; word < 4; ++word) {
        std::uint16_t pairs[32];  // two keys each
        for (std::uint32_t lane = 0; lane < lanes; ++lane) {
          auto const place = lane / 4 * 8 + lane % 4;
          pairs[place]     = static_cast<std::uint16_t>(words[word][lane]);
          pairs[place + 4] = static_cast<std::uint16_t>(words[word][lane] >> 16U);
        }
        std::memcpy(bytes + (q + 8 * word) * stride + chunk, pairs, sizeof pairs);
      }
    }
  }
}

}  // namespace bert::cpu

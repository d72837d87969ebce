// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>  // for uint32_t, uint64_t

// Marks the few pure functions that kernels and ordinary C++ share.
#ifdef __CUDACC__
#define ATTENTION_HOST_DEVICE __host__ __device__
#else
#define ATTENTION_HOST_DEVICE
#endif

namespace bert {

/// Four random words.
struct philox_words {
  std::uint32_t x, y, z, w;

  friend bool operator==(philox_words const&, philox_words const&) = default;
};

/// Philox4x32: 128 random bits as a pure function of a 128-bit counter and a 64-bit key.
///
/// The same bits on every processor. Seven rounds pass BigCrush, ten are the authors' safety
/// margin. Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
template <int Rounds = 7>
[[nodiscard]] ATTENTION_HOST_DEVICE constexpr philox_words philox(philox_words counter,
                                                                  std::uint32_t key_low,
                                                                  std::uint32_t key_high) noexcept {
  for (auto round = 0; round < Rounds; ++round) {
    auto const a = std::uint64_t{0xD2511F53U} * counter.x;
    auto const b = std::uint64_t{0xCD9E8D57U} * counter.z;
    counter      = {static_cast<std::uint32_t>(b >> 32U) ^ counter.y ^ key_low,
                    static_cast<std::uint32_t>(b),
                    static_cast<std::uint32_t>(a >> 32U) ^ counter.w ^ key_high,
                    static_cast<std::uint32_t>(a)};
    key_low += 0x9E3779B9U;
    key_high += 0xBB67AE85U;
  }
  return counter;
}

}  // namespace bert

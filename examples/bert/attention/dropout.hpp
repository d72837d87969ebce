// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "philox.hpp"  // for philox, ATTENTION_HOST_DEVICE

#include <cstdint>  // for uint32_t

namespace bert {

/// Dropout at one place of the model in one step.
///
/// A mask is a pure function of (seed, step, site, global sample id, position[s]) and so does not
/// know how samples are dealt to ranks, batches or threads. One call of Philox gives 16 bytes, one
/// to an element; a byte below `threshold` keeps its element, which is then multiplied by `scale`
/// = 256 / threshold. So a probability is rounded to 256ths (0.1 becomes 26/256), without bias.
struct dropout {
  std::uint32_t seed      = 0;
  std::uint32_t step      = 0;
  std::uint32_t site      = 0;
  std::uint32_t threshold = 256;  // 256: keep all
  float scale             = 1;
  /// Where not null: device memory that has the step when kernels run, in place of `step`; so a
  /// captured graph can be replayed for other steps.
  std::uint32_t const* step_at = nullptr;

  [[nodiscard]] ATTENTION_HOST_DEVICE constexpr bool enabled() const { return threshold < 256; }
  /// With the step itself, for a kernel to begin with: masks are taken from that.
  [[nodiscard]] ATTENTION_HOST_DEVICE constexpr dropout resolved() const {
    auto result = *this;
    if (step_at != nullptr) { result.step = *step_at; }
    result.step_at = nullptr;
    return result;
  }
};

/// The 16 bytes of a tile of attention probabilities: queries {0, 8, 16, 24} + q % 8 of a block of
/// 32 (one to a word) by keys {0, 1, 8, 9} + 2 ((k % 8) / 2) of a block of 16 (one to a byte).
/// That is what one thread holds in the tensor cores' 16 x 8 layout, whichever of the two is rows.
[[nodiscard]] ATTENTION_HOST_DEVICE constexpr philox_words attention_bytes(dropout const& head,
                                                                           std::uint32_t sample,
                                                                           std::uint32_t q,
                                                                           std::uint32_t k) {
  return philox(
      {q / 32 * 8 + q % 8, k / 16 * 4 + k % 8 / 2, sample, head.site}, head.seed, head.step);
}

namespace detail {

[[nodiscard]] ATTENTION_HOST_DEVICE constexpr std::uint32_t byte_of(philox_words const& words,
                                                                    std::uint32_t word,
                                                                    std::uint32_t byte) {
  auto const value = word == 0 ? words.x : word == 1 ? words.y : word == 2 ? words.z : words.w;
  return value >> 8 * byte & 0xFFU;
}

}  // namespace detail

/// The factor of one attention probability: 0 where dropped, else `scale`.
[[nodiscard]] ATTENTION_HOST_DEVICE constexpr float attention_factor(dropout const& head,
                                                                     std::uint32_t sample,
                                                                     std::uint32_t q,
                                                                     std::uint32_t k) {
  if (!head.enabled()) { return 1; }
  auto const words = attention_bytes(head, sample, q, k);
  auto const byte  = detail::byte_of(words, q / 8 % 4, k / 8 % 2 * 2 + k % 2);
  return byte < head.threshold ? head.scale : 0;
}

}  // namespace bert

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "config.hpp"  // for model_config
#include "philox.hpp"  // for philox

#include <gradlane/detail/host_device.hpp>  // for GRADLANE_HOST_DEVICE

#include <cstddef>  // for size_t
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

  [[nodiscard]] GRADLANE_HOST_DEVICE constexpr bool enabled() const { return threshold < 256; }
};

/// The sites: embeddings, and in each layer the attention's output, the feed-forward's output and
/// the attention probabilities of every head.
class dropout_sites {
 public:
  /// @param probability  of dropping; 0 disables. `seed` and `step` are Philox's key.
  dropout_sites(model_config const& config,
                double probability,
                std::uint32_t seed,
                std::uint32_t step)
      : heads_{static_cast<std::uint32_t>(config.num_attention_heads)},
        layers_{static_cast<std::uint32_t>(config.num_hidden_layers)} {
    base_.seed      = seed;
    base_.step      = step;
    base_.threshold = static_cast<std::uint32_t>(256 * (1 - probability) + 0.5);
    base_.scale     = 256.0F / static_cast<float>(base_.threshold);
  }

  [[nodiscard]] dropout embeddings() const { return at(layers_ * (heads_ + 2)); }
  [[nodiscard]] dropout attention_output(std::size_t layer) const { return at(first(layer)); }
  [[nodiscard]] dropout feed_forward_output(std::size_t layer) const {
    return at(first(layer) + 1);
  }
  /// The site of head 0; head h of the same layer has site + h.
  [[nodiscard]] dropout attention_heads(std::size_t layer) const { return at(first(layer) + 2); }

 private:
  [[nodiscard]] std::uint32_t first(std::size_t layer) const {
    return static_cast<std::uint32_t>(layer) * (heads_ + 2);
  }
  [[nodiscard]] dropout at(std::uint32_t site) const {
    auto result = base_;
    result.site = site;
    return result;
  }

  std::uint32_t heads_;
  std::uint32_t layers_;
  dropout base_{};
};

/// The 16 bytes of elements 16 * group … 16 * group + 15 of the row at `position` of a sample:
/// element 4 w + b of the group has byte b (least significant first) of word w.
[[nodiscard]] GRADLANE_HOST_DEVICE constexpr philox_words row_bytes(dropout const& at,
                                                                    std::uint32_t sample,
                                                                    std::uint32_t position,
                                                                    std::uint32_t group) {
  return philox({position, group, sample, at.site}, at.seed, at.step);
}

/// The 16 bytes of a tile of attention probabilities: queries {0, 8, 16, 24} + q % 8 of a block of
/// 32 (one to a word) by keys {0, 1, 8, 9} + 2 ((k % 8) / 2) of a block of 16 (one to a byte).
/// That is what one thread holds in the tensor cores' 16 x 8 layout, whichever of the two is rows.
[[nodiscard]] GRADLANE_HOST_DEVICE constexpr philox_words attention_bytes(dropout const& head,
                                                                          std::uint32_t sample,
                                                                          std::uint32_t q,
                                                                          std::uint32_t k) {
  return philox(
      {q / 32 * 8 + q % 8, k / 16 * 4 + k % 8 / 2, sample, head.site}, head.seed, head.step);
}

namespace detail {

[[nodiscard]] GRADLANE_HOST_DEVICE constexpr std::uint32_t byte_of(philox_words const& words,
                                                                   std::uint32_t word,
                                                                   std::uint32_t byte) {
  auto const value = word == 0 ? words.x : word == 1 ? words.y : word == 2 ? words.z : words.w;
  return value >> 8 * byte & 0xFFU;
}

}  // namespace detail

/// The factor of one element of a row: 0 where dropped, else `scale`.
[[nodiscard]] GRADLANE_HOST_DEVICE constexpr float row_factor(dropout const& at,
                                                              std::uint32_t sample,
                                                              std::uint32_t position,
                                                              std::uint32_t element) {
  if (!at.enabled()) { return 1; }
  auto const words = row_bytes(at, sample, position, element / 16);
  return detail::byte_of(words, element % 16 / 4, element % 4) < at.threshold ? at.scale : 0;
}

/// The factor of one attention probability: 0 where dropped, else `scale`.
[[nodiscard]] GRADLANE_HOST_DEVICE constexpr float attention_factor(dropout const& head,
                                                                    std::uint32_t sample,
                                                                    std::uint32_t q,
                                                                    std::uint32_t k) {
  if (!head.enabled()) { return 1; }
  auto const words = attention_bytes(head, sample, q, k);
  auto const byte  = detail::byte_of(words, q / 8 % 4, k / 8 % 2 * 2 + k % 2);
  return byte < head.threshold ? head.scale : 0;
}

}  // namespace bert

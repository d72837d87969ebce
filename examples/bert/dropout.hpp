// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attention/dropout.hpp"  // for dropout, attention_factor
#include "config.hpp"             // for model_config

#include <gradlane/detail/host_device.hpp>  // for GRADLANE_HOST_DEVICE

#include <cstddef>  // for size_t
#include <cstdint>  // for uint32_t

namespace bert {

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

  /// The same, but for the step, which the device is to read there when it runs.
  [[nodiscard]] dropout_sites with_step_at(std::uint32_t const* in_device_memory) const {
    auto result          = *this;
    result.base_.step_at = in_device_memory;
    return result;
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

/// The factor of one element of a row: 0 where dropped, else `scale`.
[[nodiscard]] GRADLANE_HOST_DEVICE constexpr float row_factor(dropout const& at,
                                                              std::uint32_t sample,
                                                              std::uint32_t position,
                                                              std::uint32_t element) {
  if (!at.enabled()) { return 1; }
  auto const words = row_bytes(at, sample, position, element / 16);
  return detail::byte_of(words, element % 16 / 4, element % 4) < at.threshold ? at.scale : 0;
}

}  // namespace bert

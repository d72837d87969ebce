// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../step_numbers.hpp"  // for step_numbers
#include "../step_value.hpp"    // for step_value
#include "memory.hpp"           // for device_buffer
#include "prefetch.hpp"         // for prefetch

#include <gradlane/cuda/stream.hpp>  // for stream

#include <cstddef>  // for byte
#include <cstdint>  // for uint32_t
#include <cstring>  // for memcpy

namespace bert::cuda {

/// A step's numbers in the device's memory, always in the same place.
class step_memory {
 public:
  /// Copies them in the stream's order. Waits only where the stream is two steps behind.
  void upload(step_numbers const& now, gradlane::cuda::stream const& stream) {
    auto* const from = uploads_.sync_next(sizeof now, stream.device_index());
    std::memcpy(from, &now, sizeof now);
    uploads_.deliver(reinterpret_cast<std::byte*>(numbers_.data()), sizeof now, stream);
  }

  [[nodiscard]] step_value<double> masked_lm_scale() const {
    return step_value<double>::at(&numbers_.data()->masked_lm_scale);
  }
  [[nodiscard]] step_value<double> next_sentence_scale() const {
    return step_value<double>::at(&numbers_.data()->next_sentence_scale);
  }
  [[nodiscard]] step_value<double> learning_rate() const {
    return step_value<double>::at(&numbers_.data()->learning_rate);
  }
  /// For dropout_sites::with_step_at.
  [[nodiscard]] std::uint32_t const* step() const { return &numbers_.data()->step; }

 private:
  device_buffer<step_numbers> numbers_{1};
  prefetch uploads_;
};

}  // namespace bert::cuda

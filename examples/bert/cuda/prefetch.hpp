// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "memory.hpp"  // for device_buffer

#include <gradlane/cuda/event.hpp>   // for event
#include <gradlane/cuda/memory.hpp>  // for pinned_buffer
#include <gradlane/cuda/stream.hpp>  // for stream

#include <array>     // for array
#include <cstddef>   // for byte, size_t
#include <optional>  // for optional

namespace bert::cuda {

/// Copies from the host to one place of the device, for a stream that reads that place over and
/// over: while it works on one delivery, the next crosses the bus on a stream of its own, and all
/// that is left in the reader's order is a copy inside of the device.
///
///     copies   wait for the delivery before the last ▶ to the device
///     reader                                            wait ▶ to its place ▶ work
///
/// Not thread-safe; not to be called while the reader is captured.
class prefetch {
 public:
  /// Makes room for deliveries of that size; returns the bytes of device memory.
  std::size_t reserve(std::size_t bytes, int device);

  /// Memory to write the next delivery to. Waits only where the copies have not come as far as the
  /// delivery before the last.
  [[nodiscard]] std::byte* sync_next(std::size_t bytes, int device);

  /// Enqueues the delivery of what was written there; the place must not have been changed in size
  /// or freed before the reader's earlier work is done.
  void deliver(std::byte* place, std::size_t bytes, gradlane::cuda::stream const& reader);

 private:
  struct delivery {
    gradlane::cuda::pinned_buffer from;
    device_buffer<std::byte> landing;
    gradlane::cuda::event arrived;  // on the device
    gradlane::cuda::event taken;    // by the reader
  };

  std::optional<gradlane::cuda::stream> copies_;
  std::array<std::optional<delivery>, 2> deliveries_;  // in turns
  std::size_t turn_ = 0;
};

}  // namespace bert::cuda

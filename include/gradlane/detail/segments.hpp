// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/concepts.hpp>            // for device
#include <gradlane/detail/host_device.hpp>  // for GRADLANE_HOST_DEVICE

#include <cstddef>  // for byte, size_t
#include <cstring>  // for memcpy

namespace gradlane::detail {

/// Contiguous bytes to copy, from and to device memory.
struct segment {
  std::byte const* from;
  std::byte* to;
  std::size_t bytes;
};

/// Copies segments one after the other; `table` lies in device memory.
struct segment_copy {
  segment const* table;
  std::size_t count;

  GRADLANE_HOST_DEVICE void operator()() const {
    for (std::size_t i = 0; i < count; ++i) {
      if (table[i].bytes > 0) { std::memcpy(table[i].to, table[i].from, table[i].bytes); }
    }
  }
};

/// Stream-ordered. A device with a `copy_segments(stream, table, count)` of its own does it in
/// that, as one where many threads copy will; else one thread of the device copies all.
template <device Device>
void copy_segments(Device& device,
                   typename Device::stream& stream,
                   segment const* table,
                   std::size_t count) {
  if (count == 0) { return; }
  if constexpr (requires { device.copy_segments(stream, table, count); }) {
    device.copy_segments(stream, table, count);
  } else {
    device.invoke(stream, segment_copy{.table = table, .count = count});
  }
}

}  // namespace gradlane::detail

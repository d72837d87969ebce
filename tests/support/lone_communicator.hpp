// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/buffer_view.hpp>              // for buffer_view, const_buffer_view
#include <gradlane/concepts.hpp>                 // for capability_set, device, no_deadline, ...
#include <gradlane/detail/collective_calls.hpp>  // for collective_calls
#include <gradlane/types.hpp>                    // for dtype, is_floating

#include <cstddef>          // for size_t
#include <source_location>  // for source_location
#include <vector>           // for vector

namespace gradlane::test {

/// A group of one rank on any device, by the device's own copies: for what a pipeline does itself.
template <device Device, bool Scales>
class lone_communicator
    : public gradlane::detail::collective_calls<lone_communicator<Device, Scales>,
                                                typename Device::stream> {
  using stream = typename Device::stream;

 public:
  static constexpr capability_set capabilities{.premultiplied_sum = Scales};

  explicit lone_communicator(Device& device) : device_{&device} {}

  [[nodiscard]] int rank() const noexcept { return 0; }
  [[nodiscard]] int size() const noexcept { return 1; }

  [[nodiscard]] static constexpr bool supports_scaled(dtype type) noexcept {
    return is_floating(type);
  }

  void all_reduce_scaled(stream& on,
                         const_buffer_view in,
                         buffer_view out,
                         float const* coefficient)
    requires Scales
  {
    device_->cast(on, in, out, coefficient);
  }

  void set_deadline(timeout) {}
  [[nodiscard]] static timeout deadline() { return no_deadline; }
  void poll() {}
  void abort() noexcept {}
  [[nodiscard]] lone_communicator split(int, int) { return *this; }
  [[nodiscard]] lone_communicator node_group() { return *this; }

 private:
  friend class gradlane::detail::collective_calls<lone_communicator, stream>;

  template <class Operation, class Fill>
  void issue(stream& on,
             Operation,
             const_buffer_view in,
             buffer_view out,
             int,
             std::source_location,
             Fill) {
    device_->copy(on, in, out);
  }

  Device* device_;
};

}  // namespace gradlane::test

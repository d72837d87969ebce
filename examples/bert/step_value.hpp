// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/detail/host_device.hpp>  // for GRADLANE_HOST_DEVICE

namespace bert {

/// A number that differs from step to step: told when work is enqueued, or found by the device in
/// its own memory when the work runs, so that a captured graph can be replayed for other steps.
template <class T>
class step_value {
 public:
  constexpr step_value(T value) : value_{value} {}  // NOLINT(google-explicit-constructor)
  /// @param in_device_memory  written in the order of the stream, before the work that reads it.
  [[nodiscard]] static constexpr step_value at(T const* in_device_memory) {
    auto result = step_value{T{}};
    result.at_  = in_device_memory;
    return result;
  }

  /// The same, multiplied by a number that the device finds in its memory: by a loss scale.
  /// Null: 1.
  [[nodiscard]] constexpr step_value times(float const* in_device_memory) const {
    auto result    = *this;
    result.factor_ = in_device_memory;
    return result;
  }

  /// To be called by the device.
  [[nodiscard]] GRADLANE_HOST_DEVICE constexpr T read() const {
    auto const value = at_ == nullptr ? value_ : *at_;
    return factor_ == nullptr ? value : value * static_cast<T>(*factor_);
  }

 private:
  T value_;
  T const* at_         = nullptr;
  float const* factor_ = nullptr;
};

}  // namespace bert

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/cuda/error.hpp>  // for check

#include <cuda_runtime_api.h>

#include <source_location>  // for source_location

namespace gradlane::cuda {

/// Makes a device the host thread's current one, and at its end the one that was so before.
class [[nodiscard]] device_guard {
 public:
  /// @throws error where there is no such device.
  explicit device_guard(int device, std::source_location at = std::source_location::current()) {
    check(cudaGetDevice(&before_), at);
    if (device == before_) { return; }
    check(cudaSetDevice(device), at);
    changed_ = true;
  }
  device_guard(device_guard const&)            = delete;
  device_guard& operator=(device_guard const&) = delete;
  ~device_guard() {
    if (changed_) { static_cast<void>(cudaSetDevice(before_)); }
  }

 private:
  int before_{0};
  bool changed_{false};
};

}  // namespace gradlane::cuda

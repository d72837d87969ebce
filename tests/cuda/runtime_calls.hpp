// SPDX-License-Identifier: Apache-2.0
#pragma once

// Counts of calls that a step must not make: runtime_calls.cpp, linked into a program, stands
// before the shared CUDA runtime.

#include <cuda_runtime_api.h>

#include <atomic>  // for atomic

namespace gradlane::test {

/// Calls since the start of the program, by any thread.
struct runtime_calls {
  std::atomic<int> blocking{0};     ///< that wait for the device
  std::atomic<int> queries{0};      ///< of streams and events
  std::atomic<int> allocations{0};  ///< and frees, of device and pinned memory
  std::atomic<int> waits{0};        ///< cudaStreamWaitEvent on `watched`
  std::atomic<cudaStream_t> watched{nullptr};
};

inline runtime_calls calls;

}  // namespace gradlane::test

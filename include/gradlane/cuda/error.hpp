// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/error.hpp>  // for error

#include <cuda_runtime_api.h>

#include <source_location>  // for source_location
#include <string>           // for string

namespace gradlane::cuda {

/// The CUDA runtime reported an error; what() holds its name and text.
///
/// Errors of kernels are found by a later call, of any stream: most of them spoil the context, and
/// with it all streams and memory of the device for the rest of the process.
class error : public gradlane::error {
 public:
  explicit error(cudaError_t code, std::source_location at = std::source_location::current())
      : gradlane::error{std::string{cudaGetErrorName(code)} + ": " + cudaGetErrorString(code), at},
        code_{code} {}

  [[nodiscard]] cudaError_t code() const noexcept { return code_; }

 private:
  cudaError_t code_;
};

/// Takes the runtime's "last error" away, so that nobody finds it who did not cause it.
/// @throws error unless `status` is cudaSuccess.
inline void check(cudaError_t status, std::source_location at = std::source_location::current()) {
  if (status != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    throw error{status, at};
  }
}

}  // namespace gradlane::cuda

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/cuda/error.hpp>  // for check

#include <cuda_runtime_api.h>

#include <cstdint>          // for uint64_t
#include <source_location>  // for source_location

namespace gradlane::cuda::detail {

/// Which capture into a graph the stream takes part in, or 0. Captures have numbers of their own
/// for the life of the process.
[[nodiscard]] inline std::uint64_t capture_of(
    cudaStream_t stream, std::source_location at = std::source_location::current()) {
  auto status = cudaStreamCaptureStatusNone;
  auto id     = 0ULL;
#if CUDART_VERSION >= 13000
  check(cudaStreamGetCaptureInfo(stream, &status, &id, nullptr, nullptr, nullptr, nullptr), at);
#else
  check(cudaStreamGetCaptureInfo_v2(stream, &status, &id, nullptr, nullptr, nullptr), at);
#endif
  return status == cudaStreamCaptureStatusNone ? 0 : id;
}

/// Lets the host thread allocate and query while it captures, which is sound where no captured work
/// is concerned.
class [[nodiscard]] relaxed_capture {
 public:
  explicit relaxed_capture(std::source_location at = std::source_location::current()) {
    check(cudaThreadExchangeStreamCaptureMode(&mode_), at);
  }
  relaxed_capture(relaxed_capture const&)            = delete;
  relaxed_capture& operator=(relaxed_capture const&) = delete;
  ~relaxed_capture() { static_cast<void>(cudaThreadExchangeStreamCaptureMode(&mode_)); }

 private:
  cudaStreamCaptureMode mode_{cudaStreamCaptureModeRelaxed};
};

}  // namespace gradlane::cuda::detail

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/cuda/device_guard.hpp>     // for device_guard
#include <gradlane/cuda/error.hpp>            // for check
#include <gradlane/cuda/fault.hpp>            // for fault
#include <gradlane/detail/unique_handle.hpp>  // for unique_handle
#include <gradlane/error.hpp>                 // for expects
#include <gradlane/types.hpp>                 // for stream_priority

#include <cuda_runtime_api.h>

#include <cstddef>          // for nullptr_t
#include <cstdint>          // for uintptr_t
#include <memory>           // for make_shared, shared_ptr
#include <source_location>  // for source_location

namespace gradlane::cuda {

namespace detail {

/// The empty value is not null, which is CUDA's legacy default stream.
struct stream_traits {
  struct handle_type {
    cudaStream_t stream;
    bool owned;
    friend bool operator==(handle_type const&, handle_type const&) = default;
  };
  [[nodiscard]] static handle_type empty() noexcept {
    return {reinterpret_cast<cudaStream_t>(~std::uintptr_t{0}), false};
  }
  static void destroy(handle_type handle) noexcept {
    if (!handle.owned) { return; }
    static_cast<void>(cudaStreamSynchronize(handle.stream));
    static_cast<void>(cudaStreamDestroy(handle.stream));
    static_cast<void>(cudaGetLastError());
  }
};

[[nodiscard]] inline cudaStream_t make_stream(int device_index,
                                              stream_priority priority,
                                              std::source_location at) {
  auto const guard = device_guard{device_index, at};
  auto least       = 0;
  auto greatest    = 0;
  check(cudaDeviceGetStreamPriorityRange(&least, &greatest), at);
  auto const number = priority == stream_priority::high ? greatest : least;
  auto* stream      = cudaStream_t{};
  check(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, number), at);
  return stream;
}

}  // namespace detail

/// An in-order queue of work on one device, which never waits for the default stream.
///
/// The end of a stream that was made here waits for its work; a borrowed one is left alone.
class stream {
 public:
  /// @throws error where the runtime cannot make one.
  stream(int device_index,
         stream_priority priority,
         std::source_location at = std::source_location::current())
      : handle_{{detail::make_stream(device_index, priority, at), true}}, device_{device_index} {}

  /// Somebody else's stream of that device, which must outlive this object.
  /// @throws contract_error for the default streams, which order themselves with all others.
  [[nodiscard]] static stream borrow(int device_index,
                                     cudaStream_t handle,
                                     std::source_location at = std::source_location::current()) {
    expects(handle != nullptr && handle != cudaStreamLegacy && handle != cudaStreamPerThread,
            "cuda::stream: the default streams order themselves with others; give one that was "
            "made with cudaStreamNonBlocking",
            at);
    return stream{device_index, handle};
  }
  static stream borrow(int device_index, std::nullptr_t) = delete;

  [[nodiscard]] cudaStream_t get() const noexcept { return handle_.get().stream; }
  [[nodiscard]] int device_index() const noexcept { return device_; }

  /// Where communicators leave their failures.
  [[nodiscard]] std::shared_ptr<cuda::fault> const& fault() const noexcept { return fault_; }

 private:
  stream(int device_index, cudaStream_t handle) noexcept
      : handle_{{handle, false}}, device_{device_index} {}

  gradlane::detail::unique_handle<detail::stream_traits> handle_;
  int device_;
  std::shared_ptr<cuda::fault> fault_ = std::make_shared<cuda::fault>();
};

}  // namespace gradlane::cuda

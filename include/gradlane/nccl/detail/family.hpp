// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/cuda/any_device.hpp>  // for any_device, enlist_function, enlister_of
#include <gradlane/cuda/capture.hpp>     // for capture_of
#include <gradlane/cuda/error.hpp>       // for check
#include <gradlane/cuda/event.hpp>       // for event
#include <gradlane/cuda/memory.hpp>      // for buffer
#include <gradlane/cuda/stream.hpp>      // for stream

#include <cuda_runtime_api.h>

#include <cstdint>          // for uint64_t
#include <source_location>  // for source_location

namespace gradlane::nccl::detail {

/// Tells whether the device still has what was made on it: not after cudaDeviceReset, nor while the
/// process ends. What is left goes with the process then.
class lifeline {
 public:
  lifeline(int device_index, std::source_location at) : memory_{device_index, 1, at} {}

  [[nodiscard]] bool holds() const noexcept {
    auto found        = cudaPointerAttributes{};
    auto const status = cudaPointerGetAttributes(&found, memory_.data());
    static_cast<void>(cudaGetLastError());
    return status == cudaSuccess && found.type == cudaMemoryTypeDevice;
  }

 private:
  cuda::buffer memory_;
};

/// Makes the communicators of a device take turns in the order of the host's calls, which is the
/// same on all ranks: two that are under way at once may each hold what the other one waits for.
/// In a graph the order is that of the calls captured.
class launch_order {
 public:
  launch_order(int device_index, std::source_location at) : last_{device_index, at} {}

  void enter(cuda::stream const& on, void const* who, std::source_location at) {
    if (owner_ == nullptr || owner_ == who) { return; }
    if (cuda::detail::capture_of(on.get(), at) != capture_) { return; }
    cuda::check(cudaStreamWaitEvent(on.get(), last_.get(), 0), at);
  }

  void leave(cuda::stream const& on, void const* who, std::source_location at) {
    last_.record(on, at);
    capture_ = cuda::detail::capture_of(on.get(), at);
    owner_   = who;
  }

 private:
  cuda::event last_;
  void const* owner_{nullptr};  // of the last call
  std::uint64_t capture_{0};    // that the last call was part of; 0: none
};

/// What a communicator shares with those that are split from it.
struct family {
  template <cuda::any_device Device>
  family(Device& device, bool blocks, std::source_location at)
      : device_index{device.index()},
        enlist{cuda::enlister_of(device)},
        blocking{blocks},
        alive{device_index, at},
        order{device_index, at} {}

  int device_index;
  cuda::enlist_function enlist;
  bool blocking;  // as NCCL means it
  lifeline alive;
  launch_order order;
};

}  // namespace gradlane::nccl::detail

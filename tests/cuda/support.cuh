// SPDX-License-Identifier: Apache-2.0
#pragma once

// What tests of the CUDA device share: work that holds a stream up, and the fixture of conformance
// tests.

#include <gradlane/cuda/device.cuh>  // for device
#include <gradlane/cuda/error.hpp>   // for check
#include <gradlane/cuda/memory.hpp>  // for pinned_buffer

#include <new>  // for placement new

namespace gradlane::test {

/// Runs until the host sets *open.
template <class Flag>
__global__ void wait_for_flag(Flag const volatile* open) {
  while (*open == 0) { __nanosleep(1000); }
}

/// Runs for about that many microseconds of a GPU; far longer where one is emulated.
template <class Time>
__global__ void spin(Time microseconds) {
  auto const end = clock64() + microseconds * 1500;
  while (clock64() < end) {}
}

/// Work on a stream that ends once open() was called.
class cuda_gate {
 public:
  void hold(cuda::device& d, cuda::stream& s) {
    auto const guard = cuda::device_guard{d.index()};
    wait_for_flag<int><<<1, 1, 0, s.get()>>>(flag_);
    cuda::check(cudaGetLastError());
  }
  void open() { *flag_ = 1; }

 private:
  cuda::pinned_buffer memory_{0, sizeof(int)};
  int volatile* flag_ = new (memory_.data()) int{0};
};

/// What `work` puts on a stream, as a graph.
class captured {
 public:
  template <class Work>
  captured(cuda::stream& on, Work work, cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal) {
    cuda::check(cudaStreamBeginCapture(on.get(), mode));
    work();
    auto* graph = cudaGraph_t{};
    cuda::check(cudaStreamEndCapture(on.get(), &graph));
    cuda::check(cudaGraphInstantiate(&executable_, graph, 0));
    cuda::check(cudaGraphDestroy(graph));
  }
  captured(captured const&)            = delete;
  captured& operator=(captured const&) = delete;
  ~captured() { static_cast<void>(cudaGraphExecDestroy(executable_)); }

  void launch(cuda::stream& on) const { cuda::check(cudaGraphLaunch(executable_, on.get())); }

 private:
  cudaGraphExec_t executable_{};
};

struct on_cuda {
  using device = cuda::device;
  using gate   = cuda_gate;

  static void delay(device& d, device::stream& s, int microseconds) {
    auto const guard = cuda::device_guard{d.index()};
    spin<long long><<<1, 1, 0, s.get()>>>(microseconds);
    cuda::check(cudaGetLastError());
  }
};

}  // namespace gradlane::test

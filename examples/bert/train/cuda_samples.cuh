// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../cuda/memory.hpp"         // for device_buffer
#include "../data/window_reader.hpp"  // for window_reader

#include <gradlane/cuda/device.cuh>    // for device
#include <gradlane/cuda/error.hpp>     // for check
#include <gradlane/cuda/stream.hpp>    // for stream
#include <gradlane/host/device.hpp>    // for device
#include <gradlane/sample_window.hpp>  // for sample_window

#include <cuda_runtime_api.h>

#include <cstddef>  // for byte, size_t
#include <utility>  // for move
#include <vector>   // for vector

namespace bert {

/// Samples that ranks exchange from GPU to GPU: each rank brings what it has read to its own.
template <class Comm>
class cuda_samples {
 public:
  using device       = gradlane::cuda::device;
  using communicator = Comm;

  /// NCCL wants the collectives of different communicators in one order on all ranks.
  static constexpr auto in_any_order = false;

  /// @param ranks  of its own.
  cuda_samples(device& gpu, gradlane::host::device& host, Comm ranks)
      : lane{gpu}, comm{std::move(ranks)}, host_{host}, upload_{gpu.make_stream()} {}

  device& lane;
  Comm comm;

  /// Waits for what `reader` reads, and hands it over. The window before must have been taken, and
  /// the work that takes it done.
  template <class Presort>
  void submit(Presort& to, window_reader& reader, gradlane::sample_window window) {
    host_.sync(reader.stream());
    memory_.resize(window.arrays.size());
    for (auto a = std::size_t{0}; a < window.arrays.size(); ++a) {
      auto& rows = window.arrays[a];
      memory_[a].grow(rows.size());
      gradlane::cuda::check(cudaMemcpyAsync(
          memory_[a].data(), rows.data(), rows.size(), cudaMemcpyHostToDevice, upload_.get()));
      rows = {memory_[a].data(), rows.size()};
    }
    to.submit(upload_, window);
  }

 private:
  gradlane::host::device& host_;
  std::vector<cuda::device_buffer<std::byte>> memory_;  // by array
  gradlane::cuda::stream upload_;                       // last: drains first
};

}  // namespace bert

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "memory.hpp"  // for device_buffer
#include "tuning.hpp"  // for scratch_floats

#include <gradlane/cuda/stream.hpp>  // for stream

#include <cuda_runtime_api.h>

#include <memory>  // for make_shared, shared_ptr
#include <span>    // for span

namespace bert::cuda {

/// The stream that operations are enqueued on, which must outlive this, and memory that each of
/// them may use while it runs: they follow each other, so they share it. Copies refer to the same.
class execution {
 public:
  explicit execution(gradlane::cuda::stream const& on)
      : stream_{on.get()},
        device_{on.device_index()},
        scratch_{std::make_shared<device_buffer<float>>(tuning::scratch_floats)} {}

  [[nodiscard]] cudaStream_t stream() const { return stream_; }
  [[nodiscard]] int device_index() const { return device_; }
  [[nodiscard]] std::span<float> scratch() const { return *scratch_; }

 private:
  cudaStream_t stream_;
  int device_;
  std::shared_ptr<device_buffer<float>> scratch_;
};

}  // namespace bert::cuda

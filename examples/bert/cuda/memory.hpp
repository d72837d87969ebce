// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/cuda/error.hpp>   // for check
#include <gradlane/cuda/memory.hpp>  // for buffer

#include <cuda_runtime_api.h>

#include <cstddef>  // for size_t

namespace bert::cuda {

/// Elements in the memory of the current device, not initialised.
template <class T>
class device_buffer {
 public:
  device_buffer() = default;
  explicit device_buffer(std::size_t size) : size_{size} {
    auto device = 0;
    gradlane::cuda::check(cudaGetDevice(&device));
    bytes_ = gradlane::cuda::buffer{device, size * sizeof(T)};
  }

  [[nodiscard]] T* data() const { return reinterpret_cast<T*>(bytes_.data()); }
  [[nodiscard]] T* begin() const { return data(); }
  [[nodiscard]] T* end() const { return data() + size_; }
  [[nodiscard]] std::size_t size() const { return size_; }

  /// Makes room for `size` elements; what the buffer held is lost if it has to grow.
  void grow(std::size_t size) {
    if (size > size_) { *this = device_buffer{size}; }
  }

 private:
  gradlane::cuda::buffer bytes_;
  std::size_t size_ = 0;
};

}  // namespace bert::cuda

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "on_reference.hpp"  // for without_gaps

#include <gradlane/cuda/error.hpp>   // for check
#include <gradlane/cuda/stream.hpp>  // for stream
#include <gradlane/types.hpp>        // for stream_priority

#include <cuda_runtime_api.h>

#include <bert/cuda/device.hpp>
#include <bert/cuda/memory.hpp>
#include <bert/matrix_view.hpp>

#include <cstddef>  // for size_t
#include <span>     // for span
#include <vector>   // for vector

namespace bert::test {

/// The stream of all that these tests run.
[[nodiscard]] inline gradlane::cuda::stream const& test_stream() {
  static auto const stream = gradlane::cuda::stream{0, gradlane::stream_priority::normal};
  return stream;
}

/// Elements of device memory, once all work is done.
template <class E>
[[nodiscard]] std::vector<E> copy_of(std::span<E const> elements) {
  using gradlane::cuda::check;
  auto result = std::vector<E>(elements.size());
  if (result.empty()) { return result; }
  check(cudaMemcpyAsync(result.data(),
                        elements.data(),
                        elements.size_bytes(),
                        cudaMemcpyDeviceToHost,
                        test_stream().get()));
  check(cudaStreamSynchronize(test_stream().get()));
  return result;
}

/// Elements in device memory; reading them waits for all work.
template <class E>
class device_memory {
 public:
  explicit device_memory(std::vector<E> const& values) : elements_{values.size()} {
    using gradlane::cuda::check;
    if (values.empty()) { return; }
    check(cudaMemcpyAsync(elements_.data(),
                          values.data(),
                          values.size() * sizeof(E),
                          cudaMemcpyHostToDevice,
                          test_stream().get()));
    check(cudaStreamSynchronize(test_stream().get()));
  }

  [[nodiscard]] std::span<E> span() { return elements_; }
  [[nodiscard]] std::vector<E> values() const { return copy_of(std::span<E const>{elements_}); }

 private:
  cuda::device_buffer<E> elements_;
};

/// What operations.hpp, model_run.hpp and golden_run.hpp want to know of a device.
template <class T>
struct on_cuda {
  using value  = T;
  using device = cuda::device<T>;
  template <class E>
  using memory = device_memory<E>;
  [[nodiscard]] static device make() { return device{test_stream()}; }
  /// (rows, cols) of a matrix, once all work is done.
  [[nodiscard]] static std::vector<float> read(matrix_view<T const> m) {
    auto const part = std::span<T const>{m.data, m.rows * m.stride};
    auto host       = copy_of(part);
    auto there      = m;
    there.data      = host.data();
    return without_gaps<float>(there);
  }
};

}  // namespace bert::test

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/cuda/device_guard.hpp>     // for device_guard
#include <gradlane/cuda/error.hpp>            // for check
#include <gradlane/detail/unique_handle.hpp>  // for unique_handle

#include <cuda_runtime_api.h>

#include <cstddef>          // for size_t, byte
#include <source_location>  // for source_location
#include <utility>          // for exchange, move

namespace gradlane::cuda {

namespace detail {

struct device_memory_traits {
  using handle_type = std::byte*;
  [[nodiscard]] static handle_type empty() noexcept { return nullptr; }
  static void destroy(handle_type data) noexcept {
    static_cast<void>(cudaFree(data));
    static_cast<void>(cudaGetLastError());
  }
  [[nodiscard]] static handle_type allocate(int device_index,
                                            std::size_t bytes,
                                            std::source_location at) {
    auto const guard = device_guard{device_index, at};
    void* data       = nullptr;
    check(cudaMalloc(&data, bytes), at);
    return static_cast<std::byte*>(data);
  }
};

struct pinned_memory_traits {
  using handle_type = std::byte*;
  [[nodiscard]] static handle_type empty() noexcept { return nullptr; }
  static void destroy(handle_type data) noexcept {
    static_cast<void>(cudaFreeHost(data));
    static_cast<void>(cudaGetLastError());
  }
  [[nodiscard]] static handle_type allocate(int device_index,
                                            std::size_t bytes,
                                            std::source_location at) {
    auto const guard = device_guard{device_index, at};
    void* data       = nullptr;
    check(cudaHostAlloc(&data, bytes, cudaHostAllocPortable), at);
    return static_cast<std::byte*>(data);
  }
};

/// Owns uninitialised bytes, 256-byte aligned, of the kind that Traits allocates.
template <class Traits>
class basic_buffer {
 public:
  /// Empty.
  basic_buffer() = default;

  /// @throws cuda::error where there is not enough memory. 0 bytes take none.
  basic_buffer(int device_index,
               std::size_t bytes,
               std::source_location at = std::source_location::current())
      : data_{bytes == 0 ? nullptr : Traits::allocate(device_index, bytes, at)}, size_{bytes} {}

  basic_buffer(basic_buffer const&)            = delete;
  basic_buffer& operator=(basic_buffer const&) = delete;
  basic_buffer(basic_buffer&& other) noexcept
      : data_{std::move(other.data_)}, size_{std::exchange(other.size_, 0)} {}
  basic_buffer& operator=(basic_buffer&& other) noexcept {
    data_ = std::move(other.data_);
    size_ = std::exchange(other.size_, 0);
    return *this;
  }
  ~basic_buffer() = default;

  [[nodiscard]] std::byte* data() const noexcept { return data_.get(); }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }

 private:
  gradlane::detail::unique_handle<Traits> data_;
  std::size_t size_{0};
};

}  // namespace detail

/// Memory of a device. Allocating and freeing may wait for work of that device: CUDA does not free
/// what work under way uses.
using buffer = detail::basic_buffer<detail::device_memory_traits>;

/// Host memory that devices copy from and to without the host's help, and that kernels can read.
using pinned_buffer = detail::basic_buffer<detail::pinned_memory_traits>;

}  // namespace gradlane::cuda

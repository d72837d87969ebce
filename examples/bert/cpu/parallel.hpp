// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <omp.h>  // for omp_get_thread_num, omp_get_max_threads

#include <cstddef>  // for size_t
#include <cstdlib>  // for aligned_alloc, free
#include <memory>   // for unique_ptr
#include <new>      // for bad_alloc

namespace bert::cpu {

/// The threads that an operation may use; fixed when the device is made, so that sums which are
/// split over threads are the same in every step and run.
struct execution {
  int threads = omp_get_max_threads();

  [[nodiscard]] std::size_t count() const { return static_cast<std::size_t>(threads); }
};

/// Memory aligned to a cache line. Neither initialised nor copied: activations are written first.
template <class T>
class aligned_buffer {
 public:
  aligned_buffer() = default;
  explicit aligned_buffer(std::size_t size) : size_{size} {
    auto const bytes = (size * sizeof(T) + 63) / 64 * 64;
    data_.reset(static_cast<T*>(std::aligned_alloc(64, bytes)));
    if (data_ == nullptr && size > 0) { throw std::bad_alloc{}; }
  }

  [[nodiscard]] T* data() const { return data_.get(); }
  [[nodiscard]] T* begin() const { return data_.get(); }
  [[nodiscard]] T* end() const { return data_.get() + size_; }
  [[nodiscard]] std::size_t size() const { return size_; }

  /// Makes room for `size` elements; what the buffer held is lost if it has to grow.
  void grow(std::size_t size) {
    if (size > size_) { *this = aligned_buffer{size}; }
  }

 private:
  struct release {
    void operator()(T* memory) const noexcept { std::free(memory); }
  };
  std::unique_ptr<T[], release> data_;
  std::size_t size_ = 0;
};

/// Calls work(first, last, thread) on every thread with its part of 0 … count, parts in order.
template <class Work>
void for_parts(execution const& on, std::size_t count, Work const& work) {
#pragma omp parallel num_threads(on.threads)
  {
    auto const thread = static_cast<std::size_t>(omp_get_thread_num());
    auto const parts  = on.count();
    work(count * thread / parts, count * (thread + 1) / parts, thread);
  }
}

/// Calls work(i, thread) for every i, on whichever thread is free: for parts of unequal weight
/// that write nothing in common.
template <class Work>
void for_each_dynamic(execution const& on, std::size_t count, Work const& work) {
#pragma omp parallel for schedule(dynamic) num_threads(on.threads)
  for (std::size_t i = 0; i < count; ++i) {
    work(i, static_cast<std::size_t>(omp_get_thread_num()));
  }
}

}  // namespace bert::cpu

// SPDX-License-Identifier: Apache-2.0
#pragma once

// Replaces operator new, so that a test can count what is allocated, by any thread. For one
// source file of a program. Not inlined: g++ 12 would see malloc here and delete there and warn.

#include <atomic>   // for atomic
#include <cstddef>  // for size_t
#include <cstdint>  // for uint64_t
#include <cstdlib>  // for aligned_alloc, free, malloc
#include <new>      // for align_val_t, bad_alloc

namespace gradlane::test {

inline std::atomic<std::uint64_t> allocation_counter{0};

/// Allocations by operator new so far, of all threads.
[[nodiscard]] inline std::uint64_t allocations() noexcept {
  return allocation_counter.load(std::memory_order_relaxed);
}

[[nodiscard]] inline void* counted(void* memory) {
  allocation_counter.fetch_add(1, std::memory_order_relaxed);
  if (memory == nullptr) { throw std::bad_alloc{}; }
  return memory;
}

[[nodiscard]] inline void* counted_aligned(std::size_t size, std::align_val_t alignment) {
  auto const step = static_cast<std::size_t>(alignment);
  return counted(std::aligned_alloc(step, (size + step - 1) / step * step));
}

}  // namespace gradlane::test

[[gnu::noinline]] void* operator new(std::size_t size) {
  return gradlane::test::counted(std::malloc(size == 0 ? 1 : size));
}
[[gnu::noinline]] void* operator new[](std::size_t size) {
  return gradlane::test::counted(std::malloc(size == 0 ? 1 : size));
}
[[gnu::noinline]] void* operator new(std::size_t size, std::align_val_t alignment) {
  return gradlane::test::counted_aligned(size, alignment);
}
[[gnu::noinline]] void* operator new[](std::size_t size, std::align_val_t alignment) {
  return gradlane::test::counted_aligned(size, alignment);
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete[](void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete[](void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept {
  std::free(memory);
}

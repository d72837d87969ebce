// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>  // for same_as
#include <utility>   // for exchange, move, swap

namespace gradlane::detail {

/// How a C handle is told from no handle, and how it is given back.
template <class T>
concept handle_traits = requires(typename T::handle_type handle) {
  { T::empty() } noexcept -> std::same_as<typename T::handle_type>;
  { T::destroy(handle) } noexcept -> std::same_as<void>;
};

/// Sole owner of a C handle (stream, event, communicator, datatype). Move-only, one word, no heap.
template <handle_traits Traits>
class unique_handle {
 public:
  using handle_type = typename Traits::handle_type;

  unique_handle() = default;
  explicit unique_handle(handle_type handle) noexcept : handle_{handle} {}
  unique_handle(unique_handle const&)            = delete;
  unique_handle& operator=(unique_handle const&) = delete;
  unique_handle(unique_handle&& other) noexcept : handle_{other.release()} {}
  unique_handle& operator=(unique_handle&& other) noexcept {
    unique_handle{std::move(other)}.swap(*this);
    return *this;
  }
  ~unique_handle() {
    if (*this) { Traits::destroy(handle_); }
  }

  [[nodiscard]] explicit operator bool() const noexcept { return handle_ != Traits::empty(); }
  [[nodiscard]] handle_type get() const noexcept { return handle_; }
  [[nodiscard]] handle_type release() noexcept { return std::exchange(handle_, Traits::empty()); }
  void swap(unique_handle& other) noexcept { std::swap(handle_, other.handle_); }

 private:
  handle_type handle_{Traits::empty()};
};

}  // namespace gradlane::detail

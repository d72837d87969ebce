// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/buffer_view.hpp>  // for buffer_view
#include <gradlane/error.hpp>        // for contract_error
#include <gradlane/types.hpp>        // for dtype, name_of

#include <cstddef>          // for size_t, byte
#include <memory>           // for unique_ptr
#include <mutex>            // for mutex, scoped_lock
#include <new>              // for align_val_t, operator new
#include <source_location>  // for source_location
#include <span>             // for span
#include <string>           // for string, to_string
#include <utility>          // for exchange, move
#include <vector>           // for vector

namespace gradlane::host {

/// Owns uninitialised bytes, 256-byte aligned.
class buffer {
 public:
  static constexpr std::size_t alignment = 256;

  /// Empty.
  buffer() = default;

  /// @throws std::bad_alloc where there is not enough memory.
  explicit buffer(std::size_t bytes)
      : data_{static_cast<std::byte*>(::operator new(bytes, std::align_val_t{alignment}))},
        size_{bytes} {}

  buffer(buffer const&)            = delete;
  buffer& operator=(buffer const&) = delete;
  buffer(buffer&& other) noexcept
      : data_{std::move(other.data_)}, size_{std::exchange(other.size_, 0)} {}
  buffer& operator=(buffer&& other) noexcept {
    data_ = std::move(other.data_);
    size_ = std::exchange(other.size_, 0);
    return *this;
  }
  ~buffer() = default;

  [[nodiscard]] std::byte* data() const noexcept { return data_.get(); }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }

 private:
  struct release {
    void operator()(std::byte* data) const noexcept {
      ::operator delete(data, std::align_val_t{alignment});
    }
  };

  std::unique_ptr<std::byte, release> data_;
  std::size_t size_{0};
};

/// Views that share one dtype. Work enqueued with a list stays valid when the list is moved.
class tensor_list {
 public:
  /// Empty, fp32.
  tensor_list() = default;

  /// @throws contract_error where the dtypes differ.
  explicit tensor_list(std::span<buffer_view const> tensors,
                       std::source_location at = std::source_location::current())
      : tensors_(tensors.begin(), tensors.end()) {
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      if (tensors_[i].type() != type()) {
        throw contract_error{"host::tensor_list: tensor " + std::to_string(i) + " is " +
                                 std::string{name_of(tensors_[i].type())} + ", tensor 0 is " +
                                 std::string{name_of(type())} + "; make one list per dtype",
                             at};
      }
    }
  }

  tensor_list(tensor_list const&)                = delete;
  tensor_list& operator=(tensor_list const&)     = delete;
  tensor_list(tensor_list&&) noexcept            = default;
  tensor_list& operator=(tensor_list&&) noexcept = default;
  ~tensor_list()                                 = default;

  [[nodiscard]] std::span<buffer_view const> tensors() const noexcept { return tensors_; }
  [[nodiscard]] dtype type() const noexcept {
    return tensors_.empty() ? dtype::fp32 : tensors_.front().type();
  }

 private:
  std::vector<buffer_view> tensors_;
};

/// Blocks of memory that hold what upload() was given until the stream gets there. Thread-safe.
class staging_pool {
 public:
  static constexpr std::size_t block_bytes = std::size_t{64} * 1024;

  using block = std::unique_ptr<std::byte[]>;

  staging_pool() { free_.reserve(most_kept); }

  [[nodiscard]] block acquire() {
    {
      auto const lock = std::scoped_lock{mutex_};
      if (!free_.empty()) {
        auto last = std::move(free_.back());
        free_.pop_back();
        return last;
      }
    }
    return block{new std::byte[block_bytes]};
  }

  void release(block used) noexcept {
    auto const lock = std::scoped_lock{mutex_};
    if (free_.size() < most_kept) { free_.push_back(std::move(used)); }
  }

 private:
  static constexpr std::size_t most_kept = 64;

  std::mutex mutex_;
  std::vector<block> free_;
};

}  // namespace gradlane::host

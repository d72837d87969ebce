// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/host/task.hpp>  // for inline_function

#include <atomic>        // for atomic
#include <chrono>        // for nanoseconds, microseconds
#include <cstddef>       // for size_t
#include <list>          // for list
#include <memory>        // for shared_ptr
#include <mutex>         // for unique_lock
#include <shared_mutex>  // for shared_mutex, shared_lock
#include <utility>       // for move, swap

namespace gradlane::host {

/// Makes some progress without blocking; true where something moved, so that more may follow.
///
/// Called by every host thread that waits for the device, possibly by several at once. It must
/// neither throw nor call back into the device.
using progress_function = inline_function<bool>;

/// The progress functions of a device. Thread-safe; running them takes no memory from the heap.
class progress_registry {
 public:
  using entry = std::list<progress_function>::iterator;

  [[nodiscard]] bool empty() const noexcept { return count_.load(std::memory_order_acquire) == 0; }

  /// Runs each function once, in order of registration; true where one of them moved something.
  bool run() {
    auto const lock = std::shared_lock{mutex_};
    auto moved      = false;
    for (auto& function : functions_) { moved = function() || moved; }
    return moved;
  }

  [[nodiscard]] entry add(progress_function function) {
    auto const lock  = std::unique_lock{mutex_};
    auto const where = functions_.insert(functions_.end(), std::move(function));
    count_.store(functions_.size(), std::memory_order_release);
    return where;
  }

  /// Blocks until no thread runs the function.
  void remove(entry where) noexcept {
    auto const lock = std::unique_lock{mutex_};
    functions_.erase(where);
    count_.store(functions_.size(), std::memory_order_release);
  }

 private:
  std::shared_mutex mutex_;
  std::list<progress_function> functions_;
  std::atomic<std::size_t> count_{0};
};

/// Keeps a progress function registered; its end removes the function, and may come after the
/// device's. Once it has ended the function is not running and never runs again.
class [[nodiscard]] progress_registration {
 public:
  progress_registration(std::shared_ptr<progress_registry> registry, progress_function function)
      : registry_{std::move(registry)}, entry_{registry_->add(std::move(function))} {}
  progress_registration(progress_registration const&)            = delete;
  progress_registration& operator=(progress_registration const&) = delete;
  progress_registration(progress_registration&& other) noexcept
      : registry_{std::move(other.registry_)}, entry_{other.entry_} {}
  progress_registration& operator=(progress_registration&& other) noexcept {
    std::swap(registry_, other.registry_);
    std::swap(entry_, other.entry_);
    return *this;
  }
  ~progress_registration() {
    if (registry_) { registry_->remove(entry_); }
  }

 private:
  std::shared_ptr<progress_registry> registry_;
  progress_registry::entry entry_;
};

/// How long a thread that drives progress functions rests between two rounds: not at all while
/// they move something and shortly after, then longer and longer, so that no core is kept busy.
class back_off {
 public:
  [[nodiscard]] std::chrono::nanoseconds next(bool moved) noexcept {
    if (moved) {
      rounds_ = 0;
    } else if (rounds_ < eager_rounds + doublings) {
      ++rounds_;
    }
    if (rounds_ <= eager_rounds) { return std::chrono::nanoseconds{0}; }
    return shortest * (1 << (rounds_ - eager_rounds));
  }

 private:
  static constexpr int eager_rounds = 64;  // each gives the core away once
  static constexpr int doublings    = 5;   // 20 µs … 320 µs
  static constexpr auto shortest    = std::chrono::microseconds{10};

  int rounds_{0};
};

}  // namespace gradlane::host

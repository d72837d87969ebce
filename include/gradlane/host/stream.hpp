// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/error.hpp>          // for error
#include <gradlane/host/progress.hpp>  // for progress_registry, back_off
#include <gradlane/host/task.hpp>      // for task

#include <atomic>              // for atomic
#include <chrono>              // for steady_clock
#include <condition_variable>  // for condition_variable
#include <cstddef>             // for size_t
#include <cstdint>             // for uint64_t
#include <exception>           // for exception_ptr, current_exception
#include <memory>              // for shared_ptr, make_shared
#include <mutex>               // for mutex, unique_lock
#include <string>              // for string
#include <system_error>        // for system_error
#include <thread>              // for thread, yield
#include <utility>             // for move, swap
#include <vector>              // for vector

namespace gradlane::host {

namespace detail {

using clock      = std::chrono::steady_clock;
using time_point = clock::time_point;

/// First in, first out; grows where it is full and never shrinks.
class task_ring {
 public:
  [[nodiscard]] bool empty() const noexcept { return count_ == 0; }

  void push(task&& item) {
    if (count_ == slots_.size()) { grow(); }
    slots_[(head_ + count_) % slots_.size()] = std::move(item);
    ++count_;
  }

  [[nodiscard]] task pop() noexcept {
    auto item = std::move(slots_[head_]);
    head_     = (head_ + 1) % slots_.size();
    --count_;
    return item;
  }

 private:
  void grow() {
    auto larger = std::vector<task>(slots_.empty() ? 256 : 2 * slots_.size());
    for (std::size_t i = 0; i < count_; ++i) {
      larger[i] = std::move(slots_[(head_ + i) % slots_.size()]);
    }
    slots_.swap(larger);
    head_ = 0;
  }

  std::vector<task> slots_;
  std::size_t head_{0};
  std::size_t count_{0};
};

/// What a stream, its thread, the events recorded on it and the streams that wait for those share.
///
/// A place in the queue is the number of tasks put in before it. An event is such a place: it is
/// done once as many tasks are finished, so recording one enqueues nothing and wakes nobody.
class stream_core {
 public:
  using place = std::uint64_t;

  explicit stream_core(std::shared_ptr<progress_registry> progress)
      : progress_{std::move(progress)} {}
  stream_core(stream_core const&)            = delete;
  stream_core& operator=(stream_core const&) = delete;
  ~stream_core()                             = default;

  void enqueue(task&& work) {
    auto lock = std::unique_lock{mutex_};
    tasks_.push(std::move(work));
    ++enqueued_;
    auto const wake = asleep_;
    if (!thread_.joinable()) { start_thread(); }
    lock.unlock();
    if (wake) { work_.notify_one(); }
  }

  /// The place behind all work so far; for the thread that uses the stream.
  [[nodiscard]] place end() const noexcept { return enqueued_; }

  [[nodiscard]] place finished() const noexcept {
    return finished_.load(std::memory_order_acquire);
  }

  [[nodiscard]] bool is_done(place where) const noexcept { return finished() >= where; }

  /// The error met before `where`, or null; `where` must be done.
  [[nodiscard]] std::exception_ptr error_at(place where) const noexcept {
    return failed_.load(std::memory_order_acquire) <= where ? error_ : nullptr;
  }

  /// Blocks; for the threads of other streams.
  void wait(place where) { static_cast<void>(wait_until(where, time_point::max())); }

  /// Blocks the host and makes it drive the progress functions. False where `deadline` came first.
  [[nodiscard]] bool sync(place where, time_point deadline) {
    if (is_done(where)) { return true; }
    if (progress_->empty()) { return wait_until(where, deadline); }
    auto rest = back_off{};
    while (!is_done(where)) {
      auto const pause = rest.next(progress_->run());
      auto const now   = clock::now();
      if (now >= deadline) { return is_done(where); }
      if (pause.count() == 0) {
        std::this_thread::yield();
      } else {
        static_cast<void>(wait_until(where, deadline - now < pause ? deadline : now + pause));
      }
    }
    return true;
  }

  /// Finishes all work and ends the thread.
  void drain() noexcept {
    static_cast<void>(sync(end(), time_point::max()));
    {
      auto const lock = std::unique_lock{mutex_};
      closing_        = true;
    }
    work_.notify_one();
    if (thread_.joinable()) { thread_.join(); }
  }

 private:
  void start_thread() {
    try {
      thread_ = std::thread{[this] { run(); }};
    } catch (std::system_error const& problem) {
      static_cast<void>(tasks_.pop());
      --enqueued_;
      throw error{std::string{"host::stream: cannot start its thread: "} + problem.what()};
    }
  }

  [[nodiscard]] bool wait_until(place where, time_point deadline) {
    auto lock       = std::unique_lock{mutex_};
    auto const done = [&] { return is_done(where); };
    ++waiting_;
    auto in_time = true;
    if (deadline == time_point::max()) {
      progressed_.wait(lock, done);
    } else {
      in_time = progressed_.wait_until(lock, deadline, done);
    }
    --waiting_;
    return in_time;
  }

  void run() noexcept {
    auto lock = std::unique_lock{mutex_};
    for (;;) {
      asleep_ = true;
      work_.wait(lock, [&] { return closing_ || !tasks_.empty(); });
      asleep_ = false;
      if (tasks_.empty()) { return; }
      auto current    = tasks_.pop();
      auto const skip = error_ != nullptr;
      lock.unlock();
      auto problem = std::exception_ptr{};
      if (!skip) {
        try {
          current();
        } catch (...) { problem = std::current_exception(); }
      }
      current.reset();  // what the task owned is gone before it counts as finished
      lock.lock();
      auto const done = finished() + 1;
      if (problem) {
        error_ = std::move(problem);
        failed_.store(done, std::memory_order_release);
      }
      finished_.store(done, std::memory_order_release);
      if (waiting_ > 0) { progressed_.notify_all(); }
    }
  }

  std::shared_ptr<progress_registry> progress_;
  place enqueued_{0};
  std::atomic<place> finished_{0};
  std::atomic<place> failed_{~place{0}};  // the place behind the task that threw
  std::exception_ptr error_;              // written once, before failed_

  std::mutex mutex_;                    // guards what follows
  std::condition_variable work_;        // for the thread of the stream
  std::condition_variable progressed_;  // for those who wait for a place
  task_ring tasks_;
  int waiting_{0};
  bool asleep_{false};
  bool closing_{false};
  std::thread thread_;
};

}  // namespace detail

/// An in-order queue of work with a thread of its own; made by host::device.
///
/// The thread starts with the first work: a stream that is only ever recorded, or waits for events
/// that are done, never has one, so that a trainer that computes on its own thread can hand an
/// empty stream to the library. An exception thrown by a task is kept, later tasks are skipped
/// (and destroyed), and every sync throws it. Destruction finishes all work.
class stream {
 public:
  explicit stream(std::shared_ptr<progress_registry> progress)
      : core_{std::make_shared<detail::stream_core>(std::move(progress))} {}
  stream(stream const&)            = delete;
  stream& operator=(stream const&) = delete;
  stream(stream&&) noexcept        = default;
  stream& operator=(stream&& other) noexcept {
    stream{std::move(other)}.swap(*this);
    return *this;
  }
  ~stream() {
    if (core_) { core_->drain(); }
  }

  void swap(stream& other) noexcept { core_.swap(other.core_); }

  /// Whether all work is done; never blocks.
  [[nodiscard]] bool is_idle() const noexcept { return core_->is_done(core_->end()); }

 private:
  friend class device;
  friend class event;

  std::shared_ptr<detail::stream_core> core_;
};

}  // namespace gradlane::host

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/concepts.hpp>             // for no_deadline, timeout
#include <gradlane/cuda/device_guard.hpp>    // for device_guard
#include <gradlane/cuda/error.hpp>           // for check
#include <gradlane/cuda/fault.hpp>           // for fault
#include <gradlane/cuda/stream.hpp>          // for stream
#include <gradlane/detail/collective.hpp>    // for is_point_to_point
#include <gradlane/detail/deadline.hpp>      // for poll_until
#include <gradlane/detail/failure.hpp>       // for failure
#include <gradlane/error.hpp>                // for communication_error, timeout_error
#include <gradlane/host/progress.hpp>        // for progress_function, progress_registration
#include <gradlane/nccl/detail/call.hpp>     // for call, enqueuer
#include <gradlane/nccl/detail/family.hpp>   // for family
#include <gradlane/nccl/detail/traffic.hpp>  // for flight, traffic
#include <gradlane/nccl/error.hpp>           // for check, error, is_error, text_of
#include <gradlane/types.hpp>                // for reduction

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <algorithm>        // for find
#include <chrono>           // for duration
#include <cstddef>          // for size_t
#include <cstdint>          // for uint64_t
#include <exception>        // for exception
#include <memory>           // for make_shared, shared_ptr
#include <mutex>            // for mutex, scoped_lock
#include <optional>         // for optional
#include <source_location>  // for source_location
#include <string>           // for string, to_string
#include <utility>          // for exchange, move
#include <vector>           // for vector

namespace gradlane::nccl::detail {

using gradlane::detail::failure;

/// ncclSuccess, ncclInProgress, or the communicator's first error.
[[nodiscard]] inline ncclResult_t state_of(ncclComm_t comm) noexcept {
  auto state        = ncclSuccess;
  auto const result = ncclCommGetAsyncError(comm, &state);
  return result == ncclSuccess ? state : result;
}

/// One NCCL communicator and the calls under way on it.
///
/// The host thread hands calls to NCCL. Whoever waits for the device runs `progress`, which looks
/// for NCCL's errors and for deadlines: a failure is left with all streams that have a call under
/// way, and then NCCL is aborted, so that those streams come to their ends.
class channel {
 public:
  channel(std::shared_ptr<family> shared, ncclComm_t comm, bool owned, std::source_location at)
      : shared_{std::move(shared)}, owned_{owned}, comm_{comm}, traffic_{shared_->device_index} {
    check(ncclCommUserRank(comm, &rank_), "ncclCommUserRank", at);
    check(ncclCommCount(comm, &size_), "ncclCommCount", at);
    next_.send.reserve(static_cast<std::size_t>(size_));
    next_.receive.reserve(static_cast<std::size_t>(size_));
    static_cast<void>(
        progress_.emplace(shared_->enlist(host::progress_function{[this] { return progress(); }})));
  }
  channel(channel const&)            = delete;
  channel& operator=(channel const&) = delete;
  ~channel() {
    progress_.reset();
    if (comm_ == nullptr || !owned_ || !shared_->alive.holds()) { return; }
    try {
      auto const guard = cuda::device_guard{shared_->device_index};
      traffic_.land();
      traffic_.empty() ? ncclCommDestroy(comm_) : ncclCommAbort(comm_);
    } catch (...) {}  // NOLINT(bugprone-empty-catch): the device has failed, and all on it
  }

  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept { return size_; }
  [[nodiscard]] std::shared_ptr<family> const& shared() const noexcept { return shared_; }

  /// NCCL's handle, for the host thread; null after a failure.
  [[nodiscard]] ncclComm_t comm() const noexcept {
    auto const lock = std::scoped_lock{mutex_};
    return comm_;
  }

  // --- by the host thread

  [[nodiscard]] std::uint64_t collectives() const noexcept { return collectives_; }
  void count_collective() noexcept { ++collectives_; }
  void set_deadline(timeout t) noexcept { deadline_ = t; }
  [[nodiscard]] timeout deadline() const noexcept { return deadline_; }

  /// The call that is to be issued next, empty but for the capacity of its vectors.
  [[nodiscard]] call& next() noexcept {
    next_.op          = reduction::sum;
    next_.coefficient = nullptr;
    next_.send.clear();
    next_.receive.clear();
    return next_;
  }

  void issue(cuda::stream const& on, call const& c) {
    if (!gradlane::detail::is_point_to_point(c.what)) { count_collective(); }
    auto const place = on.fault()->pass();
    auto const guard = cuda::device_guard{shared_->device_index, c.at};
    if (c.is_empty()) { return; }
    open();
    try {
      hand_over(on, c, place);
    } catch (...) {
      close(c.at);
      throw;
    }
    close(c.at);
  }

  /// Calls between `open` and `close` are carried out together.
  void open() {
    auto const lock = std::scoped_lock{mutex_};
    if (depth_++ == 0) { ncclGroupStart(); }
  }

  void close(std::source_location at) {
    {
      auto const lock = std::scoped_lock{mutex_};
      if (--depth_ > 0) { return; }
      auto const ended = ncclGroupEnd();
      auto const first = std::exchange(refused_, ncclSuccess);
      if (auto const why = is_error(first) ? first : ended; is_error(why)) { fail_by_nccl(why); }
    }
    await_launch();
    auto const lock = std::scoped_lock{mutex_};
    while (!streams_.empty()) {
      auto const& on = *streams_.back();
      streams_.pop_back();
      traffic_.depart(on, at);
      shared_->order.leave(on, this, at);
    }
    if (deferred_) { fail_locked(std::exchange(deferred_, {})); }
  }

  void poll() {
    progress();
    raise_failure();
  }

  /// Waits until NCCL's own thread has done what it was given; a failure else.
  void await_launch() {
    auto state         = ncclSuccess;
    auto const settled = [&] {
      auto const lock = std::scoped_lock{mutex_};
      state           = comm_ == nullptr ? ncclSuccess : state_of(comm_);
      return state != ncclInProgress;
    };
    auto const in_time = gradlane::detail::poll_until(settled, deadline_);
    auto const lock    = std::scoped_lock{mutex_};
    if (is_error(state)) { fail_by_nccl(state); }
    if (!in_time) { fail_by_deadline(next_, "could not be started", deadline_); }
  }

  /// @throws the failure, if there has been one.
  void raise_failure() const {
    auto why = cuda::fault::reason{};
    {
      auto const lock = std::scoped_lock{mutex_};
      why             = failure_;
    }
    if (why) { why->raise(); }
  }

  // --- by any thread

  /// Fails all calls under way and to come, unless the channel has failed before.
  void fail(failure why) noexcept {
    auto const lock = std::scoped_lock{mutex_};
    fail_locked(std::move(why));
  }

  /// Looks for calls that are done, errors and deadlines; true where something moved.
  bool progress() noexcept {
    auto const lock = std::scoped_lock{mutex_};
    if (comm_ == nullptr || depth_ > 0) { return false; }
    try {
      auto const moved = traffic_.land();
      if (auto const state = state_of(comm_); is_error(state)) {
        fail_by_nccl(state);
      } else if (auto const* const late = traffic_.overdue()) {
        fail_by_deadline(late->what, "has waited for its peers", late->deadline);
      }
      return moved;
    } catch (std::exception const& e) {  // of the device
      fail_locked(failure::of<communication_error>(who() + e.what(), next_.at));
      return true;
    }
  }

 private:
  void hand_over(cuda::stream const& on, call const& c, cuda::fault::place place) {
    auto const lock = std::scoped_lock{mutex_};
    if (failure_) {
      on.fault()->raise(failure_, place);
      return;
    }
    if (c.is_copy(size_)) {
      if (c.in.data() != c.out.data()) { copy(on, c); }
      return;
    }
    if (std::find(streams_.begin(), streams_.end(), &on) == streams_.end()) {
      shared_->order.enter(on, this, c.at);
      streams_.push_back(&on);
    }
    traffic_.board(on, c, place, deadline_);
    auto const result = enqueuer{comm_, rank_, on.get()}(c);
    if (is_error(result) && refused_ == ncclSuccess) { refused_ = result; }
  }

  static void copy(cuda::stream const& on, call const& c) {
    auto const bytes = c.in.size_bytes();
    cuda::check(
        cudaMemcpyAsync(c.out.data(), c.in.data(), bytes, cudaMemcpyDeviceToDevice, on.get()),
        c.at);
  }

  // --- with mutex_ held

  void fail_locked(failure why) noexcept {
    if (failure_) { return; }
    if (depth_ > 0) {  // NCCL still has to end the group
      if (!deferred_) { deferred_ = std::move(why); }
      return;
    }
    failure_ = std::make_shared<failure const>(std::move(why));
    traffic_.raise(failure_);
    auto* const comm = std::exchange(comm_, nullptr);
    if (comm != nullptr && owned_) { ncclCommAbort(comm); }
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 9)
    if (comm != nullptr && !owned_) { ncclCommRevoke(comm, NCCL_REVOKE_DEFAULT); }
#endif
  }

  void fail_by_nccl(ncclResult_t code) {
    auto const& c = traffic_.empty() ? next_ : traffic_.first().what;
    fail_locked(failure::of<error>(
        c.describe() + " on " + who() + text_of(code), static_cast<int>(code), c.at));
  }

  void fail_by_deadline(call const& c, std::string const& state, timeout deadline) {
    auto const seconds = std::chrono::duration<double>{deadline}.count();
    fail_locked(failure::of<timeout_error>(c.describe() + " on " + who() + state + " for " +
                                               std::to_string(seconds) + " s, its deadline",
                                           c.at));
  }

  [[nodiscard]] std::string who() const {
    return "rank " + std::to_string(rank_) + " of " + std::to_string(size_) + ": ";
  }

  std::shared_ptr<family> shared_;
  bool owned_;
  int rank_{};
  int size_{};

  // Of the host thread.
  timeout deadline_{no_deadline};
  std::uint64_t collectives_{0};
  call next_{};

  mutable std::mutex mutex_;  // guards what follows
  ncclComm_t comm_;           // null after a failure
  traffic traffic_;
  int depth_{0};                                // of groups
  ncclResult_t refused_{ncclSuccess};           // the first error of the group that is open
  std::vector<cuda::stream const*> streams_{};  // of the group that is open
  failure deferred_{};                          // until the group is closed
  cuda::fault::reason failure_{};

  std::optional<host::progress_registration> progress_;  // last member: ends first
};

}  // namespace gradlane::nccl::detail

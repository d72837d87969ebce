// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/concepts.hpp>           // for timeout, no_deadline
#include <gradlane/detail/collective.hpp>  // for is_point_to_point
#include <gradlane/detail/failure.hpp>     // for failure
#include <gradlane/error.hpp>              // for communication_error, timeout_error
#include <gradlane/host/device.hpp>        // for device
#include <gradlane/host/progress.hpp>      // for back_off, progress_registration
#include <gradlane/mpi/detail/call.hpp>    // for call, operation, scratch_pool
#include <gradlane/mpi/detail/family.hpp>  // for family, unique_communicator
#include <gradlane/mpi/error.hpp>          // for error

#include <mpi.h>

#include <algorithm>           // for find, find_if
#include <chrono>              // for duration, microseconds, steady_clock
#include <condition_variable>  // for condition_variable
#include <cstddef>             // for size_t
#include <cstdint>             // for uint64_t
#include <exception>           // for exception
#include <memory>              // for shared_ptr, unique_ptr
#include <mutex>               // for mutex, scoped_lock, unique_lock
#include <optional>            // for optional
#include <source_location>     // for source_location
#include <string>              // for string, to_string
#include <thread>              // for sleep_for, yield
#include <utility>             // for exchange, move
#include <vector>              // for vector

namespace gradlane::mpi::detail {

using gradlane::detail::failure;
using clock      = std::chrono::steady_clock;
using time_point = clock::time_point;

/// One MPI communicator and the operations under way on it.
///
/// An operation is reached by its stream, started once those issued before it in its lane are
/// started, tested until it is complete, and finished on the stream. Who starts and tests depends
/// on MPI's thread level: the stream's own thread at MPI_THREAD_MULTIPLE, else the thread that made
/// the channel, whenever it runs `progress`; the stream's thread then sleeps.
class channel {
 public:
  channel(host::device& device,
          std::shared_ptr<family> shared,
          MPI_Comm comm,
          bool owned,
          std::source_location at)
      : device_{device}, shared_{std::move(shared)}, comm_{comm}, owned_{owned} {
    check(MPI_Comm_rank(comm, &rank_), "MPI_Comm_rank", at);
    check(MPI_Comm_size(comm, &size_), "MPI_Comm_size", at);
    if (owned) {
      check(MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler", at);
    }
    lanes_.resize(1 + 2 * ranks());
    queue_.reserve(batch);
    if (!shared_->streams_drive()) {
      static_cast<void>(progress_.emplace(device.add_progress([this] { return progress(); })));
    }
  }
  channel(channel const&)            = delete;
  channel& operator=(channel const&) = delete;
  ~channel() {
    progress_.reset();
    // What MPI may still use is left to it: so is a communicator that failed, or is not ours.
    if (failure_ || !owned_) { [[maybe_unused]] auto const left_to_mpi = comm_.release(); }
  }

  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept { return size_; }
  [[nodiscard]] MPI_Comm comm() const noexcept { return comm_.get(); }
  [[nodiscard]] std::shared_ptr<family> const& shared() const noexcept { return shared_; }

  // --- by the host thread

  [[nodiscard]] call* make_call(operation what, int peer) {
    auto* const made = take();
    made->reset(ranks());
    made->what     = what;
    made->peer     = peer;
    made->deadline = deadline_;
    made->lane     = lane_of(what, peer);
    made->sequence = lanes_[made->lane].issued++;
    return made;
  }

  [[nodiscard]] std::uint64_t collectives() const noexcept { return lanes_[0].issued; }
  void set_deadline(timeout t) noexcept { deadline_ = t; }
  [[nodiscard]] timeout deadline() const noexcept { return deadline_; }

  /// Moves all channels of the device: those that were split from this one wait for the same
  /// thread.
  void poll() {
    device_.progress();
    auto const lock = std::scoped_lock{mutex_};
    if (failure_) { failure_.raise(); }
  }

  /// Starts what is reached and looks after what is started; true where something moved. Does
  /// nothing on other threads than the owner's, or where streams drive themselves.
  bool progress() noexcept {
    if (shared_->streams_drive() || !shared_->is_owner()) { return false; }
    auto const lock = std::scoped_lock{mutex_};
    auto moved      = false;
    for (std::size_t i = 0; i < queue_.size() && !failure_; ++i) {  // a start may free the next
      auto& c = *queue_[i];
      try {
        if (c.now == call::stage::queued) { moved = start_in_turn(c) || moved; }
        if (c.now == call::stage::started) { moved = test(c) || moved; }
      } catch (...) { fail_locked(caught(c)); }
    }
    std::erase_if(queue_, [](call const* c) { return c->now == call::stage::done; });
    if (moved) { changed_.notify_all(); }
    return moved;
  }

  /// Fails all that is under way and to come, unless it has failed before.
  void fail(failure why) noexcept {
    auto const lock = std::scoped_lock{mutex_};
    fail_locked(std::move(why));
  }

  // --- by the thread of a stream, or the host thread in functions that block

  /// Carries out the call: returns when it is complete here, or throws.
  void run(call& mine) {
    mine.reached     = true;
    auto const until = deadline_of(mine);
    if (size_ == 1 && !gradlane::detail::is_point_to_point(mine.what)) {
      run_alone(mine);
    } else if (shared_->streams_drive()) {
      drive(mine, until);
    } else if (shared_->is_owner()) {
      enter(mine);
      drive_queue(mine, until);
    } else {
      enter(mine);
      await(mine, until);
    }
    mine.finish(size_);
  }

  /// Takes a call back when its ticket ends.
  void give_back(call* used) noexcept {
    auto const lock = std::scoped_lock{mutex_};
    if (!used->reached) {
      fail_locked(failure::of<communication_error>(
          used->describe() + " on rank " + std::to_string(rank_) +
              " was skipped: an earlier error of its stream, which sync throws",
          used->at));
    }
    if (used->now == call::stage::started) {  // MPI may still write: it keeps its memory for ever
      auto const found = std::find_if(
          calls_.begin(), calls_.end(), [&](auto const& c) { return c.get() == used; });
      [[maybe_unused]] auto const* const left_to_mpi = found->release();
      calls_.erase(found);
      return;
    }
    used->leave(scratch_);
    free_.push_back(used);  // has room: as much as there are calls
  }

 private:
  static constexpr std::size_t batch = 32;

  struct lane {
    std::uint64_t issued{0};   // of the host thread
    std::uint64_t started{0};  // guarded by mutex_
  };

  [[nodiscard]] std::size_t ranks() const noexcept { return static_cast<std::size_t>(size_); }

  /// Collectives share one lane; sends to a rank, and receives from it, have one each.
  [[nodiscard]] std::size_t lane_of(operation what, int peer) const noexcept {
    if (!gradlane::detail::is_point_to_point(what)) { return 0; }
    return 1 + static_cast<std::size_t>(peer) + (what == operation::send ? 0 : ranks());
  }

  [[nodiscard]] static time_point deadline_of(call const& c) {
    auto const now = clock::now();
    return c.deadline < time_point::max() - now ? now + c.deadline : time_point::max();
  }

  [[nodiscard]] call* take() {
    auto const lock = std::scoped_lock{mutex_};
    if (free_.empty()) {
      calls_.reserve(calls_.size() + batch);
      free_.reserve(calls_.size() + batch);
      queue_.reserve(calls_.size() + batch);
      for (std::size_t i = 0; i < batch; ++i) {
        free_.push_back(calls_.emplace_back(std::make_unique<call>()).get());
        free_.back()->reset(ranks());
      }
    }
    auto* const taken = free_.back();
    free_.pop_back();
    return taken;
  }

  void run_alone(call& mine) {
    auto const lock = std::scoped_lock{mutex_};
    if (failure_) { failure_.raise(); }
    mine.copy_alone();
    mine.now = call::stage::done;
  }

  // --- with mutex_ held

  /// False where calls issued before are still to start.
  bool start_in_turn(call& c) {
    auto& started = lanes_[c.lane].started;
    if (started != c.sequence) { return false; }
    c.start(comm_.get(), rank_, size_, *shared_, scratch_);
    ++started;
    return true;
  }

  void fail_locked(failure why) noexcept {
    if (failure_) { return; }
    failure_ = std::move(why);
    queue_.clear();
    if (shared_->reports_to) { shared_->reports_to->failed = true; }
    changed_.notify_all();
  }

  /// The exception being handled, as an error of this call.
  [[nodiscard]] failure caught(call const& c) const {
    auto const who = c.describe() + " on rank " + std::to_string(rank_) + ": ";
    try {
      throw;
    } catch (error const& e) {
      return failure::of<error>(who + e.what(), e.code(), c.at);
    } catch (std::exception const& e) {
      return failure::of<communication_error>(who + e.what(), c.at);
    }
  }

  [[nodiscard]] failure late(call const& c) const {
    auto const seconds = std::chrono::duration<double>{c.deadline}.count();
    auto const state = c.now == call::stage::started ? std::string{"has waited for its peers since"}
                                                     : std::string{"has waited for its turn since"};
    return failure::of<timeout_error>(
        c.describe() + " on rank " + std::to_string(rank_) + " of " + std::to_string(size_) + " " +
            state + " " + std::to_string(seconds) +
            " s, its deadline; MPI may still write to its buffers, which must stay alive",
        c.at);
  }

  // --- the three ways to drive a call

  /// At MPI_THREAD_MULTIPLE: this thread starts and tests.
  void drive(call& mine, time_point until) {
    {
      auto lock        = std::unique_lock{mutex_};
      auto const ready = [&] { return failure_ || lanes_[mine.lane].started == mine.sequence; };
      if (!wait(lock, until, ready)) { fail_locked(late(mine)); }
      if (failure_) { failure_.raise(); }
      try {
        static_cast<void>(start_in_turn(mine));
      } catch (...) {
        fail_locked(caught(mine));
        failure_.raise();
      }
    }
    changed_.notify_all();
    auto rest = host::back_off{};
    for (;;) {
      auto moved = false;
      try {
        moved = test(mine);
      } catch (...) { fail(caught(mine)); }
      if (mine.now == call::stage::done) { return; }
      pause(rest.next(moved));
      if (clock::now() >= until) { fail(late(mine)); }
      auto const lock = std::scoped_lock{mutex_};
      if (failure_) { failure_.raise(); }
    }
  }

  void enter(call& mine) {
    auto const lock = std::scoped_lock{mutex_};
    if (failure_) { failure_.raise(); }
    queue_.push_back(&mine);
  }

  /// Below MPI_THREAD_MULTIPLE, on the owner's thread: it drives everything until this is done,
  /// other communicators too, as the stream of an earlier call may wait for one of them.
  void drive_queue(call& mine, time_point until) {
    auto rest = host::back_off{};
    while (mine.now != call::stage::done) {
      pause(rest.next(device_.progress()));
      auto const lock = std::scoped_lock{mutex_};
      if (clock::now() >= until && mine.now != call::stage::done) { fail_locked(late(mine)); }
      if (failure_) { failure_.raise(); }
    }
  }

  /// Below MPI_THREAD_MULTIPLE, on a stream's thread: the owner does the work.
  void await(call& mine, time_point until) {
    auto lock       = std::unique_lock{mutex_};
    auto const done = [&] { return failure_ || mine.now == call::stage::done; };
    if (!wait(lock, until, done)) { fail_locked(late(mine)); }
    if (mine.now != call::stage::done) { failure_.raise(); }
  }

  template <class Predicate>
  bool wait(std::unique_lock<std::mutex>& lock, time_point until, Predicate predicate) {
    if (until != time_point::max()) { return changed_.wait_until(lock, until, predicate); }
    changed_.wait(lock, predicate);
    return true;
  }

  /// Tests a started call; true where MPI took so long that it must have moved data.
  static bool test(call& c) {
    constexpr auto idle = std::chrono::microseconds{2};
    auto const begin    = clock::now();
    return c.test() || clock::now() - begin > idle;
  }

  static void pause(std::chrono::nanoseconds time) {
    if (time.count() == 0) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(time);
    }
  }

  host::device& device_;
  std::shared_ptr<family> shared_;
  unique_communicator comm_;  // released where it must not be freed
  bool owned_;
  int rank_{};
  int size_{};
  timeout deadline_{no_deadline};  // of the host thread

  std::mutex mutex_;  // guards what follows, but for lane::issued
  std::condition_variable changed_;
  std::vector<lane> lanes_;
  std::vector<call*> queue_;  // reached, not complete; only where the owner drives
  std::vector<std::unique_ptr<call>> calls_;
  std::vector<call*> free_;
  scratch_pool scratch_;
  failure failure_;

  std::optional<host::progress_registration> progress_;  // last member: ends first
};

/// A call on its way to a stream; gives it back to the channel when it ends, run or not.
class ticket {
 public:
  ticket(std::shared_ptr<channel> owner, call* held) noexcept
      : owner_{std::move(owner)}, call_{held} {}
  ticket(ticket const&)            = delete;
  ticket& operator=(ticket const&) = delete;
  ticket(ticket&& other) noexcept
      : owner_{std::move(other.owner_)}, call_{std::exchange(other.call_, nullptr)} {}
  ticket& operator=(ticket&&) = delete;
  ~ticket() {
    if (call_ != nullptr) { owner_->give_back(call_); }
  }

  [[nodiscard]] call& operator*() const noexcept { return *call_; }
  [[nodiscard]] call* operator->() const noexcept { return call_; }
  void operator()() const { owner_->run(*call_); }

 private:
  std::shared_ptr<channel> owner_;
  call* call_;
};

}  // namespace gradlane::mpi::detail

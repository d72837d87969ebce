// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/error.hpp>               // for aborted_error
#include <gradlane/host/device.hpp>         // for device
#include <gradlane/local/communicator.hpp>  // for communicator
#include <gradlane/local/world.hpp>         // for world, world_options

#include <concepts>   // for invocable
#include <cstddef>    // for size_t
#include <exception>  // for current_exception, exception, exception_ptr, rethrow_exception
#include <mutex>      // for mutex, scoped_lock
#include <string>     // for string, to_string
#include <thread>     // for jthread
#include <utility>    // for move
#include <vector>     // for vector

namespace gradlane::local {

namespace detail {

/// Keeps the error that came first; one that another rank caused gives way to its cause.
class first_error {
 public:
  /// Takes the exception that is being handled.
  void keep_current(bool caused_by_another) {
    auto const lock = std::scoped_lock{mutex_};
    if (!error_ || (secondary_ && !caused_by_another)) {
      error_     = std::current_exception();
      secondary_ = caused_by_another;
    }
  }

  void rethrow() {
    if (error_) { std::rethrow_exception(std::move(error_)); }
  }

 private:
  std::mutex mutex_;
  std::exception_ptr error_;
  bool secondary_{false};
};

template <class F>
void run_rank(world& all, int rank, F& function, first_error& error) {
  auto const give_up = [&](std::string const& why, bool secondary) {
    error.keep_current(secondary);
    all.abort("rank " + std::to_string(rank) + " failed: " + why);
  };
  auto device = host::device{};
  auto self   = communicator{all, device, rank};
  try {
    function(self, device);
  } catch (aborted_error const& e) { give_up(e.what(), true); } catch (std::exception const& e) {
    give_up(e.what(), false);
  } catch (...) { give_up("an exception of unknown type", false); }
}

}  // namespace detail

/// Calls `function(communicator&, device&)` on `ranks` threads at once, each with a device of its
/// own; returns when all have returned.
///
/// An exception of one rank aborts the others and is thrown again here: the first one that is not
/// an aborted_error caused by another rank. Streams that the function holds are drained as it is
/// left by an exception, so what they wait for must come, or have a deadline.
template <std::invocable<communicator&, host::device&> F>
void run(int ranks, world_options options, F&& function) {
  auto all   = world{ranks, std::move(options)};
  auto error = detail::first_error{};
  {
    auto threads = std::vector<std::jthread>{};
    threads.reserve(static_cast<std::size_t>(ranks));
    for (int rank = 0; rank < ranks; ++rank) {
      try {
        threads.emplace_back([&, rank] { detail::run_rank(all, rank, function, error); });
      } catch (...) {  // no more threads: those that have started must not wait for ever
        all.abort("local::run: cannot start the thread of rank " + std::to_string(rank));
        throw;
      }
    }
  }
  error.rethrow();
}

template <std::invocable<communicator&, host::device&> F>
void run(int ranks, F&& function) {
  run(ranks, world_options{}, function);
}

}  // namespace gradlane::local

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/detail/failure.hpp>  // for failure

#include <cstdint>  // for uint64_t
#include <memory>   // for shared_ptr, weak_ptr
#include <mutex>    // for mutex, scoped_lock
#include <vector>   // for vector

namespace gradlane::cuda {

/// What the work of a stream met that CUDA cannot know of: failures of communicators. CUDA goes on
/// with the stream, whose results are undefined from there on; every sync behind it throws.
///
/// A place is the number of operations put into the stream before it: collectives, and waits for
/// other streams, in whose failures the stream shares. Thread-safe, but for `end` and `pass`, which
/// belong to the thread that uses the stream.
class fault {
 public:
  using place  = std::uint64_t;
  using reason = std::shared_ptr<gradlane::detail::failure const>;

  /// The place behind all operations so far.
  [[nodiscard]] place end() const noexcept { return end_; }

  /// One more operation is put into the stream; returns its place.
  place pass() noexcept { return end_++; }

  /// The operation at `where` has failed; of several, the earliest in the stream counts.
  void raise(reason const& why, place where) noexcept {  // NOLINT(misc-no-recursion): see failed_
    auto told = std::vector<follower>{};
    {
      auto const lock = std::scoped_lock{mutex_};
      if (failed_ <= where) { return; }
      failed_ = where;
      reason_ = why;
      told.swap(followers_);
    }
    for (auto const& next : told) {
      auto const waiting = next.stream.lock();
      if (waiting && next.seen > where) { waiting->raise(why, next.since); }
    }
  }

  /// `waiting`, another stream, waits for what is before this stream's place `where`.
  void lead_to(std::shared_ptr<fault> const& waiting, place where) {
    auto const since = waiting->pass();
    auto why         = reason{};
    {
      auto const lock = std::scoped_lock{mutex_};
      if (failed_ < where) {
        why = reason_;
      } else {
        follow(waiting, where, since);
      }
    }
    if (why) { waiting->raise(why, since); }
  }

  /// @throws the failure that the stream met before `where`, if there was one.
  void check(place where) const {
    auto why = reason{};
    {
      auto const lock = std::scoped_lock{mutex_};
      if (failed_ < where) { why = reason_; }
    }
    if (why) { why->raise(); }
  }

 private:
  struct follower {
    std::weak_ptr<fault> stream;
    place seen;   // the furthest place of this stream that it has waited for
    place since;  // where in its own work it first waited
  };

  void follow(std::shared_ptr<fault> const& waiting, place where, place since) {
    std::erase_if(followers_, [](follower const& f) { return f.stream.expired(); });
    for (auto& known : followers_) {
      if (known.stream.lock() == waiting) {
        known.seen = where;
        return;
      }
    }
    followers_.push_back({waiting, where, since});
  }

  place end_{0};

  mutable std::mutex mutex_;  // guards what follows
  place failed_{~place{0}};   // of the first operation that failed; only falls, so that raise ends
  reason reason_;
  std::vector<follower> followers_;
};

}  // namespace gradlane::cuda

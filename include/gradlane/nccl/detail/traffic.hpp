// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/concepts.hpp>          // for no_deadline, timeout
#include <gradlane/cuda/capture.hpp>      // for capture_of
#include <gradlane/cuda/event.hpp>        // for event
#include <gradlane/cuda/fault.hpp>        // for fault
#include <gradlane/cuda/stream.hpp>       // for stream
#include <gradlane/detail/deadline.hpp>   // for clock, from_now, time_point
#include <gradlane/nccl/detail/call.hpp>  // for call

#include <algorithm>        // for any_of
#include <memory>           // for make_unique, shared_ptr, unique_ptr
#include <optional>         // for optional
#include <source_location>  // for source_location
#include <utility>          // for move
#include <vector>           // for vector

namespace gradlane::nccl::detail {

using gradlane::detail::clock;
using gradlane::detail::time_point;

/// A call from when it is handed to NCCL until the device has done it.
struct flight {
  flight(int device_index, std::source_location at)
      : begin{device_index, at}, end{device_index, at} {}

  cuda::event begin;  // before the call in its stream
  cuda::event end;    // behind it
  bool departed{};    // `end` has been recorded
  std::shared_ptr<cuda::fault> stream{};
  cuda::fault::place place{};
  call what{};
  timeout deadline{no_deadline};
  std::optional<time_point> late_at{};  // known once it has been seen to have begun
};

/// The calls of a communicator that are under way, in the order in which they were made. Takes no
/// memory from the heap once as many have been under way before.
class traffic {
 public:
  explicit traffic(int device_index) : device_{device_index} {}

  [[nodiscard]] bool empty() const noexcept { return flying_.empty(); }
  [[nodiscard]] flight const& first() const noexcept { return *flying_.front(); }

  /// A call that comes next in its stream. A captured one has no flight: who launches the graph
  /// waits for it. Its stream is only remembered, for failures.
  void board(cuda::stream const& on, call const& c, cuda::fault::place place, timeout deadline) {
    if (cuda::detail::capture_of(on.get(), c.at) != 0) {
      auto const same = [&](auto const& known) { return known.stream == on.fault(); };
      if (std::none_of(captured_.begin(), captured_.end(), same)) {
        captured_.push_back({on.fault(), place});
      }
      return;
    }
    auto f = take(c.at);
    f->begin.record(on, c.at);
    f->departed = false;
    f->stream   = on.fault();
    f->place    = place;
    f->what     = c;
    f->deadline = deadline;
    f->late_at.reset();
    flying_.push_back(std::move(f));
  }

  /// What was boarded for this stream has been put into it.
  void depart(cuda::stream const& on, std::source_location at) {
    for (auto& f : flying_) {
      if (f->departed || f->stream != on.fault()) { continue; }
      f->end.record(on, at);
      f->departed = true;
    }
  }

  /// Forgets the calls that are done; true where there were some.
  bool land() {
    auto const before = flying_.size();
    auto kept         = flying_.begin();
    for (auto& f : flying_) {
      if (f->departed && f->end.is_done()) {
        f->stream.reset();
        free_.push_back(std::move(f));
      } else {
        std::swap(*kept++, f);
      }
    }
    flying_.erase(kept, flying_.end());
    return flying_.size() < before;
  }

  /// The first call whose deadline has passed; starts the clocks of those that have begun.
  [[nodiscard]] flight const* overdue() {
    for (auto& f : flying_) {
      if (f->deadline == no_deadline || !f->departed) { continue; }
      if (!f->late_at) {
        if (f->begin.is_done()) { f->late_at = gradlane::detail::from_now(f->deadline); }
      } else if (clock::now() >= *f->late_at) {
        return f.get();
      }
    }
    return nullptr;
  }

  /// Leaves a failure with every stream that has a call under way, or had one captured.
  void raise(cuda::fault::reason const& why) noexcept {
    for (auto const& f : flying_) { f->stream->raise(why, f->place); }
    for (auto const& c : captured_) { c.stream->raise(why, c.place); }
  }

 private:
  struct captured_call {
    std::shared_ptr<cuda::fault> stream;
    cuda::fault::place place;
  };

  [[nodiscard]] std::unique_ptr<flight> take(std::source_location at) {
    if (free_.empty()) { land(); }
    if (free_.empty()) {
      free_.reserve(flying_.size() + 1);
      free_.push_back(std::make_unique<flight>(device_, at));
    }
    auto taken = std::move(free_.back());
    free_.pop_back();
    return taken;
  }

  int device_;
  std::vector<std::unique_ptr<flight>> flying_;
  std::vector<std::unique_ptr<flight>> free_;  // has room for all
  std::vector<captured_call> captured_;        // the first of each stream
};

}  // namespace gradlane::nccl::detail

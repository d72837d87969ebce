// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/concepts.hpp>       // for timeout
#include <gradlane/host/progress.hpp>  // for back_off

#include <chrono>  // for steady_clock
#include <thread>  // for sleep_for, yield

namespace gradlane::detail {

using clock      = std::chrono::steady_clock;
using time_point = clock::time_point;

/// When a deadline that begins now passes.
[[nodiscard]] inline time_point from_now(timeout t) {
  auto const now = clock::now();
  return t < time_point::max() - now ? now + t : time_point::max();
}

/// Asks `is_over()` again and again; false where it is not true in time.
template <class IsOver>
[[nodiscard]] bool poll_until(IsOver is_over, timeout deadline) {
  auto const until = from_now(deadline);
  auto rest        = host::back_off{};
  while (!is_over()) {
    if (clock::now() >= until) { return false; }
    auto const pause = rest.next(false);
    pause.count() == 0 ? std::this_thread::yield() : std::this_thread::sleep_for(pause);
  }
  return true;
}

}  // namespace gradlane::detail

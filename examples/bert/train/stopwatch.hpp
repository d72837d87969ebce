// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>  // for duration, steady_clock

namespace bert {

/// Where the time of a step went, in seconds, on this rank.
struct step_times {
  double balance   = 0;  // for samples: reading them, dealing, moving, as far as training waits
  double data      = 0;
  double compute   = 0;  // forward and backward, with all of the communication that they hide
  double wait      = 0;  // for other ranks: communication that nothing hid
  double optimizer = 0;
  double total     = 0;
};

inline step_times& operator+=(step_times& sum, step_times const& more) {
  sum.balance += more.balance;
  sum.data += more.data;
  sum.compute += more.compute;
  sum.wait += more.wait;
  sum.optimizer += more.optimizer;
  sum.total += more.total;
  return sum;
}

/// Adds the time since the last lap to a sum.
class stopwatch {
 public:
  void lap(double& sum) {
    auto const now = clock::now();
    sum += std::chrono::duration<double>{now - last_}.count();
    last_ = now;
  }
  /// Leaves the time since the last lap to who has measured it.
  void skip() { last_ = clock::now(); }
  [[nodiscard]] double total() const {
    return std::chrono::duration<double>{clock::now() - begin_}.count();
  }

 private:
  using clock = std::chrono::steady_clock;
  clock::time_point begin_{clock::now()};
  clock::time_point last_{begin_};
};

}  // namespace bert

// SPDX-License-Identifier: Apache-2.0
#include <gradlane/host/device.hpp>         // for device
#include <gradlane/local/communicator.hpp>  // for communicator
#include <gradlane/local/run.hpp>           // for run

#include <doctest/doctest.h>

#include <conformance/communicator.hpp>  // for GRADLANE_COMMUNICATOR_CONFORMANCE
#include <support/watchdog.hpp>          // for activity

#include <string>  // for string, to_string

namespace {

/// Threads; the first three share a pretend node, and so on.
struct threads {
  template <class F>
  static void run(F f) {
    for (auto const ranks : {1, 2, 3, 4, 7}) {
      auto const name = "a group of " + std::to_string(ranks) + " threads";
      auto const busy = gradlane::test::activity{name};
      INFO(name);
      gradlane::local::run(ranks, {.ranks_per_node = 3}, f);
    }
  }
  static int nodes(int size) { return (size + 2) / 3; }
  static bool cuts() { return false; }
};

}  // namespace

GRADLANE_COMMUNICATOR_CONFORMANCE(threads);

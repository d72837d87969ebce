// SPDX-License-Identifier: Apache-2.0
#include <gradlane/host/device.hpp>         // for device
#include <gradlane/local/communicator.hpp>  // for communicator
#include <gradlane/local/run.hpp>           // for run

#include <doctest/doctest.h>

#include <conformance/communicator.hpp>              // for GRADLANE_COMMUNICATOR_CONFORMANCE
#include <conformance/communicator_allocations.hpp>  // for communicator_allocations
#include <support/watchdog.hpp>                      // for activity

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

  template <class Device>
  static void delay(Device& d, typename Device::stream& s, int microseconds) {
    d.invoke(s, gradlane::test::pause{microseconds});
  }

  static constexpr auto divides_late  = true;
  static constexpr auto max_keeps_nan = true;
};

}  // namespace

GRADLANE_COMMUNICATOR_CONFORMANCE(threads);
TEST_CASE_TEMPLATE_INVOKE(communicator_allocations, threads);

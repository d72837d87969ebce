// SPDX-License-Identifier: Apache-2.0
// main() of every test that does not run on MPI ranks.
#include <support/watchdog.hpp>  // for watchdog, watchdog_listener

#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

REGISTER_LISTENER("watchdog", 0, gradlane::test::watchdog_listener);

int main(int argc, char** argv) {
  auto guard                       = gradlane::test::watchdog{};
  gradlane::test::current_watchdog = &guard;
  return doctest::Context{argc, argv}.run();
}

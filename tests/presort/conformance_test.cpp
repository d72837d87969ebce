// SPDX-License-Identifier: Apache-2.0
#include <gradlane/gradlane.hpp>

#include <doctest/doctest.h>

#include <conformance/presort.hpp>  // for GRADLANE_PRESORT_CONFORMANCE

#include <array>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

namespace {

using namespace gradlane;
using namespace std::chrono_literals;

struct on_threads {
  using device                    = host::device;
  static constexpr auto schedules = std::uint64_t{60};

  [[nodiscard]] static std::vector<int> worlds() { return {1, 2, 4}; }

  template <class F>
  static void run(int ranks, std::uint64_t seed, F f) {
    auto script      = local::script{.seed = seed, .reorder = seed % 2 == 0};
    script.max_delay = std::array{0us, 50us, 300us}.at(seed % 3);
    local::run(ranks, {.faults = script}, f);
  }

  static void delay(device& d, device::stream& s, int microseconds) {
    d.enqueue(s, [=] { std::this_thread::sleep_for(std::chrono::microseconds{microseconds}); });
  }
};

}  // namespace

TYPE_TO_STRING(on_threads);
GRADLANE_PRESORT_CONFORMANCE(on_threads);

// SPDX-License-Identifier: Apache-2.0
#include <gradlane/error.hpp>               // for aborted_error, timeout_error
#include <gradlane/host/device.hpp>         // for device
#include <gradlane/local/communicator.hpp>  // for communicator
#include <gradlane/local/error.hpp>         // for scripted_error
#include <gradlane/local/run.hpp>           // for run
#include <gradlane/local/script.hpp>        // for script

#include <doctest/doctest.h>

#include <support/watchdog.hpp>  // for activity

#include <atomic>   // for atomic
#include <chrono>   // for microseconds, milliseconds, steady_clock
#include <cstddef>  // for size_t
#include <cstdint>  // for uint64_t
#include <span>     // for span
#include <string>   // for to_string
#include <vector>   // for vector

namespace {

using gradlane::reduction;
using gradlane::stream_priority;
using gradlane::host::device;
using gradlane::local::communicator;
using gradlane::local::script;
using namespace std::chrono_literals;

/// Twelve all-reduces on two streams, with integers, so that every schedule gives the same.
void check_sums(communicator& c, device& d) {
  auto x = std::vector<std::vector<float>>{};  // outlives the streams, which drain as they end
  auto a = d.make_stream(stream_priority::high);
  auto b = d.make_stream(stream_priority::normal);
  for (std::size_t k = 0; k < 12; ++k) { x.emplace_back(5, static_cast<float>(c.rank() + 1)); }
  for (std::size_t k = 0; k < 12; ++k) {
    c.all_reduce(k % 2 == 0 ? a : b, std::span{x[k]}, std::span{x[k]}, reduction::sum);
  }
  d.sync(a);
  d.sync(b);
  auto const sum = static_cast<float>(c.size() * (c.size() + 1) / 2);
  for (auto const& bucket : x) { CHECK(bucket == std::vector<float>(5, sum)); }
}

}  // namespace

TEST_CASE("a script draws the same delays from the same seed, and other ones from another") {
  auto const one  = script{.seed = 1, .max_delay = 1ms};
  auto const same = script{.seed = 1, .max_delay = 1ms};
  auto const two  = script{.seed = 2, .max_delay = 1ms};
  auto differ     = 0;
  for (std::uint64_t call = 0; call < 100; ++call) {
    auto const delay = gradlane::local::detail::delay_of(one, 3, call);
    CHECK(delay == gradlane::local::detail::delay_of(same, 3, call));
    CHECK(delay < 1ms);
    differ += delay != gradlane::local::detail::delay_of(two, 3, call) ? 1 : 0;
    differ += delay != gradlane::local::detail::delay_of(one, 2, call) ? 1 : 0;
  }
  CHECK(differ > 190);
}

TEST_CASE("a script's random delays and orders of arrival change no result") {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    auto const busy = gradlane::test::activity{"seed " + std::to_string(seed)};
    gradlane::local::run(static_cast<int>(seed % 4) + 1,
                         {.faults = {.seed = seed, .max_delay = 200us, .reorder = seed % 2 == 0}},
                         check_sums);
  }
}

TEST_CASE("a script puts off the arrival that it names") {
  auto const begin = std::chrono::steady_clock::now();
  gradlane::local::run(3, {.faults = {.delays = {{1, 4, 30ms}, {2, 5, 1ms}}}}, check_sums);
  CHECK(std::chrono::steady_clock::now() - begin >= 30ms);
}

TEST_CASE("a script makes a rank's call fail, which only that rank and its run notice") {
  auto aborted = std::atomic<int>{0};
  auto run     = [&] {
    gradlane::local::run(3, {.faults = {.failures = {{1, 4}}}}, [&](auto& c, auto& d) {
      try {
        check_sums(c, d);
      } catch (gradlane::aborted_error const&) {
        ++aborted;
        throw;
      }
    });
  };
  CHECK_THROWS_WITH_AS(run(),
                       doctest::Contains("rank 1 fails in call 4, all_reduce(sum) of 5 fp32"),
                       gradlane::local::scripted_error);
  CHECK(aborted == 2);
}

TEST_CASE("a script lets a rank die, which ends in the deadline of the others") {
  auto late = std::atomic<int>{0};
  auto run  = [&] {
    gradlane::local::run(4, {.faults = {.deaths = {{2, 7}}}}, [&](auto& c, auto& d) {
      c.set_deadline(50ms);
      try {
        check_sums(c, d);
      } catch (gradlane::timeout_error const&) {
        ++late;
        throw;
      }
    });
  };
  CHECK_THROWS_WITH_AS(run(), doctest::Contains("not arrived: rank 2"), gradlane::timeout_error);
  CHECK(late == 4);
}

// SPDX-License-Identifier: Apache-2.0
// Order between the trainer's streams, the pipeline and ranks. Random schedules: conformance_test.
#include <gradlane/gradlane.hpp>

#include <doctest/doctest.h>

#include <support/model.hpp>
#include <support/watchdog.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <thread>
#include <vector>

namespace {

using namespace gradlane;
using local::communicator;
using namespace std::chrono_literals;

#ifdef __SANITIZE_THREAD__
constexpr auto thread_sanitizer = true;  // it finds planted races by itself, and fails the test
#else
constexpr auto thread_sanitizer = false;
#endif

}  // namespace

TEST_CASE("a planted read that does not wait for the pipeline is found by the same method" *
          doctest::skip(thread_sanitizer)) {
  // The optimizer's stream is not the one that finish() was given, and nothing orders them.
  auto found = 0;
  for (auto seed = std::uint64_t{0}; seed < 20 && found == 0; ++seed) {
    local::run(2,
               {.faults = {.seed = seed, .max_delay = 2ms}},
               [&](communicator& comm, host::device& device) {
                 auto buckets  = gradient_buckets{device, bucket_plan{test::parameters({64})}};
                 auto pipeline = clip_allreduce{buckets, comm, clip::none{}};
                 auto compute  = device.make_stream();
                 auto other    = device.make_stream();
                 auto error    = 0.0;
                 pipeline.begin(compute);
                 device.enqueue(compute, [&] {
                   std::this_thread::sleep_for(5ms);
                   test::write(buckets.gradient(0), comm.rank(), 0, 0);
                 });
                 test::poison(buckets.gradient(0));
                 pipeline.ready(0, compute);
                 pipeline.finish(compute);
                 auto const expected = test::reference_none(test::all_gradients(2, 0, {64}));
                 device.enqueue(other, [&] { error = test::largest_error(buckets, expected); });
                 device.sync(other);
                 device.sync(compute);
                 if (comm.rank() == 0 && error > 0) { ++found; }
               });
  }
  CHECK(found > 0);
}

TEST_CASE("ready may be called from several threads") {
  auto const sizes = std::vector<std::size_t>(16, 33);
  for (auto seed = std::uint64_t{0}; seed < 20; ++seed) {
    local::run(2, [&](communicator& comm, host::device& device) {
      auto buckets = gradient_buckets{device, bucket_plan{test::parameters(sizes), test::one_each}};
      auto pipeline = clip_allreduce{buckets, comm, clip::bucketwise{threshold::each{1e9}}};
      auto compute  = device.make_stream();
      pipeline.begin(compute);
      device.sync(compute);
      {
        auto threads = std::vector<std::jthread>{};
        for (auto t = std::size_t{0}; t < 4; ++t) {
          threads.emplace_back([&, t] {
            auto own = device.make_stream();
            for (auto p = t; p < sizes.size(); p += 4) {
              test::write(buckets.gradient(p), comm.rank(), seed, p);
              pipeline.ready(p, own);
            }
          });
        }
      }
      pipeline.finish(compute);
      device.sync(compute);
      CHECK(test::largest_error(buckets,
                                test::reference_none(test::all_gradients(2, seed, sizes))) == 0.0);
    });
  }
}

TEST_CASE(
    "the trainer's streams wait for nothing between begin and finish, and reductions overlap") {
  // Backward goes on although no reduction can: rank 1's arrivals are held back until rank 0 has
  // gone through the whole of its backward.
  auto backward_done = std::atomic<bool>{false};
  local::run(2, [&](communicator& comm, host::device& device) {
    auto buckets =
        gradient_buckets{device, bucket_plan{test::parameters({8, 8, 8, 8}), test::one_each}};
    auto pipeline = clip_allreduce{buckets, comm, clip::bucketwise{threshold::each{1e9}}};
    auto compute  = device.make_stream();
    pipeline.begin(compute);
    if (comm.rank() == 1) {
      while (!backward_done) { std::this_thread::yield(); }
    }
    for (auto p = std::size_t{4}; p-- > 0;) {
      device.enqueue(compute, [&, p] { test::write(buckets.gradient(p), comm.rank(), 0, p); });
      pipeline.ready(p, compute);
    }
    if (comm.rank() == 0) {
      device.sync(compute);  // would not return if compute waited for a reduction
      backward_done = true;
    }
    pipeline.finish(compute);
    device.sync(compute);
    CHECK(test::largest_error(
              buckets, test::reference_none(test::all_gradients(2, 0, {8, 8, 8, 8}))) == 0.0);
  });
}

TEST_CASE("results do not depend on bucket sizes, and repeat bit for bit") {
  auto const sizes = std::vector<std::size_t>{1000, 77, 3, 4096};
  auto first       = std::vector<float>{};
  auto const caps  = std::array<std::size_t, 4>{
      1U << 10U, 64U << 10U, 25U << 20U, std::numeric_limits<std::size_t>::max()};
  for (auto run = std::size_t{0}; run < 20; ++run) {
    local::run(3, [&](communicator& comm, host::device& device) {
      auto const cap = caps.at(run % caps.size());
      auto buckets   = gradient_buckets{
          device, bucket_plan{test::parameters(sizes), {.cap_bytes = cap, .first_cap_bytes = cap}}};
      auto pipeline = clip_allreduce{buckets, comm, clip::none{}};
      auto compute  = device.make_stream();
      test::run_step(pipeline, buckets, compute, [&](std::size_t p, buffer_view view) {
        for (auto i = std::size_t{0}; i < view.count(); ++i) {
          test::store(view, i, test::value(comm.rank(), 0, p, i) * 0.1);
        }
      });
      if (comm.rank() != 1) { return; }
      auto result = std::vector<float>{};
      for (auto const p : test::every(sizes.size())) {
        auto const g = buckets.gradient<float>(p);
        result.insert(result.end(), g.begin(), g.end());
      }
      if (first.empty()) { first = result; }
      CHECK(result == first);
    });
  }
}

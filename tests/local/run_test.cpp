// SPDX-License-Identifier: Apache-2.0
#include <gradlane/error.hpp>               // for aborted_error, contract_error
#include <gradlane/host/device.hpp>         // for device
#include <gradlane/local/communicator.hpp>  // for communicator
#include <gradlane/local/run.hpp>           // for run
#include <gradlane/local/world.hpp>         // for world

#include <doctest/doctest.h>

#include <atomic>     // for atomic
#include <span>       // for span
#include <stdexcept>  // for out_of_range
#include <thread>     // for jthread
#include <vector>     // for vector

namespace {

using gradlane::reduction;
using gradlane::stream_priority;
using gradlane::host::device;
using gradlane::local::communicator;
using gradlane::local::run;
using gradlane::local::world;

void reduce_once(communicator& c, device& d) {
  auto s = d.make_stream(stream_priority::normal);
  auto x = std::vector<float>(3);
  c.all_reduce(s, std::span{x}, std::span{x}, reduction::sum);
  d.sync(s);
}

}  // namespace

TEST_CASE("run calls the function once on every rank") {
  auto ranks = std::atomic<int>{0};
  run(5, [&](communicator& c, device&) {
    CHECK(c.size() == 5);
    ranks += 1 << c.rank();
  });
  CHECK(ranks == 31);
}

TEST_CASE("run throws what a rank threw, and frees the ranks that wait for it") {
  auto aborted = std::atomic<int>{0};
  CHECK_THROWS_WITH_AS(run(4,
                           [&](communicator& c, device& d) {
                             if (c.rank() == 2) { throw std::out_of_range{"no such parameter"}; }
                             try {
                               reduce_once(c, d);
                             } catch (gradlane::aborted_error const& e) {
                               auto const told =
                                   doctest::Contains("rank 2 failed: no such parameter");
                               CHECK(told.checkWith(e.what()));
                               ++aborted;
                               throw;
                             }
                           }),
                       "no such parameter",
                       std::out_of_range);
  CHECK(aborted == 3);
}

TEST_CASE("run tells the others when a rank makes fewer calls than they do") {
  CHECK_THROWS_WITH_AS(run(3,
                           [](communicator& c, device& d) {
                             reduce_once(c, d);
                             if (c.rank() != 1) { reduce_once(c, d); }
                           }),
                       doctest::Contains("rank 1 has given up its communicator, while "
                                         "all_reduce(sum) of 3 fp32 waits for it as collective 1"),
                       gradlane::aborted_error);
}

TEST_CASE("run refuses worlds that cannot be") {
  auto const nothing = [](communicator&, device&) {};
  CHECK_THROWS_AS(run(0, nothing), gradlane::contract_error);
  CHECK_THROWS_AS(run(2, {.ranks_per_node = -1}, nothing), gradlane::contract_error);
}

TEST_CASE("a world serves threads that its user starts") {
  auto all = world{2};
  auto sum = std::atomic<int>{0};
  {
    auto threads = std::vector<std::jthread>{};
    for (auto const rank : {0, 1}) {
      threads.emplace_back([&, rank] {
        auto d = device{};
        auto c = communicator{all, d, rank};
        auto s = d.make_stream(stream_priority::normal);
        auto x = std::vector<int>{rank + 1};
        c.all_reduce(s, std::span{x}, std::span{x}, reduction::sum);
        d.sync(s);
        sum += x[0];
      });
    }
  }
  CHECK(sum == 6);
  auto d = device{};
  CHECK_THROWS_AS((communicator{all, d, 2}), gradlane::contract_error);
}

TEST_CASE("a world that is aborted fails all its groups, those to come too") {
  auto all = world{1};
  auto d   = device{};
  auto c   = communicator{all, d, 0};
  auto one = c.split(0, 0);
  all.abort("the test says so");
  all.abort("again");
  CHECK_THROWS_WITH_AS(
      reduce_once(one, d), doctest::Contains("the test says so"), gradlane::aborted_error);
  CHECK_THROWS_AS(c.poll(), gradlane::aborted_error);
  CHECK_THROWS_AS(static_cast<void>(c.split(0, 0)), gradlane::aborted_error);
}

// SPDX-License-Identifier: Apache-2.0
#include <gradlane/gradlane.hpp>

#include <doctest/doctest.h>

#include <support/model.hpp>
#include <support/shards.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <stdexcept>
#include <thread>
#include <vector>

namespace {

using namespace gradlane;
using namespace std::chrono_literals;
using local::communicator;

}  // namespace

TEST_CASE("parameter_shards train as whole parameters do, under every schedule") {
  for (auto const ranks : {1, 2, 3, 4, 7, 8}) {
    for (auto seed = std::uint64_t{0}; seed < 8; ++seed) {
      auto const by = seed < 4 ? shard_by::elements : shard_by::parameters;
      CAPTURE(ranks);
      auto wrong = std::atomic<int>{0};
      local::run(ranks,
                 {.faults = {.seed = seed, .max_delay = 50us, .reorder = seed % 2 == 1}},
                 [&](communicator& comm, host::device& device) {
                   // values stay below 16: 1e-6 of them, relative
                   for (auto const lent : {false, true}) {
                     if (!(test::train_both_ways(comm, device, 6, by, lent) <= 16e-6)) { ++wrong; }
                   }
                 });
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("parameter_shards keep one place a parameter, and a part of each bucket a rank") {
  local::run(2, [](communicator& comm, host::device& device) {
    auto list = test::parameters({5, 0, 7, 3});
    list.push_back({.name = "tied", .count = 5, .tied_to = "p0"});
    list.push_back({.name = "frozen", .count = 9, .trainable = false});
    auto shards = parameter_shards{device, comm, bucket_plan{list, {.cap_bytes = 1, .pad_to = 4}}};
    CHECK(shards.parameter(0).count() == 5);
    CHECK(shards.parameter(4).data() == shards.parameter(0).data());
    CHECK(shards.parameter(1).empty());
    CHECK(shards.parameter(5).empty());
    CHECK(shards.parameter<float>(2).size() == 7);
    CHECK_THROWS_AS(static_cast<void>(shards.parameter<double>(2)), contract_error);
    CHECK_THROWS_AS(static_cast<void>(shards.parameter(6)), contract_error);
    CHECK_THROWS_AS(static_cast<void>(shards.shard(99)), contract_error);
    auto elements = std::size_t{0};
    for (auto b = std::size_t{0}; b < shards.plan().buckets().size(); ++b) {
      CHECK(2 * shards.shard(b).count() == shards.plan().buckets()[b].count);
      elements += shards.plan().buckets()[b].count;
    }
    CHECK(elements >= 5 + 7 + 3);
  });
}

TEST_CASE("parameter_shards gather behind the updates, and let a layer wait for its own alone") {
  auto wrong = std::atomic<int>{0};
  local::run(3, [&](communicator& comm, host::device& device) {
    auto const plan = bucket_plan{test::parameters({300, 600}),
                                  {.cap_bytes = 1, .first_cap_bytes = 1, .pad_to = 3}};
    auto shards     = parameter_shards{device, comm, plan};
    auto compute    = device.make_stream();
    for (auto step = 0; step < 20; ++step) {
      device.enqueue(compute, [&, step] {
        if (comm.rank() == step % 3) { std::this_thread::sleep_for(300us); }
        for (auto b = std::size_t{0}; b < 2; ++b) {
          auto const own = shards.shard(b).as<float>();
          std::fill(own.begin(), own.end(), static_cast<float>(step));
        }
      });
      shards.gather(compute);
      for (auto const p : {std::size_t{0}, std::size_t{1}}) {  // the order of forward
        shards.wait(p, compute);
        device.enqueue(compute, [&, p, step] {
          for (auto const x : shards.parameter<float>(p)) {
            if (x != static_cast<float>(step)) { ++wrong; }
          }
        });
      }
    }
    device.sync(compute);
  });
  CHECK(wrong == 0);
}

TEST_CASE("parameter_shards that are destroyed after an update failed let the peers go") {
  auto told = std::atomic<bool>{false};
  local::run(2, [&](communicator& comm, host::device& device) {
    auto shards  = std::optional<parameter_shards<host::device, communicator>>{};
    auto compute = device.make_stream();
    shards.emplace(device, comm, bucket_plan{test::parameters({4})});
    if (comm.rank() == 0) {
      device.enqueue(compute, [] { throw std::runtime_error{"the optimizer failed"}; });
    }
    shards->gather(compute);
    shards->wait(0, compute);
    if (comm.rank() == 0) {
      CHECK_THROWS_WITH(device.sync(compute), "the optimizer failed");
      shards.reset();
      while (!told) { std::this_thread::yield(); }  // the communicator lives on
    } else {
      CHECK_THROWS_AS(device.sync(compute, 20s), aborted_error);
      told = true;
    }
  });
}

TEST_CASE(
    "parameter_shards lie where gradients do, and in no gradients that are the trainer's own") {
  local::run(2, [](communicator& comm, host::device& device) {
    auto const plan = bucket_plan{test::parameters({5, 7}), {.pad_to = 2}};
    auto bound      = gradient_buckets{device, plan};
    auto shards     = parameter_shards{bound, comm};
    CHECK(shards.parameter(1).data() == bound.gradient(1).data());
    CHECK(shards.shard(0).count() == plan.buckets()[0].count / 2);
    auto own     = std::vector<float>(12);
    auto tensors = std::vector<buffer_view>{std::span{own}.first(5), std::span{own}.last(7)};
    auto copied  = gradient_buckets{device, plan, tensors};
    CHECK_THROWS_AS((parameter_shards{copied, comm}), contract_error);
  });
}

TEST_CASE("parameter_shards refuse buckets that do not fall into equal parts") {
  local::run(3, [](communicator& comm, host::device& device) {
    auto const make = [&] {
      static_cast<void>(parameter_shards{device, comm, bucket_plan{test::parameters({4})}});
    };
    CHECK_THROWS_WITH_AS(make(), doctest::Contains("set bucket_options::pad_to"), contract_error);
  });
}

// SPDX-License-Identifier: Apache-2.0
// Pipelines of which each rank keeps a part of every bucket.
#include <gradlane/gradlane.hpp>

#include <doctest/doctest.h>

#include <support/model.hpp>
#include <support/shards.hpp>

#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace {

using namespace gradlane;
using namespace std::chrono_literals;
using local::communicator;

auto const sizes = std::vector<std::size_t>{5, 0, 300, 64, 1, 900};

template <class Clip>
void check_steps(int ranks,
                 shard_by by,
                 Clip const& clip,
                 bucket_options options,
                 storage_options const& storage,
                 dtype type,
                 double unit,
                 std::uint64_t seed,
                 auto expected) {
  CAPTURE(ranks);
  CAPTURE(clip.describe());
  options.pad_to = by == shard_by::elements ? 2 * static_cast<std::size_t>(ranks) : 1;
  auto wrong     = std::atomic<int>{0};
  local::run(ranks,
             {.faults = {.seed = seed, .max_delay = 20us, .reorder = seed % 2 == 1}},
             [&](communicator& comm, host::device& device) {
               auto buckets = gradient_buckets{
                   device, bucket_plan{test::parameters(sizes, type), options}, storage};
               auto pipeline = clip_allreduce{
                   buckets, comm, clip, reduce::sharded{average::ranks{}, by}, non_finite::skip{}};
               auto compute = device.make_stream();
               for (auto step = std::size_t{0}; step < 3; ++step) {
                 test::poison_all(buckets);
                 test::run_step(pipeline, buckets, compute, [&](std::size_t p, buffer_view view) {
                   test::write(view, comm.rank(), step, p);
                 });
                 auto const g = test::all_gradients(comm.size(), step, sizes);
                 auto const error =
                     test::largest_shard_error(pipeline, buckets, expected(g, buckets.plan()));
                 if (!(error <= 8 * 8 * ranks * unit)) { ++wrong; }
                 if (pipeline.sync_report().skipped) { ++wrong; }
               }
             });
  CHECK(wrong == 0);
}

}  // namespace

TEST_CASE("reduce::sharded gives each rank its part of what the whole reduction would be") {
  auto seed = std::uint64_t{0};
  for (auto const ranks : {1, 2, 3, 4, 5, 6, 7, 8}) {
    for (auto const& options : {bucket_options{}, test::one_each}) {
      auto const check = [&](auto clip, auto expected) {
        for (auto const by : {shard_by::elements, shard_by::parameters}) {
          check_steps(ranks, by, clip, options, {}, dtype::fp32, 1.2e-7, ++seed, expected);
        }
      };
      check(clip::none{}, [](auto const& g, auto const&) { return test::reference_none(g); });
      check(clip::after{2.0},
            [](auto const& g, auto const&) { return test::reference_after(g, 2.0); });
      check(clip::before{2.0},
            [](auto const& g, auto const&) { return test::reference_before(g, 2.0); });
      check(clip::bucketwise{threshold::equal{2.0}}, [](auto const& g, auto const& plan) {
        return test::reference_bucketwise(g, plan, threshold::equal{2.0}.values(plan));
      });
    }
  }
}

TEST_CASE("reduce::sharded writes its part back, whatever the storage") {
  auto seed        = std::uint64_t{50};
  auto const check = [&](storage_options storage, dtype type, double unit) {
    for (auto const by : {shard_by::elements, shard_by::parameters}) {
      check_steps(
          3, by, clip::after{2.0}, {}, storage, type, unit, ++seed, [](auto const& g, auto&) {
            return test::reference_after(g, 2.0);
          });
    }
  };
  check({}, dtype::fp64, 2.4e-7);  // the coefficient is a float
  check({}, dtype::bf16, 0x1p-8);
  check({}, dtype::fp16, 0x1p-11);
  check({.reduce = dtype::bf16}, dtype::fp32, 0x1p-8);
  check({.reduce = dtype::fp64}, dtype::fp32, 1.2e-7);
  check({.accumulate = dtype::fp32}, dtype::bf16, 0x1p-8);
}

TEST_CASE("reduce::sharded writes its part back into the trainer's own tensors") {
  auto wrong = std::atomic<int>{0};
  local::run(3, [&](communicator& comm, host::device& device) {
    auto memory  = std::vector<std::vector<float>>{};
    auto tensors = std::vector<buffer_view>{};
    for (auto const size : sizes) { memory.emplace_back(size); }
    for (auto& m : memory) { tensors.emplace_back(std::span{m}); }
    auto buckets =
        gradient_buckets{device, bucket_plan{test::parameters(sizes), {.pad_to = 3}}, tensors};
    auto pipeline = clip_allreduce{buckets, comm, clip::none{}, reduce::sharded{}};
    auto compute  = device.make_stream();
    test::run_step(pipeline, buckets, compute, [&](std::size_t p, buffer_view view) {
      test::write(view, comm.rank(), 0, p);
    });
    auto const expected = test::reference_none(test::all_gradients(3, 0, sizes));
    if (!(test::largest_shard_error(pipeline, buckets, expected) <= 1e-5)) { ++wrong; }
  });
  CHECK(wrong == 0);
}

TEST_CASE("reduce::sharded by parameters gives a rank whole ones, with what is tied and frozen") {
  for (auto const ranks : {1, 2, 3, 8}) {  // more ranks than parameters too
    auto wrong  = std::atomic<int>{0};
    auto owners = std::array<std::atomic<int>, 6>{};
    local::run(ranks, [&](communicator& comm, host::device& device) {
      auto list = test::parameters({1000, 7, 0, 3});
      list.push_back({.name = "tied", .count = 7, .tied_to = "p1"});
      list.push_back({.name = "frozen", .count = 9, .trainable = false});
      auto buckets         = gradient_buckets{device, bucket_plan{list, test::one_each}};
      auto const reduction = reduce::sharded{average::none{}, shard_by::parameters};
      auto pipeline        = clip_allreduce{buckets, comm, clip::none{}, reduction};
      auto const shards    = parameter_shards{device, comm, buckets.plan(), shard_by::parameters};
      auto compute         = device.make_stream();
      test::run_step(pipeline, buckets, compute, [&](std::size_t p, buffer_view view) {
        for (auto i = std::size_t{0}; i < view.count(); ++i) {
          test::store(view, i, (comm.rank() + 1.0) * (p == 4 ? 2.0 : static_cast<double>(p + 1)));
        }
      });
      for (auto p = std::size_t{0}; p < 6; ++p) {
        if (!shards.owns(p)) { continue; }
        ++owners.at(p);
        auto const factor = static_cast<double>(p + 1);
        for (auto const x : buckets.gradient<float>(p)) {
          if (static_cast<double>(x) != factor * ranks * (ranks + 1) / 2) { ++wrong; }
        }
        auto const& slot = *buckets.plan().slot(p);
        auto const own   = pipeline.own_part(slot.bucket);
        if (own.begin > slot.offset || own.end < slot.offset + slot.count) { ++wrong; }
        if (pipeline.result(slot.bucket).count() != own.count()) { ++wrong; }
        if (shards.shard(slot.bucket).count() != own.count()) { ++wrong; }
      }
    });
    CHECK(wrong == 0);
    for (auto const p : {0, 1, 3}) { CHECK(owners.at(static_cast<std::size_t>(p)) == 1); }
    for (auto const p : {2, 4, 5}) { CHECK(owners.at(static_cast<std::size_t>(p)) == 0); }
  }
}

TEST_CASE("reduce::sharded by parameters divides fp64 as fp64, and leaves Inf what it is") {
  constexpr auto inf = std::numeric_limits<double>::infinity();
  for (auto const ranks : {2, 3, 5, 7}) {
    auto wrong = std::atomic<int>{0};
    local::run(ranks, [&](communicator& comm, host::device& device) {
      auto buckets = gradient_buckets{device, bucket_plan{test::parameters({100}, dtype::fp64)}};
      auto const reduction = reduce::sharded{average::ranks{}, shard_by::parameters};
      auto pipeline        = clip_allreduce{buckets, comm, clip::none{}, reduction};
      auto compute         = device.make_stream();
      auto const value     = [](int rank, std::size_t i) {
        return 1.0 / static_cast<double>(3 * i + 7 * static_cast<std::size_t>(rank) + 1);
      };
      test::run_step(pipeline, buckets, compute, [&](std::size_t, buffer_view view) {
        for (auto i = std::size_t{0}; i < view.count(); ++i) {
          test::store(view, i, i == 99 ? -inf : value(comm.rank(), i));
        }
      });
      auto const own = pipeline.result(0).as<double>();
      if (own.empty()) { return; }
      for (auto i = std::size_t{0}; i < 99; ++i) {
        auto mean = 0.0;
        for (auto r = 0; r < ranks; ++r) { mean += value(r, i); }
        mean /= ranks;
        if (!(std::abs(own[i] - mean) <= 4.5e-16 * mean)) { ++wrong; }
      }
      if (own[99] != -inf) { ++wrong; }
    });
    CHECK(wrong == 0);
  }
}

TEST_CASE("reduce::sharded by parameters clips by one norm over all of them: case B4") {
  auto coefficients = std::array<std::uint32_t, 4>{};
  auto wrong        = std::atomic<int>{0};
  local::run(4, [&](communicator& comm, host::device& device) {
    auto const rank = static_cast<std::size_t>(comm.rank());
    auto buckets    = gradient_buckets{device, bucket_plan{test::parameters({1, 1, 1, 1})}};
    auto pipeline   = clip_allreduce{buckets,
                                   comm,
                                   clip::after{.max_norm = 1.0, .in_place = false},
                                   reduce::sharded{average::ranks{}, shard_by::parameters}};
    auto compute    = device.make_stream();
    test::run_step(pipeline, buckets, compute, [](std::size_t p, buffer_view view) {
      test::store(view, 0, std::array{3.0, 4.0, 0.0, 12.0}.at(p));
    });
    if (pipeline.sync_report().norm != 13.0) { ++wrong; }
    coefficients.at(rank) = std::bit_cast<std::uint32_t>(pipeline.status()->coefficient);
    if (pipeline.own_part(0).count() == 0) { ++wrong; }  // a parameter for each rank
  });
  CHECK(wrong == 0);
  for (auto const c : coefficients) { CHECK(c == std::bit_cast<std::uint32_t>(1.0F / 13.0F)); }
}

TEST_CASE("reduce::sharded clips by one norm over all parts, of the same bits on every rank") {
  // The parts of the gradient have norms 3, 4, 0 and 12.
  auto coefficients = std::array<std::uint32_t, 4>{};
  auto results      = std::array<float, 4>{};
  auto wrong        = std::atomic<int>{0};
  local::run(4, [&](communicator& comm, host::device& device) {
    auto const rank = static_cast<std::size_t>(comm.rank());
    auto buckets    = gradient_buckets{device, bucket_plan{test::parameters({4}), {.pad_to = 4}}};
    auto pipeline   = clip_allreduce{
        buckets, comm, clip::after{.max_norm = 1.0, .in_place = false}, reduce::sharded{}};
    auto compute = device.make_stream();
    test::run_step(pipeline, buckets, compute, [](std::size_t, buffer_view view) {
      for (auto i = std::size_t{0}; i < 4; ++i) {
        test::store(view, i, std::array{3.0, 4.0, 0.0, 12.0}.at(i));
      }
    });
    if (pipeline.sync_report().norm != 13.0) { ++wrong; }
    coefficients.at(rank) = std::bit_cast<std::uint32_t>(pipeline.status()->coefficient);
    results.at(rank)      = pipeline.result(0).as<float>()[0];
  });
  CHECK(wrong == 0);
  CHECK(results == std::array{3.0F, 4.0F, 0.0F, 12.0F});
  for (auto const c : coefficients) { CHECK(c == std::bit_cast<std::uint32_t>(1.0F / 13.0F)); }
}

TEST_CASE("reduce::sharded skips on all ranks, and its owner names what is not finite") {
  for (auto const by : {shard_by::elements, shard_by::parameters}) {
    auto named = std::atomic<int>{0};
    auto told  = std::atomic<int>{0};
    local::run(3, [&](communicator& comm, host::device& device) {
      auto buckets =
          gradient_buckets{device, bucket_plan{test::parameters({70, 900}), {.pad_to = 3}}};
      auto pipeline = clip_allreduce{
          buckets, comm, clip::none{}, reduce::sharded{average::ranks{}, by}, non_finite::fail{}};
      auto compute = device.make_stream();
      for (auto const bad : {false, true, false}) {
        test::run_step(pipeline, buckets, compute, [&](std::size_t p, buffer_view view) {
          test::write(view, comm.rank(), 0, p);
          if (bad && p == 1 && comm.rank() == 0) {
            test::store(view, 700, std::numeric_limits<double>::infinity());
          }
        });
        try {
          static_cast<void>(pipeline.sync_report());
          told += bad ? 0 : 1;
        } catch (non_finite_error const& e) {
          told += bad ? 1 : 0;
          named += e.parameter() == "p1" && e.offset() == 700 ? 1 : 0;
        }
        if ((pipeline.status()->skip != 0) != bad) { told += 100; }
      }
    });
    CHECK(told == 9);
    CHECK(named == 1);
  }
}

TEST_CASE("reduce::sharded sums by weight where it is told to") {
  auto wrong = std::atomic<int>{0};
  local::run(3, [&](communicator& comm, host::device& device) {
    auto const weights = std::vector<double>{2, 0, 6};
    auto buckets = gradient_buckets{device, bucket_plan{test::parameters(sizes), {.pad_to = 3}}};
    auto pipeline =
        clip_allreduce{buckets, comm, clip::none{}, reduce::sharded{average::weighted{}}};
    auto compute    = device.make_stream();
    auto const rank = static_cast<std::size_t>(comm.rank());
    test::run_step(pipeline,
                   buckets,
                   compute,
                   [&](std::size_t p, buffer_view view) {
                     rank == 1 ? test::poison(view) : test::write(view, comm.rank(), 0, p);
                   },
                   {.weight = weights[rank]});
    auto const expected = test::reference_weighted(test::all_gradients(3, 0, sizes), weights);
    if (!(test::largest_shard_error(pipeline, buckets, expected) <= 1e-5)) { ++wrong; }
  });
  CHECK(wrong == 0);
}

TEST_CASE("sync_join lets sharded ranks with fewer batches end, and keep their parts") {
  constexpr auto batches = std::array{5, 4, 3};
  auto const check_join  = [&](shard_by by, bool by_ranks) {
    auto wrong = std::atomic<int>{0};
    local::run(3, [&](communicator& comm, host::device& device) {
      auto const rank = static_cast<std::size_t>(comm.rank());
      auto buckets  = gradient_buckets{device, bucket_plan{test::parameters(sizes), {.pad_to = 3}}};
      auto pipeline = clip_allreduce{buckets,
                                     comm,
                                     clip::none{},
                                     reduce::sharded{average::weighted{.by_ranks = by_ranks}, by},
                                     non_finite::skip{}};
      auto compute  = device.make_stream();
      auto steps    = 0;
      auto const check = [&] {
        auto weights = std::vector<double>{};
        for (auto const n : batches) { weights.push_back(n > steps ? n : 0.0); }
        auto expected      = test::reference_weighted(test::all_gradients(3, 0, sizes), weights);
        auto const divided = by_ranks ? (weights[0] + weights[1] + weights[2]) / 3 : 1.0;
        for (auto& p : expected) {
          for (auto& x : p) { x *= divided; }
        }
        device.sync(compute);
        if (!(test::largest_shard_error(pipeline, buckets, expected) <= 1e-4)) { ++wrong; }
        if (pipeline.sync_report().skipped) { ++wrong; }
        test::poison_all(buckets);  // who has no more batches contributes nothing all the same
        ++steps;
      };
      while (steps < batches.at(rank)) {
        test::run_step(
            pipeline,
            buckets,
            compute,
            [&](std::size_t p, buffer_view view) { test::write(view, comm.rank(), 0, p); },
            {.weight = static_cast<double>(batches.at(rank))});
        check();
      }
      pipeline.sync_join(compute, check);
      if (steps != 5) { ++wrong; }
    });
    CHECK(wrong == 0);
  };
  for (auto const by : {shard_by::elements, shard_by::parameters}) {
    check_join(by, false);
    check_join(by, true);
  }
}

TEST_CASE(
    "reduce::sharded refuses buckets that do not fall into equal parts, and tells what it is") {
  local::run(3, [](communicator& comm, host::device& device) {
    auto uneven     = gradient_buckets{device, bucket_plan{test::parameters({4})}};
    auto const make = [&] {
      auto const pipeline = clip_allreduce{uneven, comm, clip::none{}, reduce::sharded{}};
    };
    CHECK_THROWS_WITH_AS(make(), doctest::Contains("set bucket_options::pad_to"), contract_error);
    auto even = gradient_buckets{device, bucket_plan{test::parameters({4}), {.pad_to = 3}}};
    auto const pipeline = clip_allreduce{even, comm, clip::none{}, reduce::sharded{}};
    CHECK(pipeline.describe().find("rank r keeps part r of W") != std::string::npos);
    CHECK_THROWS_AS(static_cast<void>(pipeline.own_part(1)), contract_error);
  });
}

TEST_CASE("reduce::sharded refuses an order that makes buckets of no equal parts, on all ranks") {
  local::run(2, [](communicator& comm, host::device& device) {
    auto buckets  = gradient_buckets{device, bucket_plan{test::parameters({2, 3})}};  // 3, gap, 2
    auto pipeline = clip_allreduce{buckets, comm, clip::none{}, reduce::sharded{}};
    auto compute  = device.make_stream();
    pipeline.begin(compute);
    for (auto const p : {0U, 1U}) {
      test::write(buckets.gradient(p), comm.rank(), 0, p);
      pipeline.ready(p, compute);
    }
    pipeline.finish(compute);
    CHECK_THROWS_WITH_AS(pipeline.sync_learn_order(),
                         doctest::Contains("set bucket_options::pad_to"),
                         contract_error);
    CHECK_THROWS_WITH_AS(
        pipeline.begin(compute), doctest::Contains("an earlier step failed"), state_error);
  });
}

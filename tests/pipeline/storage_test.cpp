// SPDX-License-Identifier: Apache-2.0
// Where gradients live and in which dtypes they are added up and reduced.
#include <gradlane/gradlane.hpp>

#include <doctest/doctest.h>

#include <support/model.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

namespace {

using namespace gradlane;
using local::communicator;

constexpr auto floating = std::array{dtype::fp32, dtype::fp64, dtype::bf16, dtype::fp16};

/// A trainer's own tensors, one vector per parameter.
struct owned_tensors {
  explicit owned_tensors(std::vector<parameter> const& parameters) {
    for (auto const& p : parameters) {
      memory.emplace_back(p.count * size_of(p.type));
      views.emplace_back(memory.back().data(), p.count, p.type);
    }
  }
  std::vector<std::vector<std::byte>> memory;
  std::vector<buffer_view> views;
};

}  // namespace

TEST_CASE("gradient_buckets aligns bound gradients and gives empty views where there is no slot") {
  auto device     = host::device{};
  auto parameters = test::parameters({3, 0, 5, 70});
  parameters.push_back({.name = "frozen", .count = 4, .trainable = false});
  auto const buckets = gradient_buckets{device, bucket_plan{parameters}};
  for (auto const p : {std::size_t{0}, std::size_t{2}, std::size_t{3}}) {
    CHECK(reinterpret_cast<std::uintptr_t>(buckets.gradient(p).data()) % 256 == 0);
    CHECK(buckets.gradient(p).count() == parameters[p].count);
  }
  CHECK(buckets.gradient(1).empty());
  CHECK(buckets.gradient(4).empty());
  CHECK(buckets.size_bytes() >= 78 * sizeof(float));
  CHECK_THROWS_WITH_AS(
      static_cast<void>(buckets.gradient(9)), doctest::Contains("parameter 9"), contract_error);
  CHECK_THROWS_WITH_AS(static_cast<void>(buckets.gradient<double>(0)),
                       doctest::Contains("asked for fp64, holds fp32"),
                       contract_error);
}

TEST_CASE("gradient_buckets makes the gaps between gradients zeros, whatever was in the memory") {
  auto device     = host::device{};
  auto const plan = bucket_plan{test::parameters({3, 0, 5, 70}), {.pad_to = 7}};
  auto options    = storage_options{.accumulate = dtype::fp64, .reduce = dtype::bf16};
  for (auto round = 0; round < 3; ++round) {  // the heap gives the poisoned memory out again
    auto buckets = gradient_buckets{device, plan, options};
    for (auto b = std::size_t{0}; b < plan.buckets().size(); ++b) {
      auto const& bucket = buckets.bucket(b);
      auto is_gap        = std::vector<bool>(bucket.wire.count(), true);
      for (auto const owner : plan.buckets()[b].parameters) {
        auto const& slot = *plan.slot(owner);
        for (auto i = slot.offset; i < slot.offset + slot.count; ++i) { is_gap[i] = false; }
      }
      CHECK(std::count(is_gap.begin(), is_gap.end(), true) > 0);
      for (auto i = std::size_t{0}; i < is_gap.size(); ++i) {
        if (!is_gap[i]) { continue; }
        CHECK(test::load(bucket.gradient, i) == 0.0);
        CHECK(test::load(bucket.accumulator, i) == 0.0);
        CHECK(test::load(bucket.wire, i) == 0.0);
      }
    }
    test::poison_all(buckets);
  }
}

TEST_CASE("gradient_buckets refuses dtypes and tensors that cannot serve") {
  auto device     = host::device{};
  auto parameters = test::parameters({4, 4});
  auto const plan = bucket_plan{parameters};
  CHECK_THROWS_AS((gradient_buckets{device, plan, storage_options{.accumulate = dtype::bf16}}),
                  contract_error);
  CHECK_THROWS_AS((gradient_buckets{device, plan, storage_options{.reduce = dtype::int32}}),
                  contract_error);
  auto memory       = std::vector<float>(9);
  auto const all    = std::span{memory};
  auto const refuse = [&](std::vector<buffer_view> const& tensors, char const* message) {
    CHECK_THROWS_WITH_AS((gradient_buckets<host::device>{device, plan, tensors}),
                         doctest::Contains(message),
                         contract_error);
  };
  refuse({all.first(4)}, "one tensor for each parameter");
  refuse({all.first(4), all.subspan(4, 5)}, "'p1' has 5 elements");
  refuse({all.first(4), all.subspan(3, 4)}, "'p0' and 'p1' overlap");
  refuse({all.first(4), all.first(4)}, "not tied");
  refuse({all.first(4), buffer_view{nullptr, 4, dtype::fp32}}, "'p1' has no memory");
  auto const bytes = reinterpret_cast<std::byte*>(memory.data());
  refuse({all.first(4), buffer_view{bytes + 18, 4, dtype::fp32}}, "'p1' is not aligned");
  parameters[1].tied_to = "p0";
  CHECK_THROWS_WITH_AS(
      (gradient_buckets<host::device>{device,
                                      bucket_plan{parameters},
                                      std::vector<buffer_view>{all.first(4), all.subspan(4, 4)}}),
      doctest::Contains("memory of its own"),
      contract_error);
}

TEST_CASE("gradient_buckets with tensors gives these back, and empty views of frozen ones") {
  auto device             = host::device{};
  auto parameters         = test::parameters({4, 4, 0});
  parameters[1].trainable = false;
  auto tensors            = owned_tensors{parameters};
  auto const buckets =
      gradient_buckets<host::device>{device, bucket_plan{parameters}, tensors.views};
  CHECK(buckets.gradient(0).data() == tensors.views[0].data());
  CHECK(buckets.gradient(1).empty());
  CHECK(buckets.gradient(2).empty());
  CHECK_THROWS_AS(static_cast<void>(buckets.gradient(3)), contract_error);
}

TEST_CASE("clip_allreduce packs and unpacks a trainer's own tensors, in every dtype and mode") {
  auto const sizes = std::vector<std::size_t>{5, 0, 64, 1000, 1};
  auto const run =
      [&](auto clip, dtype type, storage_options options, auto const& expected, double bound) {
        local::run(2, [&](communicator& comm, host::device& device) {
          auto const parameters = test::parameters(sizes, type);
          auto tensors          = owned_tensors{parameters};
          auto buckets          = gradient_buckets<host::device>{
              device,
              bucket_plan{parameters, {.cap_bytes = 512, .first_cap_bytes = 512}},
              tensors.views,
              options};
          auto pipeline = clip_allreduce{buckets, comm, clip};
          auto compute  = device.make_stream();
          for (auto repeat = 0; repeat < 2; ++repeat) {
            test::poison_all(buckets);
            test::run_step(pipeline, buckets, compute, [&](std::size_t p, buffer_view view) {
              CHECK(view.data() == tensors.views[p].data());
              test::write(view, comm.rank(), 0, p);
            });
            CHECK(test::largest_error(buckets, expected) <= bound);
          }
        });
      };
  auto const g = test::all_gradients(2, 0, sizes);
  auto const plan =
      bucket_plan{test::parameters(sizes, dtype::fp32), {.cap_bytes = 512, .first_cap_bytes = 512}};
  auto const each = clip::bucketwise{threshold::equal{3.0}};
  for (auto const type : floating) {
    CAPTURE(name_of(type));
    // Halves of integers up to 8 are exact everywhere.
    run(clip::none{}, type, {}, test::reference_none(g), 0.0);
    run(clip::none{}, type, {.reduce = dtype::fp32}, test::reference_none(g), 0.0);
    run(clip::none{}, type, {.accumulate = dtype::fp32}, test::reference_none(g), 0.0);
    auto const unit = type == dtype::bf16 ? 0x1p-8 : type == dtype::fp16 ? 0x1p-11 : 1.2e-7;
    run(clip::after{3.0}, type, {}, test::reference_after(g, 3.0), 8 * 4 * unit);
    run(clip::before{3.0},
        type,
        {.reduce = dtype::fp32},
        test::reference_before(g, 3.0),
        8 * 4 * unit);
  }
  run(each,
      dtype::fp32,
      {},
      test::reference_bucketwise(g, plan, each.bounds(plan)),
      8 * 8 * 1.2e-7);
}

TEST_CASE("clip_allreduce reduces a tensor that is registered under two names once") {
  local::run(2, [](communicator& comm, host::device& device) {
    auto parameters = test::parameters({2, 1, 2});
    auto tied       = std::vector<float>{20.0F, 20.0F};
    auto single     = std::vector<float>{0.0F};
    auto const views =
        std::vector<buffer_view>{std::span{tied}, std::span{single}, std::span{tied}};
    detect_ties(parameters, views);
    auto buckets  = gradient_buckets<host::device>{device, bucket_plan{parameters}, views};
    auto pipeline = clip_allreduce{buckets, comm, clip::after{1e9}};
    auto compute  = device.make_stream();
    pipeline.begin(compute);
    for (auto const p : {std::size_t{2}, std::size_t{1}, std::size_t{0}}) {
      pipeline.ready(p, compute);
    }
    pipeline.finish(compute);
    CHECK(pipeline.sync_report().norm == doctest::Approx(28.2842712).epsilon(1e-7));
    CHECK(tied == std::vector<float>{20.0F, 20.0F});
  });
}

TEST_CASE("clip_allreduce reduces in another dtype than the gradients where asked") {
  auto const sizes = std::vector<std::size_t>{5, 300};
  for (auto const own : floating) {
    for (auto const wire : floating) {
      for (auto const bounded : {false, true}) {
        CAPTURE(name_of(own));
        CAPTURE(name_of(wire));
        local::run(2, [&](communicator& comm, host::device& device) {
          auto buckets  = gradient_buckets{device,
                                          bucket_plan{test::parameters(sizes, own)},
                                          storage_options{.reduce = wire, .write_back = bounded}};
          auto pipeline = clip_allreduce{buckets, comm, clip::after{1e9}};
          auto compute  = device.make_stream();
          test::poison_all(buckets);
          test::run_step(pipeline, buckets, compute, [&](std::size_t p, buffer_view view) {
            test::write(view, comm.rank(), 0, p);
          });
          auto const expected = test::reference_none(test::all_gradients(2, 0, sizes));
          CHECK(buckets.reduced(1).type() == wire);
          for (auto i = std::size_t{0}; i < 300; ++i) {
            CHECK(test::load(buckets.reduced(1), i) == expected[1][i]);
          }
          if (bounded) { CHECK(test::largest_error(buckets, expected) == 0.0); }
        });
      }
    }
  }
}

TEST_CASE("clip_allreduce adds micro-steps up in fp32, where bf16 would stall at 256") {
  constexpr auto micro_steps = 4096;
  local::run(1, [](communicator& comm, host::device& device) {
    auto buckets  = gradient_buckets{device,
                                    bucket_plan{test::parameters({3}, dtype::bf16)},
                                    storage_options{.accumulate = dtype::fp32}};
    auto pipeline = clip_allreduce{buckets, comm, clip::none{}};
    auto compute  = device.make_stream();
    auto stalled  = bf16{0.0F};
    for (auto m = 1; m <= micro_steps; ++m) {
      test::run_step(pipeline,
                     buckets,
                     compute,
                     [](std::size_t, buffer_view view) {
                       for (auto i = std::size_t{0}; i < 3; ++i) { test::store(view, i, 1.0); }
                     },
                     {.accumulate = m < micro_steps});
      stalled = bf16{static_cast<float>(stalled) + 1.0F};
    }
    CHECK(static_cast<float>(stalled) == 256.0F);
    CHECK(buckets.reduced(0).as<float>()[2] == 4096.0F);
    CHECK(test::load(buckets.gradient(0), 2) == 4096.0);
  });
}

TEST_CASE(
    "clip_allreduce takes one norm and one reduction per optimizer step, of all micro-steps") {
  auto const check = [](bool copied, storage_options options) {
    local::run(2, [&](communicator& comm, host::device& device) {
      auto const parameters = test::parameters({2, 1});
      auto tensors          = owned_tensors{parameters};
      auto const plan       = bucket_plan{parameters, test::one_each};
      auto buckets  = copied ? gradient_buckets<host::device>{device, plan, tensors.views, options}
                             : gradient_buckets<host::device>{device, plan, options};
      auto pipeline = clip_allreduce{buckets, comm, clip::after{1e9}};
      auto compute  = device.make_stream();
      for (auto step = 0; step < 3; ++step) {
        auto const before = comm.collectives();
        for (auto micro = 0; micro < 4; ++micro) {
          CHECK(comm.collectives() == before);
          test::run_step(pipeline,
                         buckets,
                         compute,
                         [&](std::size_t, buffer_view view) {
                           for (auto i = std::size_t{0}; i < view.count(); ++i) {
                             // Rank sums of 4 and 7 over the micro-steps: right is 5.5.
                             auto const own = (comm.rank() == 0 ? 4.0 : 7.0) / 4.0;
                             auto const sum =
                                 options.accumulate || micro == 0 ? 0.0 : test::load(view, i);
                             test::store(view, i, sum + own);
                           }
                         },
                         {.accumulate = micro < 3});
        }
        CHECK(comm.collectives() == before + 2);
        CHECK(test::load(buckets.gradient(0), 1) == 5.5);
        CHECK(pipeline.sync_report().step == static_cast<std::uint64_t>(step));
        CHECK(pipeline.sync_report().norm == doctest::Approx(std::sqrt(3 * 5.5 * 5.5)));
      }
    });
  };
  for (auto const copied : {false, true}) {
    check(copied, {.accumulate = dtype::fp32});
    check(copied, {.accumulate = dtype::fp64, .reduce = dtype::fp32});
    check(copied, {});  // the trainer adds up in place
  }
}

TEST_CASE("finish of a micro-step that the trainer adds up waits for all streams that wrote") {
  local::run(1, [](communicator& comm, host::device& device) {
    auto buckets  = gradient_buckets{device, bucket_plan{test::parameters({4, 4})}};
    auto pipeline = clip_allreduce{buckets, comm, clip::none{}};
    auto compute  = device.make_stream();
    auto other    = device.make_stream();
    auto go       = std::atomic<bool>{false};
    pipeline.begin(compute, {.accumulate = true});
    pipeline.admit(other);
    device.enqueue(other, [&] {
      while (!go) { std::this_thread::yield(); }
      for (auto const p : {std::size_t{0}, std::size_t{1}}) {
        for (auto& x : buckets.gradient<float>(p)) { x = 1.0F; }
      }
    });
    for (auto const p : {std::size_t{1}, std::size_t{0}}) { pipeline.ready(p, other); }
    pipeline.finish(compute);
    auto mark = device.make_event();
    device.enqueue(compute, [] {});
    device.record(mark, compute);
    CHECK_THROWS_AS(device.sync(mark, std::chrono::milliseconds{20}), timeout_error);
    go = true;
    pipeline.begin(compute);  // the second micro-step adds on another stream
    device.enqueue(compute, [&] {
      for (auto const p : {std::size_t{0}, std::size_t{1}}) {
        for (auto& x : buckets.gradient<float>(p)) { x += 2.0F; }
      }
    });
    for (auto const p : {std::size_t{1}, std::size_t{0}}) { pipeline.ready(p, compute); }
    pipeline.finish(compute);
    device.sync(compute);
    CHECK(buckets.gradient<float>(0)[3] == 3.0F);
    CHECK(buckets.gradient<float>(1)[0] == 3.0F);
  });
}

TEST_CASE("gradient_buckets::reduced holds what the clip mode gives, in every kind of storage") {
  auto const sizes    = std::vector<std::size_t>{5, 70};
  auto const expected = test::reference_after(test::all_gradients(2, 0, sizes), 1.0);
  auto const check    = [&](bool copied, storage_options options) {
    local::run(2, [&](communicator& comm, host::device& device) {
      auto const parameters = test::parameters(sizes);
      auto tensors          = owned_tensors{parameters};
      auto const plan       = bucket_plan{parameters, test::one_each};
      auto buckets  = copied ? gradient_buckets<host::device>{device, plan, tensors.views, options}
                                : gradient_buckets<host::device>{device, plan, options};
      auto pipeline = clip_allreduce{buckets, comm, clip::after{1.0}};
      auto compute  = device.make_stream();
      test::run_step(pipeline, buckets, compute, [&](std::size_t p, buffer_view view) {
        test::write(view, comm.rank(), 0, p);
      });
      CHECK(test::largest_error(buckets, expected) <= 1e-6);
      for (auto p = std::size_t{0}; p < sizes.size(); ++p) {
        for (auto i = std::size_t{0}; i < sizes[p]; ++i) {
          CHECK(std::abs(test::load(buckets.reduced(p), i) - expected[p][i]) <= 1e-6);
        }
      }
    });
  };
  for (auto const copied : {false, true}) {
    check(copied, {});
    check(copied, {.reduce = dtype::fp64});
    check(copied, {.accumulate = dtype::fp32});
    check(copied, {.accumulate = dtype::fp64, .reduce = dtype::fp32});
  }
}

TEST_CASE("sync_learn_order rebuilds the plan in rank 0's order and keeps reducing every step") {
  auto const sizes = std::vector<std::size_t>{3, 4, 5, 6};
  local::run(2, [&](communicator& comm, host::device& device) {
    auto buckets  = gradient_buckets{device,
                                    bucket_plan{test::parameters(sizes), test::one_each},
                                    storage_options{.accumulate = dtype::fp32}};
    auto pipeline = clip_allreduce{buckets, comm, clip::bucketwise{threshold::by_size{1e9}}};
    auto compute  = device.make_stream();
    CHECK_THROWS_AS(pipeline.sync_learn_order(), state_error);
    // Rank 0 is ready in the order 1, 3, 0, 2; the other rank in another.
    auto const order = comm.rank() == 0 ? std::array<std::size_t, 4>{1, 3, 0, 2}
                                        : std::array<std::size_t, 4>{0, 1, 2, 3};
    for (auto step = std::size_t{0}; step < 5; ++step) {
      for (auto micro = 0; micro < 3; ++micro) {
        auto const before = comm.collectives();
        pipeline.begin(compute, {.accumulate = micro < 2});
        for (auto const p : order) {
          test::write(buckets.gradient(p), comm.rank(), step, p);
          pipeline.ready(p, compute);
        }
        pipeline.finish(compute);
        device.sync(compute);
        CHECK(comm.collectives() == before + (micro < 2 ? 0 : 4));
      }
      auto expected = test::reference_none(test::all_gradients(2, step, sizes));
      for (auto& p : expected) {
        for (auto& x : p) { x *= 3.0; }
      }
      CHECK(test::largest_error(buckets, expected) <= 24 * 4 * 1.2e-7);
      if (step != 0) { continue; }
      pipeline.sync_learn_order();
      for (auto b = std::size_t{0}; b < 4; ++b) {
        CHECK(pipeline.plan().buckets()[b].parameters ==
              std::vector<std::size_t>{std::array<std::size_t, 4>{1, 3, 0, 2}.at(b)});
      }
      CHECK_THROWS_AS(pipeline.sync_report(), state_error);
    }
  });
}

TEST_CASE("clip_allreduce goes through all its calls where there is nothing to reduce") {
  auto const check = [](auto clip) {
    CAPTURE(clip.describe());
    local::run(2, [&](communicator& comm, host::device& device) {
      auto buckets  = gradient_buckets{device, bucket_plan{test::parameters({0, 0})}};
      auto pipeline = clip_allreduce{buckets, comm, clip, average::weighted{}, non_finite::skip{}};
      auto compute  = device.make_stream();
      auto const step = [&] {
        test::run_step(pipeline, buckets, compute, [](std::size_t, buffer_view) {});
      };
      CHECK_THROWS_AS(pipeline.begin(compute, {.weight = -1.0}), contract_error);
      step();  // a begin that was refused leaves the pipeline as it was
      step();
      CHECK(pipeline.sync_report().step == 1);
      CHECK(pipeline.sync_report().norm == 0.0);
      CHECK_FALSE(pipeline.sync_report().skipped);
      pipeline.sync_learn_order();
      step();
      CHECK(pipeline.sync_report().step == 0);
      for (auto twice = 0; twice < 2; ++twice) {
        pipeline.sync_join(compute, [] { FAIL("a step was made"); });
      }
    });
  };
  check(clip::none{});
  check(clip::after{1.0});
  check(clip::before{1.0});
  check(clip::bucketwise{threshold::equal{1.0}});
  check(clip::bucketwise{threshold::by_size{1.0}});
  check(clip::bucketwise{threshold::adaptive{.agreed = true}});
}

TEST_CASE("clip_allreduce combines copies, micro-steps, weights, ties, learned order and joining") {
  for (auto const wire : floating) {
    CAPTURE(name_of(wire));
    local::run(3, [&](communicator& comm, host::device& device) {
      auto parameters         = test::parameters({33, 33, 33, 33});
      parameters[2].trainable = false;
      auto memory             = owned_tensors{parameters};
      auto tensors            = memory.views;
      tensors[3]              = tensors[0];
      detect_ties(parameters, tensors);
      auto buckets = gradient_buckets<host::device>{device,
                                                    bucket_plan{parameters, test::one_each},
                                                    tensors,
                                                    {.accumulate = dtype::fp64, .reduce = wire}};
      auto pipeline =
          clip_allreduce{buckets, comm, clip::after{1e9}, average::weighted{}, non_finite::skip{}};
      auto compute    = device.make_stream();
      auto const own  = comm.rank() + 1.0;  // of every gradient, and the weight
      auto const step = [&](int micro_steps) {
        for (auto m = 1; m <= micro_steps; ++m) {
          auto const write = [&](std::size_t p, buffer_view view) {
            for (auto i = std::size_t{0}; i < view.count() && p != 0; ++i) {
              test::store(view, i, own);  // the tied one is written once
            }
          };
          test::run_step(
              pipeline, buckets, compute, write, {.weight = own, .accumulate = m < micro_steps});
        }
      };
      auto const check = [&](double expected) {
        auto const unit = wire == dtype::bf16 ? 0x1p-8 : wire == dtype::fp16 ? 0x1p-11 : 1.2e-7;
        for (auto const p : {std::size_t{0}, std::size_t{1}, std::size_t{3}}) {
          CHECK(std::abs(test::load(tensors[p], 32) - expected) <= 8 * 4 * unit);
        }
      };
      step(2);
      check(2.0 * (1 + 4 + 9) / 6);
      pipeline.sync_learn_order();
      step(3);
      check(3.0 * (1 + 4 + 9) / 6);
      if (comm.rank() == 2) {  // the others have no more data
        step(2);
        check(2.0 * 3);
      }
      auto joined = 0;
      pipeline.sync_join(compute, [&] {
        device.sync(compute);
        check(2.0 * 3);
        ++joined;
      });
      CHECK(joined == (comm.rank() == 2 ? 0 : 1));
    });
  }
}

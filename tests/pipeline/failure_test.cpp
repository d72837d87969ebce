// SPDX-License-Identifier: Apache-2.0
// What goes wrong in training, and what the pipeline says about it.
#include <gradlane/gradlane.hpp>

#include <doctest/doctest.h>

#include <support/model.hpp>

#include <array>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

namespace {

using namespace gradlane;
using local::communicator;
using namespace std::chrono_literals;

constexpr auto nan_value = std::numeric_limits<double>::quiet_NaN();
constexpr auto inf_value = std::numeric_limits<double>::infinity();

[[nodiscard]] bool contains(std::string const& text, std::string const& part) {
  return text.find(part) != std::string::npos;
}

void fill(buffer_view view, double x) {
  for (auto i = std::size_t{0}; i < view.count(); ++i) { test::store(view, i, x); }
}

/// Two ranks make pipelines from different parameters; what both are told.
template <class Clip = clip::none>
std::string mismatch(std::vector<parameter> const& first,
                     std::vector<parameter> const& second,
                     Clip clip_first             = {},
                     Clip clip_second            = {},
                     bucket_options options      = {},
                     storage_options storage_one = {}) {
  auto told = std::vector<std::string>(2);
  local::run(2, [&](communicator& comm, host::device& device) {
    auto const rank = static_cast<std::size_t>(comm.rank());
    auto buckets    = gradient_buckets{
        device,
        bucket_plan{rank == 0 ? first : second, rank == 0 ? bucket_options{} : options},
        rank == 0 ? storage_options{} : storage_one};
    auto const before = comm.collectives();
    try {
      auto pipeline = clip_allreduce{buckets, comm, rank == 0 ? clip_first : clip_second};
      FAIL("a pipeline was made");
    } catch (plan_mismatch_error const& e) { told[rank] = e.what(); }
    CHECK(comm.collectives() <= before + 3);  // hash, sizes, texts: no data
  });
  auto const message = [](std::string const& text) { return text.substr(text.find(": ") + 2); };
  CHECK(message(told[0]) == message(told[1]));
  return told[0];
}

}  // namespace

TEST_CASE("clip_allreduce refuses ranks with different plans and names the parameter and ranks") {
  auto const base = test::parameters({4, 8, 16});
  auto sizes      = base;
  sizes[1].count  = 16;
  auto const text = mismatch(base, sizes);
  CAPTURE(text);
  CHECK(contains(text, "rank 0 has parameter 1: 'p1' 8 x fp32"));
  CHECK(contains(text, "rank 1 has parameter 1: 'p1' 16 x fp32"));

  auto names    = base;
  names[2].name = "other";
  CHECK(contains(mismatch(base, names), "rank 1 has parameter 2: 'other'"));
  auto types    = base;
  types[0].type = dtype::bf16;
  CHECK(contains(mismatch(base, types), "'p0' 4 x bf16"));
  auto uses    = base;
  uses[0].uses = 2;
  CHECK(contains(mismatch(base, uses), "uses 2"));
  auto fewer = base;
  fewer.pop_back();
  CHECK(contains(mismatch(base, fewer), "rank 0 has parameter 2: 'p2' 16 x fp32"));
  CHECK(contains(mismatch(base, base, clip::none{}, clip::none{}, {.cap_bytes = 4096}),
                 "rank 1 has cap 4096 B"));
  CHECK(contains(mismatch(base, base, clip::after{1.0}, clip::after{2.0}), "c = 2"));
  CHECK(contains(mismatch(base, base, clip::none{}, clip::none{}, {}, {.reduce = dtype::bf16}),
                 "in bf16"));
}

TEST_CASE(
    "clip_allreduce refuses a plan in another order on one rank, and shows where it differs") {
  auto told = std::string{};
  local::run(2, [&](communicator& comm, host::device& device) {
    auto plan = bucket_plan{test::parameters({4, 8, 16})};  // backward: p2 p1 p0
    if (comm.rank() == 1) { plan = plan.reordered(std::array<std::size_t, 3>{2, 0, 1}); }
    auto buckets = gradient_buckets{device, plan};
    try {
      auto pipeline = clip_allreduce{buckets, comm, clip::none{}};
      FAIL("a pipeline was made");
    } catch (plan_mismatch_error const& e) {
      if (comm.rank() == 0) { told = e.what(); }
    }
  });
  CAPTURE(told);
  CHECK(contains(told, "rank 0 has as gradient 1 in order: 'p1'"));
  CHECK(contains(told, "rank 1 has as gradient 1 in order: 'p0'"));
}

TEST_CASE("clip_allreduce refuses ranks that multiply coefficients in different places") {
  local::run(2, [&](communicator& comm, host::device& device) {
    auto buckets      = gradient_buckets{device, bucket_plan{test::parameters({4})}};
    auto const refuse = [&](auto scaling) {
      CHECK_THROWS_WITH_AS((clip_allreduce{buckets,
                                           comm,
                                           clip::before{1.0},
                                           average::ranks{},
                                           non_finite::propagate{},
                                           scaling}),
                           doctest::Contains("else in place"),
                           plan_mismatch_error);
    };
    if (comm.rank() == 0) {
      refuse(scaling::in_place{});
    } else {
      refuse(scaling::premultiplied{});
    }
  });
}

TEST_CASE("clip_allreduce refuses bounds that are no bounds") {
  local::run(1, [](communicator& comm, host::device& device) {
    auto buckets      = gradient_buckets{device, bucket_plan{test::parameters({4})}};
    auto const refuse = [&](auto clip) {
      CHECK_THROWS_AS((clip_allreduce{buckets, comm, clip}), contract_error);
    };
    for (auto const bad : {0.0, -1.0, nan_value, -inf_value}) {
      refuse(clip::after{bad});
      refuse(clip::before{bad});
      refuse(clip::bucketwise{threshold::equal{bad}});
      refuse(clip::bucketwise{threshold::by_size{bad}});
      refuse(clip::bucketwise{threshold::each{bad}});
      refuse(clip::bucketwise{threshold::list{{bad}}});
      refuse(clip::bucketwise{threshold::adaptive{.factor = bad}});
    }
    refuse(clip::bucketwise{threshold::list{{1.0, 1.0}}});
    refuse(clip::bucketwise{threshold::adaptive{.decay = 1.0}});
  });
}

TEST_CASE("ready refuses what no step can hold, and leaves the step whole") {
  local::run(1, [](communicator& comm, host::device& device) {
    auto parameters = test::parameters({2, 2, 0});
    parameters.push_back({.name = "frozen", .count = 2, .trainable = false});
    auto buckets  = gradient_buckets{device, bucket_plan{parameters}};
    auto pipeline = clip_allreduce{buckets, comm, clip::none{}};
    auto compute  = device.make_stream();
    pipeline.begin(compute);
    fill(buckets.gradient(0), 1.0);
    fill(buckets.gradient(1), 2.0);
    pipeline.ready(1, compute);
    CHECK_THROWS_WITH_AS(
        pipeline.ready(1, compute), doctest::Contains("'p1' was marked already"), state_error);
    CHECK_THROWS_WITH_AS(
        pipeline.ready(7, compute), doctest::Contains("parameter 7"), contract_error);
    CHECK_THROWS_WITH_AS(
        pipeline.ready(3, compute), doctest::Contains("'frozen' is frozen"), state_error);
    CHECK_THROWS_WITH_AS(
        pipeline.finish(compute), doctest::Contains("'p0' (bucket 0"), state_error);
    pipeline.ready(2, compute);  // an empty parameter: legal, once
    CHECK_THROWS_AS(pipeline.ready(2, compute), state_error);
    pipeline.ready(0, compute);
    pipeline.finish(compute);
    device.sync(compute);
    CHECK(buckets.gradient<float>(0)[0] == 1.0F);
    CHECK(buckets.gradient<float>(1)[1] == 2.0F);
  });
}

TEST_CASE("finish names the missing parameter on its rank, and the late peer on the others") {
  auto told    = std::vector<std::string>(2);
  auto meeting = std::barrier{2};
  local::run(2, [&](communicator& comm, host::device& device) {
    auto const rank = static_cast<std::size_t>(comm.rank());
    auto buckets =
        gradient_buckets{device, bucket_plan{test::parameters({2, 3, 4, 5}), test::one_each}};
    auto pipeline = clip_allreduce{buckets, comm, clip::none{}};
    auto compute  = device.make_stream();
    pipeline.begin(compute);
    for (auto const p : {std::size_t{3}, std::size_t{2}, std::size_t{1}, std::size_t{0}}) {
      fill(buckets.gradient(p), 1.0);
      if (rank == 1 && p == 2) { continue; }
      pipeline.ready(p, compute);
    }
    try {
      pipeline.finish(compute, 2s);
      FAIL("finish returned");
    } catch (timeout_error const& e) { told[rank] = e.what(); } catch (state_error const& e) {
      told[rank] = e.what();
    }
    meeting.arrive_and_wait();  // a pipeline that ends in the middle of a step aborts its peers
    if (rank == 0) { CHECK_THROWS_AS(pipeline.begin(compute), state_error); }
  });
  CAPTURE(told[0]);
  CAPTURE(told[1]);
  CHECK(contains(told[1], "rank 1"));
  CHECK(contains(told[1], "'p2' (bucket 1, 0 of 1 marks)"));
  CHECK(contains(told[0], "rank 0: bucket 1, 'p2'"));
}

TEST_CASE("finish with a deadline ends when a peer dies, and later steps say so") {
  for (auto const dies_at : {1U, 2U, 3U}) {
    auto told   = std::string{};
    auto script = local::script{};
    script.deaths.push_back({.rank = 1, .call = dies_at});  // call 0 compares the plans
    try {
      local::run(3, {.faults = script}, [&](communicator& comm, host::device& device) {
        auto buckets =
            gradient_buckets{device, bucket_plan{test::parameters({2, 3, 4}), test::one_each}};
        auto pipeline = clip_allreduce{buckets, comm, clip::bucketwise{threshold::equal{1.0}}};
        auto compute  = device.make_stream();
        pipeline.begin(compute);
        for (auto const p : {std::size_t{2}, std::size_t{1}, std::size_t{0}}) {
          fill(buckets.gradient(p), 1.0);
          pipeline.ready(p, compute);
        }
        pipeline.finish(compute, 1s);
      });
      FAIL("all ranks finished");
    } catch (communication_error const& e) { told = e.what(); }
    CAPTURE(told);
    CHECK(contains(told, "bucket " + std::to_string(dies_at - 1)));
    CHECK(contains(told, "'p" + std::to_string(3 - dies_at) + "'"));
  }
}

TEST_CASE("an error of the communicator comes out of sync_report with bucket and parameter") {
  auto script = local::script{};
  script.failures.push_back({.rank = 0, .call = 2});
  auto told = std::vector<std::string>(2);
  local::run(2, {.faults = script}, [&](communicator& comm, host::device& device) {
    auto buckets  = gradient_buckets{device, bucket_plan{test::parameters({2, 3}), test::one_each}};
    auto pipeline = clip_allreduce{buckets, comm, clip::none{}};
    auto compute  = device.make_stream();
    comm.set_deadline(2s);
    try {  // the error comes out wherever it is met first
      pipeline.begin(compute);
      for (auto const p : {std::size_t{1}, std::size_t{0}}) {
        fill(buckets.gradient(p), 1.0);
        pipeline.ready(p, compute);
      }
      pipeline.finish(compute);
      pipeline.sync_report();
      FAIL("no error");
    } catch (communication_error const& e) {
      told[static_cast<std::size_t>(comm.rank())] = e.what();
    }
  });
  CAPTURE(told[0]);
  CAPTURE(told[1]);
  CHECK(contains(told[0], "rank 0: bucket 1, 'p0', "));
  CHECK(contains(told[1], "rank 1: bucket 1, 'p0',"));
}

TEST_CASE("an error of the trainer's own work comes out as it is, and lets the peers go") {
  auto meeting = std::barrier{2};
  local::run(2, [&](communicator& comm, host::device& device) {
    auto buckets  = gradient_buckets{device, bucket_plan{test::parameters({2, 3}), test::one_each}};
    auto pipeline = clip_allreduce{buckets, comm, clip::bucketwise{threshold::equal{1.0}}};
    auto compute  = device.make_stream();
    auto const step = [&] {  // the peer may be told in ready(), where this rank was quick
      pipeline.begin(compute);
      for (auto const p : {std::size_t{1}, std::size_t{0}}) {
        fill(buckets.gradient(p), 1.0);
        if (comm.rank() == 0 && p == 0) {
          device.enqueue(compute, [] { throw std::runtime_error{"the kernel failed"}; });
        }
        pipeline.ready(p, compute);
      }
      pipeline.finish(compute);
      pipeline.sync_report();
    };
    if (comm.rank() == 0) {
      CHECK_THROWS_WITH_AS(step(), "the kernel failed", std::runtime_error);
    } else {
      CHECK_THROWS_WITH_AS(
          step(), doctest::Contains("rank 1: bucket 1, 'p0', could not be reduced"), aborted_error);
    }
    CHECK_THROWS_WITH_AS(
        pipeline.begin(compute), doctest::Contains("an earlier step failed"), state_error);
    meeting.arrive_and_wait();  // nobody is let go by the end of the other
  });
}

TEST_CASE("a pipeline that is destroyed after the trainer's own work failed lets its peers go") {
  auto told = std::atomic<bool>{false};
  local::run(2, [&](communicator& comm, host::device& device) {
    auto buckets  = gradient_buckets{device, bucket_plan{test::parameters({2, 3}), test::one_each}};
    auto compute  = device.make_stream();
    auto pipeline = std::unique_ptr<reduction_pipeline<host::device, communicator>>{
        new clip_allreduce{buckets, comm, clip::none{}}};
    pipeline->begin(compute);
    if (comm.rank() == 0) {
      device.enqueue(compute, [] { throw std::runtime_error{"the kernel failed"}; });
    }
    auto const step = [&] {
      for (auto const p : {std::size_t{1}, std::size_t{0}}) { pipeline->ready(p, compute); }
      pipeline->finish(compute);
      device.sync(compute, 20s);
    };
    if (comm.rank() == 0) {
      CHECK_THROWS_WITH(step(), "the kernel failed");  // by its stream, not by the pipeline
      pipeline.reset();
      while (!told) { std::this_thread::yield(); }  // the communicator lives on
    } else {
      CHECK_THROWS_AS(step(), aborted_error);  // in ready() where the other rank was quick
      told = true;
    }
  });
}

TEST_CASE("finish blames no peer where the rank's own work is late") {
  for (auto const accumulate : {false, true}) {
    local::run(1, [&](communicator& comm, host::device& device) {
      auto buckets =
          gradient_buckets{device, bucket_plan{test::parameters({2, 3}), test::one_each}};
      auto pipeline = clip_allreduce{buckets, comm, clip::none{}};
      auto compute  = device.make_stream();
      auto go       = std::atomic<bool>{false};
      pipeline.begin(compute, {.accumulate = accumulate});
      device.enqueue(compute, [&] {
        while (!go) { std::this_thread::yield(); }
      });
      for (auto const p : {std::size_t{1}, std::size_t{0}}) { pipeline.ready(p, compute); }
      CHECK_THROWS_WITH_AS(pipeline.finish(compute, 20ms),
                           doctest::Contains("bucket 0, 'p1', was not reduced in time, as this "
                                             "rank's own streams have not written it"),
                           timeout_error);
      go = true;
    });
  }
}

TEST_CASE("a pipeline that is given up in the middle of a step lets its peers go") {
  CHECK_THROWS_WITH_AS(local::run(2,
                                  [](communicator& comm, host::device& device) {
                                    auto buckets = gradient_buckets{
                                        device,
                                        bucket_plan{test::parameters({2, 3}), test::one_each}};
                                    auto pipeline = clip_allreduce{buckets, comm, clip::none{}};
                                    auto compute  = device.make_stream();
                                    pipeline.begin(compute);
                                    fill(buckets.gradient(1), 1.0);
                                    pipeline.ready(1, compute);
                                    if (comm.rank() == 0) {
                                      throw std::runtime_error{"the trainer failed"};
                                    }
                                    fill(buckets.gradient(0), 1.0);
                                    pipeline.ready(0, compute);
                                    pipeline.finish(compute);
                                    device.sync(compute);
                                  }),
                       "the trainer failed",
                       std::runtime_error);
}

TEST_CASE("a constructor does not wait for ever for a rank that makes no pipeline") {
  auto told = std::string{};
  local::run(2, [&](communicator& comm, host::device& device) {
    auto buckets = gradient_buckets{device, bucket_plan{test::parameters({2})}};
    if (comm.rank() == 1) { return; }
    try {
      auto pipeline = clip_allreduce{buckets,
                                     comm,
                                     clip::none{},
                                     average::ranks{},
                                     non_finite::propagate{},
                                     scaling::automatic{},
                                     {.construction_deadline = 100ms}};
      FAIL("a pipeline was made");
    } catch (communication_error const& e) { told = e.what(); }
  });
  CHECK_FALSE(told.empty());
}

TEST_CASE("a constructor that gives up neither waits for the late rank nor is written to by it") {
  auto given_up = std::atomic<bool>{false};
  auto told     = std::string{};
  local::run(2, [&](communicator& comm, host::device& device) {
    auto buckets    = gradient_buckets{device, bucket_plan{test::parameters({2})}};
    auto const make = [&] {
      auto pipeline = clip_allreduce{buckets,
                                     comm,
                                     clip::none{},
                                     average::ranks{},
                                     non_finite::propagate{},
                                     scaling::automatic{},
                                     {.construction_deadline = 50ms}};
      FAIL("a pipeline was made");
    };
    if (comm.rank() == 1) {  // alive, but elsewhere
      while (!given_up) { std::this_thread::yield(); }
      CHECK_THROWS_AS(make(), communication_error);
      return;
    }
    try {
      make();
    } catch (timeout_error const& e) { told = e.what(); }
    given_up = true;
  });
  CHECK(contains(told, "rank 0 waited in vain for other ranks"));
}

TEST_CASE("sync_learn_order that gives up aborts the communicator, and later calls say so") {
  auto given_up = std::atomic<bool>{false};
  local::run(2, [&](communicator& comm, host::device& device) {
    auto buckets  = gradient_buckets{device, bucket_plan{test::parameters({2, 3})}};
    auto pipeline = clip_allreduce{buckets,
                                   comm,
                                   clip::none{},
                                   average::ranks{},
                                   non_finite::propagate{},
                                   scaling::automatic{},
                                   {.construction_deadline = 1s}};
    auto compute  = device.make_stream();
    test::run_step(pipeline, buckets, compute, [](std::size_t, buffer_view v) { fill(v, 1.0); });
    if (comm.rank() == 1) {
      while (!given_up) { std::this_thread::yield(); }
      CHECK_THROWS_AS(pipeline.sync_learn_order(), communication_error);
    } else {
      CHECK_THROWS_WITH_AS(
          pipeline.sync_learn_order(), doctest::Contains("waited in vain"), timeout_error);
      given_up = true;
    }
    CHECK_THROWS_WITH_AS(
        pipeline.begin(compute), doctest::Contains("an earlier step failed"), state_error);
    CHECK_THROWS_WITH_AS(
        pipeline.ready(0, compute), doctest::Contains("an earlier step failed"), state_error);
    CHECK_THROWS_WITH_AS(
        pipeline.sync_report(), doctest::Contains("an earlier step failed"), state_error);
  });
}

namespace {

/// Clips nothing, and fails on rank 1 when it is asked for the second time.
struct fragile_clip {
  static constexpr auto scope = clip_scope::none;
  int rank;
  std::shared_ptr<int> asked{std::make_shared<int>(0)};

  [[nodiscard]] std::vector<double> bounds(bucket_plan const& plan) const {
    if (rank == 1 && ++*asked == 2) { throw std::runtime_error{"no bounds"}; }
    return clip::none::bounds(plan);
  }
  [[nodiscard]] static std::string describe() { return "none"; }
};

}  // namespace

TEST_CASE("sync_learn_order that fails on one rank lets its peers go") {
  auto aborted = std::atomic<int>{0};
  auto done    = std::atomic<bool>{false};
  local::run(2, [&](communicator& comm, host::device& device) {
    auto buckets       = gradient_buckets{device, bucket_plan{test::parameters({2, 3})}};
    auto pipeline      = clip_allreduce{buckets, comm, fragile_clip{.rank = comm.rank()}};
    auto compute       = device.make_stream();
    auto const written = [](std::size_t, buffer_view v) { fill(v, 1.0); };
    test::run_step(pipeline, buckets, compute, written);
    if (comm.rank() == 1) {
      CHECK_THROWS_WITH_AS(pipeline.sync_learn_order(), "no bounds", std::runtime_error);
      CHECK_THROWS_WITH_AS(pipeline.begin(compute), doctest::Contains("was aborted"), state_error);
      while (!done) { std::this_thread::yield(); }  // the communicator lives on
      return;
    }
    try {
      pipeline.sync_learn_order();  // which rank 0 may come through
      pipeline.begin(compute);
      for (auto const p : {1U, 0U}) { pipeline.ready(p, compute); }
      pipeline.finish(compute, 20s);
    } catch (aborted_error const&) { ++aborted; } catch (timeout_error const&) {
    }
    done = true;
  });
  CHECK(aborted == 1);
}

TEST_CASE(
    "non_finite::skip sees what overflows on the wire or in the sum, however large the bound") {
  auto const check = [](auto clip, dtype own, dtype wire, double large, auto average) {
    CAPTURE(clip.describe());
    local::run(2, [&](communicator& comm, host::device& device) {
      auto buckets = gradient_buckets{
          device, bucket_plan{test::parameters({3}, own)}, storage_options{.reduce = wire}};
      auto pipeline = clip_allreduce{buckets, comm, clip, average, non_finite::skip{}};
      auto compute  = device.make_stream();
      test::run_step(pipeline, buckets, compute, [&](std::size_t, buffer_view view) {
        fill(view, 1.0);
        test::store(view, 2, large);  // not the first element
      });
      CHECK(pipeline.sync_report().skipped);
      CHECK(pipeline.status()->skip == 1);
      test::run_step(pipeline, buckets, compute, [](std::size_t, buffer_view v) { fill(v, 1.0); });
      CHECK_FALSE(pipeline.sync_report().skipped);
    });
  };
  auto const each = [&](auto clip) {
    check(clip, dtype::fp64, dtype::fp32, 1e40, average::ranks{});
    check(clip, dtype::fp64, dtype::bf16, 1e40, average::ranks{});
    check(clip, dtype::fp32, dtype::fp32, 3e38, average::none{});
  };
  each(clip::before{inf_value});
  each(clip::before{1e60});
  each(clip::bucketwise{threshold::each{inf_value}});
  each(clip::bucketwise{threshold::adaptive{}});  // clips nothing in its first step
}

TEST_CASE("a report names no value of a step in which its rank had no weight") {
  auto const check = [](auto clip) {
    CAPTURE(clip.describe());
    local::run(2, [&](communicator& comm, host::device& device) {
      auto buckets  = gradient_buckets{device, bucket_plan{test::parameters({4})}};
      auto pipeline = clip_allreduce{buckets, comm, clip, average::weighted{}, non_finite::skip{}};
      auto compute  = device.make_stream();
      test::run_step(pipeline,
                     buckets,
                     compute,
                     [&](std::size_t, buffer_view view) {
                       fill(view, 1.0);  // both ranks' are bad, but rank 0's has no weight
                       test::store(view, comm.rank() == 0 ? 1 : 2, nan_value);
                     },
                     {.weight = comm.rank() == 0 ? 0.0 : 1.0});
      auto const& bucket = pipeline.sync_report().buckets[0];
      CHECK_FALSE(bucket.finite);
      CHECK(bucket.parameter == (comm.rank() == 0 ? "" : "p0"));
      CHECK(bucket.offset == (comm.rank() == 0 ? 0U : 2U));
    });
  };
  check(clip::before{1.0});
  check(clip::bucketwise{threshold::equal{1.0}});
}

TEST_CASE("non_finite::skip and fail take a loss scale that is none as Inf in the gradients") {
  auto const check = [](auto clip, auto policy, bool unscale, double bad) {
    CAPTURE(clip.describe());
    CAPTURE(bad);
    local::run(2, [&](communicator& comm, host::device& device) {
      auto scale    = 1.0F;
      auto buckets  = gradient_buckets{device, bucket_plan{test::parameters({3})}};
      auto pipeline = clip_allreduce{buckets,
                                     comm,
                                     clip,
                                     average::ranks{},
                                     policy,
                                     scaling::automatic{},
                                     {.loss_scale = &scale, .unscale = unscale}};
      auto compute  = device.make_stream();
      for (auto const s : {1.0, bad, 2.0}) {
        scale = static_cast<float>(s);
        test::run_step(
            pipeline, buckets, compute, [](std::size_t, buffer_view v) { fill(v, 1.0); });
        auto const good = s == 1.0 || s == 2.0;
        CHECK(pipeline.status()->skip == (good ? 0U : 1U));
        if constexpr (std::is_same_v<decltype(policy), non_finite::fail>) {
          if (!good) { CHECK_THROWS_AS(pipeline.sync_report(), non_finite_error); }
        }
      }
    });
  };
  for (auto const bad : {0.0, -1.0, inf_value, nan_value}) {
    for (auto const unscale : {true, false}) {
      check(clip::after{1.0}, non_finite::skip{}, unscale, bad);
      check(clip::before{1.0}, non_finite::skip{}, unscale, bad);
      check(clip::bucketwise{threshold::equal{1.0}}, non_finite::fail{}, unscale, bad);
      check(clip::bucketwise{threshold::adaptive{}}, non_finite::skip{}, unscale, bad);
    }
    check(clip::none{}, non_finite::skip{}, true, bad);
    check(clip::after{1.0}, non_finite::fail{}, true, bad);
  }
}

TEST_CASE("non_finite::skip skips on all ranks, and the culprit's report names the value") {
  auto const check = [](auto clip, bool local_norm, double bad, dtype type) {
    CAPTURE(clip.describe());
    CAPTURE(name_of(type));
    local::run(3, [&](communicator& comm, host::device& device) {
      auto buckets =
          gradient_buckets{device, bucket_plan{test::parameters({4, 6, 8}, type), test::one_each}};
      auto pipeline     = clip_allreduce{buckets, comm, clip, average::ranks{}, non_finite::skip{}};
      auto compute      = device.make_stream();
      auto const before = comm.collectives();
      for (auto step = 0; step < 3; ++step) {
        test::poison_all(buckets);
        test::run_step(pipeline, buckets, compute, [&](std::size_t p, buffer_view view) {
          fill(view, 1.0);
          if (step == 1 && p == 1 && comm.rank() == 2) { test::store(view, 5, bad); }
        });
        CHECK(pipeline.status()->skip == (step == 1 ? 1U : 0U));
        auto const& report = pipeline.sync_report();
        CHECK(report.skipped == (step == 1));
        CHECK(report.skipped_steps == (step >= 1 ? 1U : 0U));
        auto const& bucket = report.buckets[1];
        CHECK(bucket.finite == (step != 1));
        // Clipping by the whole gradient's norm spreads the NaN to all buckets.
        auto const spreads = step == 1 && decltype(clip)::scope == clip_scope::local_total;
        CHECK(report.buckets[0].finite == !spreads);
        CHECK(report.buckets[2].finite == !spreads);
        CHECK(report.buckets[0].parameter.empty());
        if (step == 1 && (comm.rank() == 2 || !local_norm)) {
          CHECK(bucket.parameter == "p1");
          CHECK(bucket.offset == 5);
        } else {
          CHECK(bucket.parameter.empty());
        }
        if (step != 1) { CHECK(test::load(buckets.gradient(1), 5) > 0.0); }
      }
      CHECK(comm.collectives() == before + 9);  // no more than the buckets
    });
  };
  for (auto const type : {dtype::fp32, dtype::fp64, dtype::bf16, dtype::fp16}) {
    for (auto const bad : {nan_value, inf_value, -inf_value}) {
      check(clip::none{}, false, bad, type);
      check(clip::after{1.0}, false, bad, type);
      check(clip::before{1.0}, true, bad, type);
      check(clip::bucketwise{threshold::equal{1.0}}, true, bad, type);
    }
  }
}

TEST_CASE("non_finite::skip sees a sum that overflows in fp16 although every rank was finite") {
  auto const check = [](auto clip) {
    local::run(2, [&](communicator& comm, host::device& device) {
      auto buckets  = gradient_buckets{device, bucket_plan{test::parameters({3}, dtype::fp16)}};
      auto pipeline = clip_allreduce{buckets, comm, clip, average::none{}, non_finite::skip{}};
      auto compute  = device.make_stream();
      test::run_step(pipeline, buckets, compute, [](std::size_t, buffer_view view) {
        fill(view, 1.0);
        test::store(view, 2, 40000.0);
      });
      CHECK(pipeline.sync_report().skipped);
    });
  };
  check(clip::none{});
  check(clip::after{1.0});
  check(clip::before{1e9});
  check(clip::bucketwise{threshold::equal{1e9}});
}

TEST_CASE("non_finite::fail throws on every rank, naming bucket, parameter and offset") {
  local::run(2, [](communicator& comm, host::device& device) {
    auto buckets =
        gradient_buckets{device, bucket_plan{test::parameters({4, 6, 8}), test::one_each}};
    auto pipeline = clip_allreduce{buckets,
                                   comm,
                                   clip::bucketwise{threshold::equal{1.0}},
                                   average::ranks{},
                                   non_finite::fail{}};
    auto compute  = device.make_stream();
    test::run_step(pipeline, buckets, compute, [&](std::size_t p, buffer_view view) {
      fill(view, 1.0);
      if (p == 0 && comm.rank() == 0) { test::store(view, 3, nan_value); }
    });
    try {
      pipeline.sync_report();
      FAIL("no error");
    } catch (non_finite_error const& e) {
      CHECK(e.bucket() == 2);
      CHECK(e.parameter() == (comm.rank() == 0 ? "p0" : ""));
      CHECK(e.offset() == (comm.rank() == 0 ? 3U : 0U));
      CHECK(contains(e.what(), comm.rank() == 0 ? "parameter 'p0', element 3" : "another rank"));
    }
    // Training goes on after a caught failure.
    test::run_step(pipeline, buckets, compute, [](std::size_t, buffer_view v) { fill(v, 1.0); });
    CHECK_FALSE(pipeline.sync_report().skipped);
  });
}

TEST_CASE("non_finite::propagate makes the whole bucket NaN on every rank, others stay right") {
  local::run(2, [](communicator& comm, host::device& device) {
    auto buckets  = gradient_buckets{device, bucket_plan{test::parameters({4, 6}), test::one_each}};
    auto pipeline = clip_allreduce{buckets, comm, clip::bucketwise{threshold::each{1e9}}};
    auto compute  = device.make_stream();
    test::run_step(pipeline, buckets, compute, [&](std::size_t p, buffer_view view) {
      fill(view, 1.0);
      if (p == 0 && comm.rank() == 1) { test::store(view, 2, inf_value); }
    });
    for (auto i = std::size_t{0}; i < 4; ++i) { CHECK(std::isnan(buckets.gradient<float>(0)[i])); }
    for (auto i = std::size_t{0}; i < 6; ++i) { CHECK(buckets.gradient<float>(1)[i] == 1.0F); }
    CHECK(pipeline.status()->skip == 0);
  });
}

// SPDX-License-Identifier: Apache-2.0
// Pipelines that join what each rank's own optimizer makes of its gradients.
#include <gradlane/gradlane.hpp>

#include <doctest/doctest.h>

#include <support/deltas.hpp>
#include <support/model.hpp>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <limits>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace {

using namespace gradlane;
using namespace std::chrono_literals;
using local::communicator;
using update = std::function<void(bucket_update<host::device> const&)>;

auto const sizes = std::vector<std::size_t>{5, 0, 300, 64, 9, 900};

/// Eight steps on `ranks` ranks, of which some are skipped where options say so.
/// @param factors  gives the clip factors of a plan.
template <class Optimizer, class Clip, class Join, class Factors>
void check_training(int ranks,
                    Clip clip,
                    Join join,
                    Factors factors,
                    test::delta_options const& options,
                    std::uint64_t seed,
                    double tolerance = 2e-5) {
  CAPTURE(ranks);
  CAPTURE(clip.describe());
  CAPTURE(join.describe());
  CAPTURE(seed);
  auto wrong = std::atomic<int>{0};
  local::run(ranks,
             {.faults = {.seed = seed, .max_delay = 20us, .reorder = seed % 2 == 1}},
             [&](communicator& comm, host::device& device) {
               auto trainer =
                   test::delta_trainer<host::device, communicator, Optimizer, Clip, Join>{
                       device, comm, sizes, clip, join, options};
               auto expected = test::delta_reference<Optimizer, Join>{ranks, sizes, join};
               auto random   = std::mt19937_64{seed + static_cast<unsigned>(comm.rank())};
               for (auto step = std::uint64_t{0}; step < 8; ++step) {
                 test::poison_all(trainer.buckets());
                 trainer.step(random);
                 auto const skipped = options.bad.rank >= 0 && test::bad_gradient::is_bad(step);
                 if (!skipped) {
                   expected.step(step, options.micro_steps, factors(trainer.buckets().plan()));
                 }
                 if (!(trainer.error(expected.weights()) <= tolerance)) { ++wrong; }
                 auto const& report = trainer.pipeline().sync_report();
                 if (report.skipped != skipped) { ++wrong; }
                 if (skipped && comm.rank() == options.bad.rank &&
                     report.buckets[trainer.buckets().plan().slot(options.bad.parameter)->bucket]
                             .parameter != "p" + std::to_string(options.bad.parameter)) {
                   ++wrong;
                 }
               }
             });
  CHECK(wrong == 0);
}

auto const unclipped = [](bucket_plan const&) { return test::never_clipped(); };

/// One rank makes a pipeline; what it is told.
template <class Reduction>
std::string refusal(Reduction const& reduction, pipeline_options options = {}) {
  auto told = std::string{};
  local::run(1, [&](communicator& comm, host::device& device) {
    auto buckets = gradient_buckets{device, bucket_plan{test::parameters({4})}};
    try {
      auto const pipeline = clip_allreduce{buckets,
                                           comm,
                                           clip::none{},
                                           reduction,
                                           non_finite::skip{},
                                           scaling::automatic{},
                                           options};
    } catch (contract_error const& e) { told = e.what(); }
  });
  return told;
}

}  // namespace

TEST_CASE("reduce::deltas joins the updates of local optimizers, by any policy, on any ranks") {
  auto seed = std::uint64_t{0};
  for (auto const ranks : {1, 2, 3, 4}) {
    auto const check = [&]<class Optimizer>(Optimizer, auto join) {
      check_training<Optimizer>(ranks, clip::none{}, join, unclipped, {}, ++seed);
      check_training<Optimizer>(
          ranks, clip::none{}, join, unclipped, {.buckets = test::one_each}, ++seed);
    };
    check(test::momentum_optimizer{}, reduce::adasum{});
    check(test::momentum_optimizer{}, average::none{});
    check(test::momentum_optimizer{}, average::ranks{});
    check(test::momentum_optimizer{}, average::ranks{divide::after});
    check(test::adam_optimizer{}, reduce::adasum{});
    check(test::adam_optimizer{}, average::none{});
    check(test::adam_optimizer{}, average::ranks{});
  }
}

TEST_CASE("reduce::deltas needs nobody to wait between steps") {
  auto wrong = std::atomic<int>{0};
  for (auto seed = std::uint64_t{0}; seed < 10; ++seed) {
    local::run(3,
               {.faults = {.seed = seed, .max_delay = 50us, .reorder = seed % 2 == 1}},
               [&](communicator& comm, host::device& device) {
                 auto const bad = test::bad_gradient{.rank = 1, .parameter = 2};
                 auto trainer =
                     test::delta_trainer<host::device,
                                         communicator,
                                         test::adam_optimizer,
                                         clip::none,
                                         average::ranks>{device,
                                                         comm,
                                                         sizes,
                                                         clip::none{},
                                                         average::ranks{},
                                                         {.buckets = test::one_each, .bad = bad}};
                 auto expected = test::delta_reference<test::adam_optimizer, average::ranks>{
                     3, sizes, average::ranks{}};
                 auto random = std::mt19937_64{seed + static_cast<unsigned>(comm.rank())};
                 for (auto step = std::uint64_t{0}; step < 12; ++step) {
                   trainer.step(random);
                   if (!test::bad_gradient::is_bad(step)) {
                     expected.step(step, 1, test::never_clipped());
                   }
                 }
                 if (!(trainer.error(expected.weights()) <= 2e-5)) { ++wrong; }
               });
  }
  CHECK(wrong == 0);
}

TEST_CASE("reduce::deltas gives the update clipped gradients, and divides deltas alone") {
  auto seed = std::uint64_t{100};
  for (auto const ranks : {1, 3}) {
    auto const bucketwise = clip::bucketwise{threshold::equal{2.0}};
    auto const by_bucket  = [&](bucket_plan const& plan) {
      return test::clipped_bucketwise(plan, bucketwise.bounds(plan));
    };
    auto const by_all  = [](bucket_plan const&) { return test::clipped_before(2.0); };
    auto const options = test::delta_options{.buckets = test::one_each};
    using test::momentum_optimizer;
    check_training<momentum_optimizer>(
        ranks, bucketwise, reduce::adasum{}, by_bucket, options, ++seed);
    check_training<momentum_optimizer>(
        ranks, bucketwise, average::ranks{}, by_bucket, options, ++seed);
    check_training<momentum_optimizer>(
        ranks, clip::before{2.0}, average::ranks{}, by_all, options, ++seed);
  }
}

TEST_CASE("reduce::deltas works with every storage, and over micro-steps") {
  auto seed        = std::uint64_t{200};
  auto const check = [&](test::delta_options const& options, double tolerance = 2e-5) {
    check_training<test::momentum_optimizer>(
        3, clip::none{}, average::ranks{}, unclipped, options, ++seed, tolerance);
    check_training<test::adam_optimizer>(
        2, clip::none{}, reduce::adasum{}, unclipped, options, ++seed, tolerance);
  };
  auto const coarse = 8 * 3 * 0.5 * 0x1p-8;  // steps, ranks, the largest delta, half an ulp
  check({.copied = true});
  check({.storage = {.reduce = dtype::bf16}}, coarse);
  check({.storage = {.reduce = dtype::bf16}, .copied = true}, coarse);
  check({.storage = {.reduce = dtype::fp32, .write_back = false}, .type = dtype::bf16});
  check({.storage = {.reduce = dtype::fp32, .write_back = false},
         .type    = dtype::bf16,
         .copied  = true});
  check({.type = dtype::bf16}, coarse);
  check({.storage = {.accumulate = dtype::fp32}, .micro_steps = 3});
  check({.storage = {.accumulate = dtype::fp32}, .copied = true, .micro_steps = 2});
  check({.storage     = {.accumulate = dtype::fp32, .reduce = dtype::bf16},
         .type        = dtype::bf16,
         .micro_steps = 2},
        coarse);
}

TEST_CASE("reduce::deltas leaves no trace of steps that are skipped, in moments neither") {
  auto seed = std::uint64_t{300};
  for (auto const ranks : {1, 2, 4}) {
    for (auto const parameter : {std::size_t{0}, std::size_t{3}, std::size_t{5}}) {
      auto const options = test::delta_options{.buckets = test::one_each,
                                               .bad = {.rank = ranks - 1, .parameter = parameter}};
      check_training<test::momentum_optimizer>(
          ranks, clip::none{}, average::ranks{}, unclipped, options, ++seed);
      check_training<test::adam_optimizer>(
          ranks, clip::none{}, reduce::adasum{}, unclipped, options, ++seed);
      check_training<test::adam_optimizer>(ranks,
                                           clip::bucketwise{threshold::each{1e9}},
                                           average::ranks{},
                                           unclipped,
                                           options,
                                           ++seed);
    }
  }
}

TEST_CASE("reduce::deltas skips on all ranks where an update hides what is not finite") {
  auto wrong = std::atomic<int>{0};
  local::run(3, [&](communicator& comm, host::device& device) {
    auto const sign = [&](bucket_update<host::device> const& u) {
      device.enqueue(u.stream, [g = u.gradients[0], d = u.deltas[0]] {
        for (auto i = std::size_t{0}; i < d.count(); ++i) {
          d.as<float>()[i] = g.as<float>()[i] > 0 ? -1.0F : 1.0F;
        }
      });
    };
    auto buckets  = gradient_buckets{device, bucket_plan{test::parameters({4, 6}), test::one_each}};
    auto pipeline = clip_allreduce{
        buckets, comm, clip::none{}, reduce::deltas{average::ranks{}, sign}, non_finite::skip{}};
    auto compute = device.make_stream();
    for (auto const bad : {false, true, false}) {
      test::run_step(pipeline, buckets, compute, [&](std::size_t p, buffer_view view) {
        test::write(view, comm.rank(), 0, p);
        if (bad && p == 1 && comm.rank() == 2) { test::poison(view.subview(3, 1)); }
      });
      auto const& report = pipeline.sync_report();
      if (report.skipped != bad || report.buckets[0].finite == bad) { ++wrong; }
      if (!report.buckets[1].finite) { ++wrong; }
      if (pipeline.status()->coefficient != 1.0F) { ++wrong; }
    }
  });
  CHECK(wrong == 0);
}

TEST_CASE("reduce::deltas skips where an update overflows, though the gradients are clipped") {
  auto wrong = std::atomic<int>{0};
  local::run(2, [&](communicator& comm, host::device& device) {
    auto overflows     = false;
    auto const explode = [&](bucket_update<host::device> const& u) {
      device.enqueue(u.stream, [&overflows, d = u.deltas[0]] {
        if (overflows) { test::store(d, 2, std::numeric_limits<double>::infinity()); }
      });
    };
    auto buckets  = gradient_buckets{device, bucket_plan{test::parameters({4})}};
    auto pipeline = clip_allreduce{buckets,
                                   comm,
                                   clip::bucketwise{threshold::each{1.0}},
                                   reduce::deltas{average::ranks{}, explode},
                                   non_finite::skip{}};
    auto compute  = device.make_stream();
    for (auto const bad : {false, true, false}) {
      overflows = bad && comm.rank() == 1;
      test::run_step(pipeline, buckets, compute, [&](std::size_t p, buffer_view view) {
        test::write(view, comm.rank(), 0, p);
      });
      if (pipeline.sync_report().skipped != bad) { ++wrong; }
    }
  });
  CHECK(wrong == 0);
}

TEST_CASE(
    "reduce::deltas tells which rank's gradient was not finite, also where nothing is clipped") {
  local::run(2, [&](communicator& comm, host::device& device) {
    auto const by = [&](bucket_update<host::device> const& u) {
      for (auto const d : u.deltas) { device.zero(u.stream, d); }
    };
    auto buckets = gradient_buckets{device, bucket_plan{test::parameters({4})}};
    auto pipeline =
        clip_allreduce{buckets, comm, clip::none{}, reduce::deltas{average::ranks{}, by}};
    auto compute = device.make_stream();
    for (auto step = 0; step < 2; ++step) {
      test::run_step(pipeline, buckets, compute, [&](std::size_t, buffer_view view) {
        for (auto i = std::size_t{0}; i < view.count(); ++i) { test::store(view, i, 1.0); }
        if (comm.rank() == 1 && step == 0) {
          test::store(view, 2, std::numeric_limits<double>::infinity());
        }
      });
      CHECK(pipeline.sync_report().buckets[0].finite == (comm.rank() == 0 || step == 1));
    }
  });
}

TEST_CASE("reduce::deltas takes the loss scale out before the update, and skips where it is none") {
  local::run(2, [](communicator& comm, host::device& device) {
    auto scale    = 4.0F;
    auto told     = std::vector<float>{};
    auto const by = [&](bucket_update<host::device> const& u) {
      device.enqueue(u.stream, [&told, u] {
        told.push_back(*u.coefficient);
        u.deltas[0].as<float>()[0] = u.gradients[0].as<float>()[0] * *u.coefficient;
      });
    };
    auto buckets   = gradient_buckets{device, bucket_plan{test::parameters({1})}};
    auto pipeline  = clip_allreduce{buckets,
                                   comm,
                                   clip::bucketwise{threshold::each{1.0}},
                                   reduce::deltas{average::none{}, by},
                                   non_finite::skip{},
                                   scaling::automatic{},
                                    {.loss_scale = &scale}};
    auto compute   = device.make_stream();
    auto const run = [&](float g) {
      test::run_step(
          pipeline, buckets, compute, [&](std::size_t, buffer_view v) { test::store(v, 0, g); });
      device.sync(compute);
      return buckets.gradient<float>(0)[0];
    };
    CHECK(run(2.0F) == 1.0F);   // 2/4 on each rank
    CHECK(run(16.0F) == 2.0F);  // clipped to 1
    CHECK(told == std::vector<float>{0.25F, 0.0625F});
    scale = 0.0F;
    static_cast<void>(run(2.0F));
    CHECK(pipeline.sync_report().skipped);
  });
}

TEST_CASE("reduce::deltas counts the steps that were not skipped, also over a learned order") {
  local::run(2, [](communicator& comm, host::device& device) {
    auto seen     = std::vector<std::uint64_t>{};
    auto const by = [&](bucket_update<host::device> const& u) {
      device.enqueue(u.stream, [&seen, u] {
        if (u.bucket == 0) { seen.push_back(*u.steps); }
        for (auto const d : u.deltas) { test::store(d, 0, 1.0); }
      });
    };
    auto buckets  = gradient_buckets{device, bucket_plan{test::parameters({1, 1}), test::one_each}};
    auto pipeline = clip_allreduce{
        buckets, comm, clip::none{}, reduce::deltas{average::none{}, by}, non_finite::skip{}};
    auto compute = device.make_stream();
    for (auto step = 0; step < 6; ++step) {
      test::run_step(pipeline, buckets, compute, [&](std::size_t p, buffer_view view) {
        step == 2 && p == 0 ? test::poison(view) : test::write(view, comm.rank(), 0, p);
      });
      if (step == 3) { pipeline.sync_learn_order(); }
    }
    device.sync(compute);
    CHECK(seen == std::vector<std::uint64_t>{0, 1, 2, 2, 3, 4});
  });
}

TEST_CASE("reduce::deltas leaves each rank its part where the join is sharded") {
  for (auto const by : {shard_by::elements, shard_by::parameters}) {
    auto wrong = std::atomic<int>{0};
    local::run(3, [&](communicator& comm, host::device& device) {
      auto const half = [&](bucket_update<host::device> const& u) {
        device.enqueue(u.stream, [u] {
          for (auto t = std::size_t{0}; t < u.deltas.size(); ++t) {
            auto const g = u.gradients[t].as<float>();
            for (auto i = std::size_t{0}; i < g.size(); ++i) {
              u.deltas[t].as<float>()[i] = 0.5F * g[i] * *u.coefficient;
            }
          }
        });
      };
      auto buckets =
          gradient_buckets{device, bucket_plan{test::parameters({90, 7}), {.pad_to = 3}}};
      auto pipeline = clip_allreduce{buckets,
                                     comm,
                                     clip::none{},
                                     reduce::deltas{reduce::sharded{average::none{}, by}, half},
                                     non_finite::skip{}};
      auto compute  = device.make_stream();
      test::run_step(pipeline, buckets, compute, [&](std::size_t p, buffer_view view) {
        test::write(view, comm.rank(), 0, p);
      });
      auto const skipped = pipeline.sync_report().skipped;
      auto const g       = test::all_gradients(3, 0, {90, 7});
      auto const own     = pipeline.own_part(0);
      for (auto const p : {std::size_t{0}, std::size_t{1}}) {
        auto const slot = *buckets.plan().slot(p);
        auto const part = intersection({slot.offset, slot.offset + slot.count}, own);
        for (auto i = part.begin; i < part.end; ++i) {
          auto const k = i - slot.offset;
          if (pipeline.result(0).as<float>()[i - own.begin] !=
              0.5F * static_cast<float>(g[0][p][k] + g[1][p][k] + g[2][p][k])) {
            ++wrong;
          }
        }
      }
      if (skipped) { ++wrong; }
    });
    CHECK(wrong == 0);
  }
}

TEST_CASE("an update that throws is named with its bucket, and lets the peers go") {
  auto aborted = std::atomic<int>{0};
  auto done    = std::atomic<int>{0};
  local::run(3, [&](communicator& comm, host::device& device) {
    auto const by = [&](bucket_update<host::device> const& u) {
      if (u.bucket == 1 && comm.rank() == 1) { throw std::runtime_error{"no state for it"}; }
      for (auto const d : u.deltas) { device.zero(u.stream, d); }
    };
    auto buckets =
        gradient_buckets{device, bucket_plan{test::parameters({4, 5, 6}), test::one_each}};
    auto pipeline =
        clip_allreduce{buckets, comm, clip::none{}, reduce::deltas{reduce::adasum{}, by}};
    auto compute = device.make_stream();
    pipeline.begin(compute);
    if (comm.rank() == 1) {
      pipeline.ready(2, compute);
      try {
        pipeline.ready(1, compute);
        FAIL("the update threw");
      } catch (update_error const& e) {
        CHECK(e.bucket() == 1);
        CHECK(std::string{e.what()}.find("bucket 1, 'p1', failed: no state for it") !=
              std::string::npos);
        CHECK_THROWS_WITH_AS(std::rethrow_if_nested(e), "no state for it", std::runtime_error);
      }
      CHECK_THROWS_AS(pipeline.ready(0, compute), state_error);
      while (done < 2) { std::this_thread::yield(); }  // the communicator lives on
      return;
    }
    try {
      for (auto const p : {2, 1, 0}) { pipeline.ready(static_cast<std::size_t>(p), compute); }
      pipeline.finish(compute, 20s);
    } catch (aborted_error const&) { ++aborted; } catch (timeout_error const&) {
    }
    ++done;
  });
  CHECK(aborted == 2);
}

TEST_CASE("work of an update that throws fails the step, and lets the peers go") {
  auto aborted = std::atomic<int>{0};
  local::run(2, [&](communicator& comm, host::device& device) {
    auto const by = [&](bucket_update<host::device> const& u) {
      device.enqueue(u.stream, [rank = comm.rank()] {
        if (rank == 1) { throw std::runtime_error{"no state for it"}; }
      });
    };
    auto buckets = gradient_buckets{device, bucket_plan{test::parameters({4})}};
    auto pipeline =
        clip_allreduce{buckets, comm, clip::none{}, reduce::deltas{average::ranks{}, by}};
    auto compute = device.make_stream();
    pipeline.begin(compute);
    if (comm.rank() == 1) {
      pipeline.ready(0, compute);
      CHECK_THROWS_WITH_AS(
          pipeline.finish(compute, 20s), doctest::Contains("no state for it"), std::runtime_error);
      return;
    }
    try {
      pipeline.ready(0, compute);
      pipeline.finish(compute, 20s);
    } catch (aborted_error const&) { ++aborted; }
  });
  CHECK(aborted == 1);
}

TEST_CASE("reduce::deltas says what it is, and refuses what does not fit") {
  auto const by = [](bucket_update<host::device> const&) {};
  CHECK(refusal(reduce::deltas{average::ranks{divide::split}, by}).find("use divide::before") !=
        std::string::npos);
  CHECK(refusal(reduce::deltas{average::ranks{}, update{}}).find("is an empty function") !=
        std::string::npos);
  auto const scale = 2.0F;
  CHECK(refusal(reduce::deltas{average::ranks{}, by}, {.loss_scale = &scale, .unscale = false})
            .find("pipeline_options::unscale") != std::string::npos);
  local::run(2, [&](communicator& comm, host::device& device) {
    auto buckets = gradient_buckets{device, bucket_plan{test::parameters({4})}};
    auto const pipeline =
        clip_allreduce{buckets, comm, clip::none{}, reduce::deltas{reduce::adasum{}, by}};
    CHECK(pipeline.describe().find("deltas: for clip(g_r) read what the optimizer") !=
          std::string::npos);
    CHECK(pipeline.describe().find("joined by adasum") != std::string::npos);
    CHECK(pipeline.describe().find("coefficients: given to the update") != std::string::npos);
  });
  local::run(2, [&](communicator& comm, host::device& device) {
    auto buckets    = gradient_buckets{device, bucket_plan{test::parameters({4})}};
    auto const make = [&](auto reduction) {
      auto const pipeline = clip_allreduce{buckets, comm, clip::none{}, reduction};
    };
    if (comm.rank() == 0) {
      CHECK_THROWS_AS(make(average::ranks{}), plan_mismatch_error);
    } else {
      CHECK_THROWS_AS(make(reduce::deltas{average::ranks{}, by}), plan_mismatch_error);
    }
  });
}

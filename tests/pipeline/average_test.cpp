// SPDX-License-Identifier: Apache-2.0
// Averages, weights, loss scale, ranks without data: what the sum over ranks is divided by.
#include <gradlane/gradlane.hpp>

#include <doctest/doctest.h>

#include <support/model.hpp>

#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

namespace {

using namespace gradlane;
using local::communicator;

/// What one fp16 parameter of `value` on every one of `ranks` ranks becomes.
template <class Average>
double reduce_fp16(int ranks, double value, Average average) {
  auto result = 0.0;
  local::run(ranks, [&](communicator& comm, host::device& device) {
    auto buckets  = gradient_buckets{device, bucket_plan{test::parameters({1}, dtype::fp16)}};
    auto pipeline = clip_allreduce{buckets, comm, clip::none{}, average};
    auto compute  = device.make_stream();
    test::run_step(pipeline, buckets, compute, [&](std::size_t, buffer_view view) {
      test::store(view, 0, value);
    });
    if (comm.rank() == 0) { result = test::load(buckets.gradient(0), 0); }
  });
  return result;
}

}  // namespace

TEST_CASE("average divides once, by what its name says") {
  local::run(4, [](communicator& comm, host::device& device) {
    auto buckets    = gradient_buckets{device, bucket_plan{test::parameters({3})}};
    auto compute    = device.make_stream();
    auto const ones = [](std::size_t, buffer_view view) {
      for (auto i = std::size_t{0}; i < view.count(); ++i) { test::store(view, i, 1.0); }
    };
    auto const g = buckets.gradient<float>(0);
    {
      auto pipeline = clip_allreduce{buckets, comm, clip::none{}, average::none{}};
      test::run_step(pipeline, buckets, compute, ones);
      CHECK(g[0] == 4.0F);
      CHECK(pipeline.describe().find("sum over ranks") != std::string::npos);
    }
    {
      auto pipeline = clip_allreduce{buckets, comm, clip::none{}, average::ranks{}};
      test::run_step(pipeline, buckets, compute, ones);
      CHECK(g[0] == 1.0F);
      CHECK(pipeline.describe().find("1/W") != std::string::npos);
    }
    {
      auto pipeline     = clip_allreduce{buckets, comm, clip::none{}, average::weighted{}};
      auto const tokens = static_cast<double>(10 + comm.rank());
      test::run_step(pipeline, buckets, compute, ones, {.weight = tokens});
      CHECK(g[0] == doctest::Approx(1.0F).epsilon(1e-6));
      CHECK(pipeline.describe().find("sum_r w_r x_r / sum_r w_r") != std::string::npos);
    }
  });
}

TEST_CASE("average::ranks places the division of 16-bit gradients where it is told") {
  // 256 ranks. 256 · 600 overflows fp16; 5.1e-6 / 256 = 2e-8 underflows to 0 (smallest 6e-8).
  auto const ranks = 256;
  auto const inf   = std::numeric_limits<double>::infinity();
  CHECK(reduce_fp16(ranks, 600.0, average::ranks{divide::after}) == inf);
  CHECK(reduce_fp16(ranks, 600.0, average::ranks{divide::split}) == 600.0);
  CHECK(reduce_fp16(ranks, 5.1e-6, average::ranks{divide::after}) ==
        doctest::Approx(5.1e-6).epsilon(0.1));
  CHECK(reduce_fp16(ranks, 5.1e-6, average::ranks{divide::split}) ==
        doctest::Approx(5.1e-6).epsilon(0.1));
  // `before` is the communicator's own average: local ranks sum in fp32 and round once.
  CHECK(reduce_fp16(ranks, 600.0, average::ranks{divide::before}) == 600.0);
  CHECK(reduce_fp16(ranks, 5.1e-6, average::ranks{divide::before}) ==
        doctest::Approx(5.1e-6).epsilon(0.1));
}

TEST_CASE("average::ranks before the sum underflows in fp16 where a coefficient is multiplied in") {
  auto result = -1.0;
  local::run(256, [&](communicator& comm, host::device& device) {
    auto buckets  = gradient_buckets{device, bucket_plan{test::parameters({1}, dtype::fp16)}};
    auto pipeline = clip_allreduce{buckets,
                                   comm,
                                   clip::before{1e9},
                                   average::ranks{divide::before},
                                   non_finite::propagate{},
                                   scaling::in_place{}};
    auto compute  = device.make_stream();
    test::run_step(pipeline, buckets, compute, [&](std::size_t, buffer_view view) {
      test::store(view, 0, 5.1e-6);
    });
    if (comm.rank() == 0) { result = test::load(buckets.gradient(0), 0); }
  });
  CHECK(result == 0.0);  // documented at `divide`: use split
}

TEST_CASE("average::weighted equals the mean over all tokens of all ranks and micro-steps") {
  // tokens[rank][micro-step]; the gradient of a micro-step is the sum over its tokens.
  constexpr auto tokens = std::array<std::array<double, 2>, 2>{{{1, 7}, {3, 5}}};
  local::run(2, [&](communicator& comm, host::device& device) {
    auto const rank = static_cast<std::size_t>(comm.rank());
    auto buckets    = gradient_buckets{
        device, bucket_plan{test::parameters({4})}, storage_options{.accumulate = dtype::fp64}};
    auto pipeline     = clip_allreduce{buckets, comm, clip::none{}, average::weighted{}};
    auto compute      = device.make_stream();
    auto const sum_of = [&](std::size_t r, std::size_t m, std::size_t i) {
      return tokens.at(r).at(m) * test::value(static_cast<int>(r), m, 0, i);
    };
    auto const own = tokens.at(rank)[0] + tokens.at(rank)[1];
    for (auto micro = std::size_t{0}; micro < 2; ++micro) {
      auto const write = [&](std::size_t, buffer_view view) {
        // weighted means multiply by the weight: give the rank's mean over its own tokens
        for (auto i = std::size_t{0}; i < 4; ++i) {
          test::store(view, i, sum_of(rank, micro, i) / own);
        }
      };
      test::run_step(pipeline,
                     buckets,
                     compute,
                     write,
                     {.weight = micro == 1 ? own : 1.0, .accumulate = micro == 0});
    }
    for (auto i = std::size_t{0}; i < 4; ++i) {
      auto const expected =
          (sum_of(0, 0, i) + sum_of(0, 1, i) + sum_of(1, 0, i) + sum_of(1, 1, i)) / 16;
      CHECK(test::load(buckets.gradient(0), i) == doctest::Approx(expected).epsilon(1e-6));
    }
  });
}

TEST_CASE("average::weighted takes nothing from a rank of weight 0, not even NaN") {
  auto const check = [](auto clip, auto scaling, storage_options storage = {}) {
    for (auto const& weights : {std::vector<double>{2, 0, 6}, {0, 0, 0}, {0, 0, 1}}) {
      local::run(3, [&](communicator& comm, host::device& device) {
        auto const rank = static_cast<std::size_t>(comm.rank());
        auto buckets    = gradient_buckets{
            device, bucket_plan{test::parameters({5, 70}), test::one_each}, storage};
        auto pipeline =
            clip_allreduce{buckets, comm, clip, average::weighted{}, non_finite::skip{}, scaling};
        auto compute = device.make_stream();
        test::run_step(pipeline,
                       buckets,
                       compute,
                       [&](std::size_t p, buffer_view view) {
                         weights[rank] > 0 ? test::write(view, comm.rank(), 0, p)
                                           : test::poison(view);
                       },
                       {.weight = weights[rank]});
        auto const expected = test::reference_weighted(test::all_gradients(3, 0, {5, 70}), weights);
        auto const unit     = storage.reduce == dtype::bf16 ? 0x1p-8 : 1.2e-7;
        CHECK(test::largest_error(buckets, expected) <= 8 * 4 * unit);
        CHECK_FALSE(pipeline.sync_report().skipped);
      });
    }
  };
  check(clip::bucketwise{threshold::equal{1e9}}, scaling::premultiplied{});
  check(clip::bucketwise{threshold::equal{1e9}}, scaling::in_place{});
  check(clip::before{1e9}, scaling::automatic{});
  check(clip::after{1e9}, scaling::in_place{});
  check(clip::none{}, scaling::automatic{});
  for (auto const& storage : {storage_options{.reduce = dtype::fp64},
                              storage_options{.reduce = dtype::bf16},
                              storage_options{.accumulate = dtype::fp32},
                              storage_options{.accumulate = dtype::fp64, .reduce = dtype::fp32}}) {
    check(clip::bucketwise{threshold::equal{1e9}}, scaling::automatic{}, storage);
    check(clip::before{1e9}, scaling::in_place{}, storage);
    check(clip::after{1e9}, scaling::automatic{}, storage);
    check(clip::none{}, scaling::in_place{}, storage);
  }
}

TEST_CASE("begin refuses weights that are no weights") {
  local::run(1, [](communicator& comm, host::device& device) {
    auto buckets  = gradient_buckets{device, bucket_plan{test::parameters({1})}};
    auto weighted = clip_allreduce{buckets, comm, clip::none{}, average::weighted{}};
    auto compute  = device.make_stream();
    for (auto const bad : {-1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
      CHECK_THROWS_AS(weighted.begin(compute, {.weight = bad}), contract_error);
    }
    auto plain = clip_allreduce{buckets, comm, clip::none{}};
    CHECK_THROWS_WITH_AS(plain.begin(compute, {.weight = 2.0}),
                         doctest::Contains("average::weighted"),
                         contract_error);
  });
}

TEST_CASE("sync_join lets ranks with fewer batches end, and divides by who took part") {
  constexpr auto batches = std::array{5, 4, 3};
  for (auto const by_ranks : {false, true}) {
    local::run(3, [&](communicator& comm, host::device& device) {
      auto buckets =
          gradient_buckets{device, bucket_plan{test::parameters({2, 3}), test::one_each}};
      auto pipeline =
          clip_allreduce{buckets, comm, clip::none{}, average::weighted{.by_ranks = by_ranks}};
      auto compute     = device.make_stream();
      auto steps       = 0;
      auto const check = [&] {
        auto active  = 0;
        auto numbers = 0.0;
        for (auto r = 0; r < 3; ++r) {
          if (batches.at(static_cast<std::size_t>(r)) <= steps) { continue; }
          ++active;
          numbers += r + 1.0;
        }
        device.sync(compute);
        auto const expected = numbers / (by_ranks ? 3 : active);
        CHECK(test::load(buckets.gradient(1), 2) == doctest::Approx(expected).epsilon(1e-6));
        ++steps;
      };
      while (steps < batches.at(static_cast<std::size_t>(comm.rank()))) {
        test::run_step(pipeline, buckets, compute, [&](std::size_t, buffer_view view) {
          for (auto i = std::size_t{0}; i < view.count(); ++i) {
            test::store(view, i, comm.rank() + 1.0);
          }
        });
        check();
      }
      pipeline.sync_join(compute, check);
      CHECK(steps == 5);
      // The pipeline is whole: all may train on.
      test::run_step(pipeline, buckets, compute, [&](std::size_t, buffer_view view) {
        for (auto i = std::size_t{0}; i < view.count(); ++i) { test::store(view, i, 3.0); }
      });
      CHECK(test::load(buckets.gradient(0), 0) == doctest::Approx(3.0).epsilon(1e-6));
    });
  }
}

TEST_CASE("sync_join refuses to lose micro-steps, and a step that is open") {
  local::run(1, [](communicator& comm, host::device& device) {
    auto buckets    = gradient_buckets{device, bucket_plan{test::parameters({1})}};
    auto pipeline   = clip_allreduce{buckets, comm, clip::none{}, average::weighted{}};
    auto compute    = device.make_stream();
    auto const one  = [](std::size_t, buffer_view view) { test::store(view, 0, 1.0); };
    auto const join = [&] { pipeline.sync_join(compute, [] { FAIL("a step was made"); }); };
    test::run_step(pipeline, buckets, compute, one, {.accumulate = true});
    CHECK_THROWS_WITH_AS(join(), doctest::Contains("micro-steps"), state_error);
    pipeline.begin(compute);
    CHECK_THROWS_AS(join(), state_error);
    pipeline.ready(0, compute);
    pipeline.finish(compute);
    join();
    device.sync(compute);
    CHECK(buckets.gradient<float>(0)[0] == 1.0F);
  });
}

TEST_CASE("pipeline_options::loss_scale multiplies bounds and is divided out") {
  auto const sizes = std::vector<std::size_t>{6, 2};
  auto const check = [&](auto policy, auto const& expected, bool unscale) {
    local::run(2, [&](communicator& comm, host::device& device) {
      auto scale   = 1024.0F;
      auto buckets = gradient_buckets{device, bucket_plan{test::parameters(sizes), test::one_each}};
      auto pipeline = clip_allreduce{buckets,
                                     comm,
                                     policy,
                                     average::ranks{},
                                     non_finite::propagate{},
                                     scaling::automatic{},
                                     {.loss_scale = &scale, .unscale = unscale}};
      auto compute  = device.make_stream();
      for (auto const s : {1024.0F, 0.5F}) {
        scale = s;
        test::run_step(pipeline, buckets, compute, [&](std::size_t p, buffer_view view) {
          for (auto i = std::size_t{0}; i < view.count(); ++i) {
            test::store(view, i, test::value(comm.rank(), 0, p, i) * static_cast<double>(s));
          }
        });
        auto wanted = expected;
        for (auto& p : wanted) {
          for (auto& x : p) { x *= unscale ? 1.0 : static_cast<double>(s); }
        }
        CHECK(test::largest_error(buckets, wanted) <=
              8 * 8 * 1.2e-7 * (unscale ? 1.0 : static_cast<double>(s)));
      }
    });
  };
  auto const g    = test::all_gradients(2, 0, sizes);
  auto const plan = bucket_plan{test::parameters(sizes), test::one_each};
  auto const each = clip::bucketwise{threshold::equal{2.0}};
  for (auto const unscale : {true, false}) {
    check(clip::none{}, test::reference_none(g), unscale);
    check(clip::after{2.0}, test::reference_after(g, 2.0), unscale);
    check(clip::before{2.0}, test::reference_before(g, 2.0), unscale);
    check(each, test::reference_bucketwise(g, plan, each.bounds(plan)), unscale);
  }
}

// SPDX-License-Identifier: Apache-2.0
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

constexpr auto eps      = 1.2e-7;  // of fp32
constexpr auto infinity = std::numeric_limits<double>::infinity();

/// One step of `ranks` ranks with test::value gradients; true error against `expected`.
template <class Clip, class Average = average::ranks>
double error_of(int ranks,
                std::vector<std::size_t> const& sizes,
                bucket_options options,
                Clip clip,
                std::vector<std::vector<double>> const& expected,
                Average average = {}) {
  auto worst = std::vector<double>(static_cast<std::size_t>(ranks));
  local::run(ranks, [&](communicator& comm, host::device& device) {
    auto buckets  = gradient_buckets{device, bucket_plan{test::parameters(sizes), options}};
    auto pipeline = clip_allreduce{buckets, comm, clip, average};
    auto compute  = device.make_stream();
    test::poison_all(buckets);
    test::run_step(pipeline, buckets, compute, [&](std::size_t p, buffer_view view) {
      test::write(view, comm.rank(), 0, p);
    });
    worst[static_cast<std::size_t>(comm.rank())] = test::largest_error(buckets, expected);
  });
  for (auto const w : worst) { CHECK(w == worst[0]); }
  return worst[0];
}

/// W = 2, g_0 = (3, 0), g_1 = (0, 4).
template <class Clip>
std::array<float, 2> example(Clip clip) {
  auto result = std::array<float, 2>{};
  local::run(2, [&](communicator& comm, host::device& device) {
    auto buckets  = gradient_buckets{device, bucket_plan{{{.name = "w", .count = 2}}}};
    auto pipeline = clip_allreduce{buckets, comm, clip};
    auto compute  = device.make_stream();
    test::run_step(pipeline, buckets, compute, [&](std::size_t, buffer_view view) {
      test::store(view, 0, comm.rank() == 0 ? 3.0 : 0.0);
      test::store(view, 1, comm.rank() == 0 ? 0.0 : 4.0);
    });
    auto const g = buckets.gradient<float>(0);
    if (comm.rank() == 0) { result = {g[0], g[1]}; }
  });
  return result;
}

/// The norm that a step reports, and the first element of every parameter after it.
struct outcome {
  step_report report;
  std::vector<double> first;
};

/// One step on one rank in which each parameter is filled with one value.
template <class Clip>
outcome fill_step(std::vector<parameter> parameters,
                  std::vector<double> const& values,
                  Clip clip,
                  bucket_options options = {}) {
  auto result = outcome{};
  local::run(1, [&](communicator& comm, host::device& device) {
    auto buckets  = gradient_buckets{device, bucket_plan{std::move(parameters), options}};
    auto pipeline = clip_allreduce{buckets, comm, clip};
    auto compute  = device.make_stream();
    test::poison_all(buckets);
    test::run_step(pipeline, buckets, compute, [&](std::size_t p, buffer_view view) {
      for (auto i = std::size_t{0}; i < view.count(); ++i) { test::store(view, i, values[p]); }
    });
    result.report = pipeline.sync_report();
    for (auto p = std::size_t{0}; p < values.size(); ++p) {
      auto const view = buckets.gradient(p);
      result.first.push_back(view.empty() ? 0.0 : test::load(view, 0));
    }
  });
  return result;
}

}  // namespace

TEST_CASE("clip_allreduce gives the documented example of every clip mode") {
  auto const close = [](double x) { return doctest::Approx(x).epsilon(4 * eps); };
  SUBCASE("none") { CHECK(example(clip::none{}) == std::array{1.5F, 2.0F}); }
  SUBCASE("after") {
    auto const g = example(clip::after{1.0});
    CHECK(static_cast<double>(g[0]) == close(0.6));
    CHECK(static_cast<double>(g[1]) == close(0.8));
  }
  SUBCASE("before") {
    auto const g = example(clip::before{1.0});
    CHECK(static_cast<double>(g[0]) == close(0.5));
    CHECK(static_cast<double>(g[1]) == close(0.5));
  }
  SUBCASE("bucketwise") {
    auto const g = example(clip::bucketwise{threshold::equal{1.0}});
    CHECK(static_cast<double>(g[0]) == close(0.5));
    CHECK(static_cast<double>(g[1]) == close(0.5));
  }
}

TEST_CASE("clip_allreduce agrees with a serial reference for any ranks, sizes and buckets") {
  auto const shapes = std::vector<std::vector<std::size_t>>{
      {8, 0, 24}, {0}, {5, 0}, {0, 0, 0}, {1, 1, 1}, {7, 13, 1009}, {300, 1, 200, 64, 65, 63}};
  auto const plans =
      std::vector<bucket_options>{{},
                                  test::one_each,
                                  {.cap_bytes = 1024, .first_cap_bytes = 64, .alignment_bytes = 8},
                                  {.cap_bytes = 1024, .first_cap_bytes = 1024, .pad_to = 7}};
  for (auto const& sizes : shapes) {
    for (auto const& options : plans) {
      auto const plan = bucket_plan{test::parameters(sizes), options};
      for (auto const ranks : {1, 2, 3, 4, 5, 7}) {
        CAPTURE(plan.describe());
        CAPTURE(ranks);
        auto const g     = test::all_gradients(ranks, 0, sizes);
        auto const bound = 8.0 * ranks * 4 * eps;  // values up to 8, a few roundings per rank
        CHECK(error_of(ranks, sizes, options, clip::none{}, test::reference_none(g)) <= bound);
        CHECK(error_of(ranks, sizes, options, clip::after{2.5}, test::reference_after(g, 2.5)) <=
              bound);
        CHECK(error_of(ranks, sizes, options, clip::before{2.5}, test::reference_before(g, 2.5)) <=
              bound);
        auto const policy = clip::bucketwise{threshold::equal{2.5}};
        auto const t      = policy.bounds(plan);
        CHECK(error_of(ranks, sizes, options, policy, test::reference_bucketwise(g, plan, t)) <=
              bound);
      }
    }
  }
}

TEST_CASE("clip_allreduce uses every threshold policy as its formula says") {
  auto const sizes = std::vector<std::size_t>{4, 8, 16, 4};
  auto const plan  = bucket_plan{test::parameters(sizes), test::one_each};
  auto const g     = test::all_gradients(3, 0, sizes);
  auto const check = [&](auto policy, std::vector<double> const& bounds) {
    CAPTURE(policy.describe());
    auto const error =
        error_of(3, sizes, test::one_each, policy, test::reference_bucketwise(g, plan, bounds));
    CHECK(error <= 8.0 * 3 * 4 * eps);
  };
  // Bucket 0 holds the last parameter: 4, 16, 8, 4 elements of 32.
  check(clip::bucketwise{threshold::equal{3.0}}, {1.5, 1.5, 1.5, 1.5});
  check(clip::bucketwise{threshold::by_size{4.0}},
        {std::sqrt(2.0), std::sqrt(8.0), 2.0, std::sqrt(2.0)});
  check(clip::bucketwise{threshold::each{5.0}}, {5.0, 5.0, 5.0, 5.0});
  check(clip::bucketwise{threshold::list{{1.0, 2.0, infinity, 4.0}}}, {1.0, 2.0, infinity, 4.0});
}

TEST_CASE("clip_allreduce bucketwise bounds the norm of the whole by c") {
  auto const sizes = std::vector<std::size_t>{4, 80, 16, 1, 300};
  auto const check = [&](auto policy) {
    CAPTURE(policy.describe());
    for (auto const& options :
         {bucket_options{}, test::one_each, bucket_options{.cap_bytes = 512}}) {
      local::run(1, [&](communicator& comm, host::device& device) {
        auto buckets  = gradient_buckets{device, bucket_plan{test::parameters(sizes), options}};
        auto pipeline = clip_allreduce{buckets, comm, policy};
        auto compute  = device.make_stream();
        for (auto step = std::size_t{0}; step < 5; ++step) {
          test::run_step(pipeline, buckets, compute, [&](std::size_t p, buffer_view view) {
            test::write(view, 0, step, p);
          });
          auto squares = 0.0;
          for (auto p = std::size_t{0}; p < sizes.size(); ++p) {
            for (auto const x : buckets.gradient<float>(p)) {
              squares += static_cast<double>(x) * static_cast<double>(x);
            }
          }
          CHECK(std::sqrt(squares) <= 2.0 * (1 + 2 * eps));  // coefficient and product are rounded
          CHECK(pipeline.sync_report().norm > 2.0);
        }
      });
    }
  };
  check(clip::bucketwise{threshold::equal{2.0}});
  check(clip::bucketwise{threshold::by_size{2.0}});
}

TEST_CASE("clip_allreduce keeps padding out of norms and results, whatever it holds") {
  local::run(3, [](communicator& comm, host::device& device) {
    auto const sizes = std::vector<std::size_t>{3, 5};
    auto const plan  = bucket_plan{test::parameters(sizes),
                                   {.cap_bytes = 1, .first_cap_bytes = 1, .pad_to = 1U << 16U}};
    auto buckets     = gradient_buckets{device, plan, storage_options{.reduce = dtype::bf16}};
    auto pipeline =
        clip_allreduce{buckets, comm, clip::after{infinity}, average::none{}, non_finite::skip{}};
    auto compute = device.make_stream();
    test::poison_all(buckets);
    test::run_step(pipeline, buckets, compute, [&](std::size_t p, buffer_view view) {
      test::write(view, comm.rank(), 0, p);
    });
    auto const g   = test::all_gradients(3, 0, sizes);
    auto const sum = test::combine(g, {3, std::vector<double>(2, 1.0)});
    CHECK(test::largest_error(buckets, sum) == 0.0);
    CHECK(pipeline.sync_report().norm ==
          doctest::Approx(test::norm(sum, test::every(2))).epsilon(1e-12));
    CHECK_FALSE(pipeline.sync_report().skipped);
  });
}

TEST_CASE("clip_allreduce lives with a dtype of which there are only empty parameters") {
  auto parameters    = test::parameters({8, 0, 5, 0});
  parameters[1].type = dtype::fp16;
  parameters[3].type = dtype::fp64;
  for (auto const ranks : {1, 2, 3, 4}) {
    local::run(ranks, [&](communicator& comm, host::device& device) {
      auto buckets  = gradient_buckets{device, bucket_plan{parameters}};
      auto pipeline = clip_allreduce{buckets, comm, clip::none{}, average::none{}};
      auto compute  = device.make_stream();
      test::run_step(pipeline, buckets, compute, [&](std::size_t p, buffer_view view) {
        test::write(view, comm.rank(), 0, p);
      });
      auto const g = test::all_gradients(ranks, 0, {8, 0, 5, 0});
      CHECK(test::largest_error(buckets,
                                test::combine(g, {g.size(), std::vector<double>(4, 1.0)})) == 0.0);
    });
  }
}

TEST_CASE("clip_allreduce takes the number of buckets from the plan") {
  // Four equal buckets, one of which holds all the energy: it alone is clipped, to c / 2.
  auto const result = fill_step(test::parameters({4, 4, 4, 4}),
                                {0.0, 5.0, 0.0, 0.0},
                                clip::bucketwise{threshold::equal{1.0}},
                                test::one_each);
  CHECK(result.first[1] == doctest::Approx(0.25).epsilon(4 * eps));  // four of them: norm 0.5
  CHECK(result.report.buckets[2].clipped);
  CHECK_FALSE(result.report.buckets[0].clipped);
  CHECK(result.report.buckets[0].norm == 0.0);
  CHECK(result.report.norm == 10.0);
  CHECK(result.report.clipped_fraction == 0.25);
  CHECK(result.report.buckets[2].threshold == 0.5);
  auto const whole = fill_step(test::parameters({4, 4}), {3.0, 4.0}, clip::after{1.0});
  CHECK(whole.report.buckets[0].threshold == infinity);  // the bound is not the bucket's
}

TEST_CASE("clip_allreduce bucketwise with one bucket equals clipping before, bit for bit") {
  auto results   = std::array<std::vector<float>, 2>{};
  auto const run = [&](auto clip, std::vector<float>& result) {
    local::run(3, [&](communicator& comm, host::device& device) {
      auto buckets  = gradient_buckets{device, bucket_plan{test::parameters({129, 7})}};
      auto pipeline = clip_allreduce{buckets, comm, clip};
      auto compute  = device.make_stream();
      test::run_step(pipeline, buckets, compute, [&](std::size_t p, buffer_view view) {
        test::write(view, comm.rank(), 3, p);
      });
      if (comm.rank() != 2) { return; }
      for (auto const p : {std::size_t{0}, std::size_t{1}}) {
        auto const g = buckets.gradient<float>(p);
        result.insert(result.end(), g.begin(), g.end());
      }
    });
  };
  run(clip::bucketwise{threshold::equal{0.7}}, results[0]);
  run(clip::before{0.7}, results[1]);
  CHECK(results[0] == results[1]);
}

TEST_CASE("clip_allreduce reports the norm of the average, not of a sum over ranks") {
  local::run(2, [](communicator& comm, host::device& device) {
    auto buckets  = gradient_buckets{device, bucket_plan{test::parameters({1})}};
    auto pipeline = clip_allreduce{buckets, comm, clip::after{1.0}};
    auto compute  = device.make_stream();
    test::run_step(pipeline, buckets, compute, [](std::size_t, buffer_view view) {
      test::store(view, 0, 0.8);
    });
    auto const& report = pipeline.sync_report();
    CHECK(report.norm == doctest::Approx(0.8).epsilon(1e-6));
    CHECK_FALSE(report.clipped);
    CHECK(buckets.gradient<float>(0)[0] == 0.8F);
  });
}

TEST_CASE("clip_allreduce takes norms that no square overflows") {
  // 300 · 1000 values of 60000 in fp16, and 128 of 1e19 in fp32.
  auto const half =
      fill_step(test::parameters({300, 1000}, dtype::fp16), {60000.0, 60000.0}, clip::before{1e30});
  auto const h = static_cast<double>(static_cast<float>(fp16{60000.0}));
  CHECK(half.report.norm == doctest::Approx(h * std::sqrt(1300.0)).epsilon(1e-12));
  CHECK(half.report.buckets[0].finite);
  auto const single = fill_step(test::parameters({128}), {1e19}, clip::after{1.0});
  CHECK(single.report.norm == doctest::Approx(1.1313708499e20).epsilon(1e-6));
  CHECK(single.first[0] == doctest::Approx(1.0 / std::sqrt(128.0)).epsilon(4 * eps));
}

TEST_CASE("clip_allreduce combines the norms of buckets of different dtypes into one") {
  auto parameters  = std::vector<parameter>{{.name = "half", .count = 1, .type = dtype::fp16},
                                            {.name = "single", .count = 1, .type = dtype::fp32}};
  auto const after = fill_step(parameters, {3.0, 4.0}, clip::after{1.0});
  CHECK(after.report.norm == 5.0);
  CHECK(after.first[0] == doctest::Approx(0.6).epsilon(1e-3));  // fp16
  CHECK(after.first[1] == doctest::Approx(0.8).epsilon(4 * eps));
  auto const before = fill_step(parameters, {3.0, 4.0}, clip::before{1.0});
  CHECK(before.report.buckets[0].coefficient == before.report.buckets[1].coefficient);
  CHECK(before.report.buckets[0].coefficient == doctest::Approx(0.2F));
}

TEST_CASE("clip_allreduce splits buckets by dtype and keeps one order") {
  auto sizes = std::vector<std::size_t>{3, 5, 7, 11, 13, 17, 19, 23};
  auto types = std::array{dtype::fp16, dtype::fp32, dtype::bf16, dtype::fp64};
  auto mixed = test::parameters(sizes);
  for (auto p = std::size_t{0}; p < mixed.size(); ++p) { mixed[p].type = types.at(p % 4); }
  local::run(4, [&](communicator& comm, host::device& device) {
    auto buckets  = gradient_buckets{device, bucket_plan{mixed}};
    auto pipeline = clip_allreduce{buckets, comm, clip::after{infinity}};
    auto compute  = device.make_stream();
    CHECK(buckets.plan().buckets().size() == 4);
    test::poison_all(buckets);
    test::run_step(pipeline, buckets, compute, [&](std::size_t p, buffer_view view) {
      test::write(view, comm.rank(), 1, p);
    });
    // Quarters of small integers: exact in every dtype.
    CHECK(test::largest_error(buckets, test::reference_none(test::all_gradients(4, 1, sizes))) ==
          0.0);
  });
}

TEST_CASE("clip_allreduce leaves frozen parameters alone, whatever their dtype") {
  auto parameters = test::parameters({4, 4});
  parameters.push_back({.name = "frozen", .count = 4, .type = dtype::fp64, .trainable = false});
  auto const result = fill_step(parameters, {1.0, 1.0}, clip::after{1e9});
  CHECK(result.report.buckets.size() == 1);
  CHECK(result.report.norm == doctest::Approx(std::sqrt(8.0)).epsilon(1e-12));
}

TEST_CASE("clip_allreduce counts and reduces a tied parameter once, after its last use") {
  local::run(2, [](communicator& comm, host::device& device) {
    auto parameters =
        std::vector<parameter>{{.name = "embedding", .count = 2},
                               {.name = "hidden", .count = 1},
                               {.name = "decoder", .count = 2, .tied_to = "embedding"}};
    auto buckets  = gradient_buckets{device, bucket_plan{parameters, test::one_each}};
    auto pipeline = clip_allreduce{buckets, comm, clip::after{1e9}};
    auto compute  = device.make_stream();
    CHECK(buckets.gradient(0).data() == buckets.gradient(2).data());
    auto const before = comm.collectives();
    pipeline.begin(compute);
    auto const g = buckets.gradient<float>(0);
    g[0]         = 10.0F;
    g[1]         = 0.0F;
    pipeline.ready(2, compute);
    buckets.gradient<float>(1)[0] = 0.0F;
    pipeline.ready(1, compute);
    CHECK(comm.collectives() == before + 1);  // "hidden" alone: the embedding lacks a use
    g[0] += 10.0F;
    g[1] = 20.0F;
    pipeline.ready(0, compute);
    pipeline.finish(compute);
    auto const& report = pipeline.sync_report();
    CHECK(comm.collectives() == before + 2);
    CHECK(report.norm == doctest::Approx(28.2842712).epsilon(1e-6));
    CHECK(g[0] == 20.0F);
  });
}

TEST_CASE("clip_allreduce reduces once per bucket and step, whatever is called") {
  local::run(2, [](communicator& comm, host::device& device) {
    auto buckets  = gradient_buckets{device, bucket_plan{test::parameters({3, 1}), test::one_each}};
    auto pipeline = clip_allreduce{buckets, comm, clip::bucketwise{threshold::equal{1.0}}};
    auto compute  = device.make_stream();
    auto const write = [&](std::size_t p, buffer_view view) {
      test::write(view, comm.rank(), 0, p);
    };
    auto const before = comm.collectives();
    CHECK_THROWS_AS(pipeline.sync_report(), state_error);
    CHECK_THROWS_AS(static_cast<void>(pipeline.status()), state_error);
    CHECK_THROWS_AS(static_cast<void>(pipeline.record()), state_error);
    CHECK_THROWS_AS(pipeline.finish(compute), state_error);
    CHECK_THROWS_AS(pipeline.ready(0, compute), state_error);
    pipeline.begin(compute);
    CHECK_THROWS_AS(pipeline.begin(compute), state_error);
    CHECK_THROWS_AS(pipeline.sync_report(), state_error);
    for (auto const p : {std::size_t{0}, std::size_t{1}}) {
      write(p, buckets.gradient(p));
      pipeline.ready(p, compute);
    }
    pipeline.finish(compute);
    CHECK_THROWS_AS(pipeline.finish(compute), state_error);
    // The last bucket holds one element: its norm is there right after finish.
    auto const& report = pipeline.sync_report();
    auto const own     = test::all_gradients(2, 0, {3, 1})[static_cast<std::size_t>(comm.rank())];
    CHECK(report.norm == doctest::Approx(test::norm(own, test::every(2))).epsilon(1e-12));
    CHECK(pipeline.record()->norm == report.norm);
    CHECK(pipeline.record()->steps == 1);
    CHECK(comm.collectives() == before + 2);
  });
}

TEST_CASE("clip_allreduce reduces in plan order, whatever order backward takes") {
  auto const sizes    = std::vector<std::size_t>{5, 6, 7};
  auto const expected = test::reference_none(test::all_gradients(2, 0, sizes));
  local::run(2, [&](communicator& comm, host::device& device) {
    auto buckets  = gradient_buckets{device, bucket_plan{test::parameters(sizes), test::one_each}};
    auto pipeline = clip_allreduce{buckets, comm, clip::none{}};
    auto compute  = device.make_stream();
    pipeline.begin(compute);
    for (auto k = std::size_t{0}; k < 3; ++k) {
      auto const p = comm.rank() == 0 ? 2 - k : k;
      test::write(buckets.gradient(p), comm.rank(), 0, p);
      pipeline.ready(p, compute);
    }
    pipeline.finish(compute);
    device.sync(compute);
    CHECK(test::largest_error(buckets, expected) == 0.0);
  });
}

TEST_CASE("clip_allreduce with `after` leaves the coefficient to the optimizer where asked") {
  local::run(2, [](communicator& comm, host::device& device) {
    auto buckets  = gradient_buckets{device, bucket_plan{test::parameters({1, 1})}};
    auto pipeline = clip_allreduce{buckets, comm, clip::after{.max_norm = 1.0, .in_place = false}};
    auto compute  = device.make_stream();
    test::run_step(pipeline, buckets, compute, [](std::size_t p, buffer_view view) {
      test::store(view, 0, p == 0 ? 3.0 : 4.0);
    });
    CHECK(pipeline.status()->coefficient == doctest::Approx(0.2F));
    CHECK(pipeline.sync_report().coefficient == doctest::Approx(0.2F));
    CHECK(buckets.gradient<float>(0)[0] == 3.0F);
    static_cast<void>(comm);
  });
}

TEST_CASE("clip_allreduce with an adaptive threshold follows the bucket's own norm") {
  auto const norms = std::vector<double>{4.0, 100.0, 2.0};  // of the three steps
  for (auto const agreed : {false, true}) {
    CAPTURE(agreed);
    local::run(2, [&](communicator& comm, host::device& device) {
      auto const own = comm.rank() == 0 ? 1.0 : 3.0;  // rank 1's norms are three times as large
      auto buckets   = gradient_buckets{device, bucket_plan{test::parameters({1})}};
      auto pipeline  = clip_allreduce{
          buckets,
          comm,
          clip::bucketwise{threshold::adaptive{.factor = 2.0, .decay = 0.5, .agreed = agreed}},
          average::none{}};
      auto compute = device.make_stream();
      auto average = std::array{0.0, 0.0};  // by rank
      for (auto step = std::size_t{0}; step < norms.size(); ++step) {
        test::run_step(pipeline, buckets, compute, [&](std::size_t, buffer_view view) {
          test::store(view, 0, own * norms[step]);
        });
        auto const& bucket = pipeline.sync_report().buckets[0];
        auto expected      = 0.0;
        for (auto const r : {std::size_t{0}, std::size_t{1}}) {
          auto const norm  = (r == 0 ? 1.0 : 3.0) * norms[step];
          auto const bound = average[r] > 0 ? 2.0 * average[r] : infinity;
          auto const seen  = std::min(norm, bound);
          expected += seen;
          if (static_cast<int>(r) == comm.rank()) {
            CHECK((bucket.threshold == bound ||
                   bucket.threshold == doctest::Approx(bound).epsilon(1e-12)));
            CHECK(bucket.norm == doctest::Approx(norm).epsilon(1e-6));
          }
          average[r] = average[r] > 0 ? 0.5 * average[r] + 0.5 * seen : seen;
        }
        if (agreed) { average = {(average[0] + average[1]) / 2, (average[0] + average[1]) / 2}; }
        CHECK(static_cast<double>(buckets.gradient<float>(0)[0]) ==
              doctest::Approx(expected).epsilon(1e-6));
      }
    });
  }
}

TEST_CASE("clip_allreduce gives the same result for every way of scaling") {
  auto const sizes = std::vector<std::size_t>{33, 65, 1};
  auto const check = [&](auto scaling) {
    local::run(3, [&](communicator& comm, host::device& device) {
      auto const policy = clip::bucketwise{threshold::equal{1.0}};
      auto const plan   = bucket_plan{test::parameters(sizes), test::one_each};
      auto buckets      = gradient_buckets{device, plan};
      auto pipeline =
          clip_allreduce{buckets, comm, policy, average::ranks{}, non_finite::propagate{}, scaling};
      auto compute = device.make_stream();
      test::run_step(pipeline, buckets, compute, [&](std::size_t p, buffer_view view) {
        test::write(view, comm.rank(), 0, p);
      });
      auto const expected =
          test::reference_bucketwise(test::all_gradients(3, 0, sizes), plan, policy.bounds(plan));
      CHECK(test::largest_error(buckets, expected) <= 3 * 4 * eps);
    });
  };
  check(scaling::in_place{});
  check(scaling::premultiplied{});
}

TEST_CASE("clip_allreduce describes its algorithm with formulas and plan") {
  local::run(4, [](communicator& comm, host::device& device) {
    auto buckets = gradient_buckets{
        device,
        bucket_plan{test::parameters({1, 10000, 1}), {.cap_bytes = 1024, .first_cap_bytes = 1024}}};
    auto pipeline =
        clip_allreduce{buckets, comm, clip::bucketwise{threshold::equal{0.5}}, average::ranks{}};
    auto const text = pipeline.describe();
    CAPTURE(text);
    auto const after  = clip_allreduce{buckets, comm, clip::after{0.5}}.describe();
    auto const before = clip_allreduce{buckets, comm, clip::before{0.5}}.describe();
    CHECK(after.find("after: clip(mean_r g_r, c), c = 0.5") != std::string::npos);
    CHECK(before.find("before: mean_r clip(g_r, c), c = 0.5") != std::string::npos);
    for (auto const* part : {"W = 4, B = 3",
                             "mean_r clip(g_{r,b}, t_b)",
                             "t_b = c / sqrt(B), c = 0.5",
                             "1/W",
                             "non-finite: propagate",
                             "40000 B, 'p1'",
                             "cap 1024 B"}) {
      CAPTURE(part);
      CHECK(text.find(part) != std::string::npos);
    }
  });
}

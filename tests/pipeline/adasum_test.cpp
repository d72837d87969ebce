// SPDX-License-Identifier: Apache-2.0
// Adasum as the reduction of a pipeline: with every clip policy and storage, and its measure.
#include <gradlane/gradlane.hpp>

#include <doctest/doctest.h>

#include <support/adasum_steps.hpp>
#include <support/model.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

namespace {

using namespace gradlane;
using namespace std::chrono_literals;
using local::communicator;

// None of one element: scalars are always parallel, and where two of them cancel out, what rounding
// leaves decides whether the tree goes on with b, for (0, b), or with b / 2, for (epsilon, b).
auto const sizes = std::vector<std::size_t>{5, 0, 300, 64, 9, 900};

template <class Clip>
void check_steps(int ranks,
                 Clip const& clip,
                 bucket_options const& options,
                 storage_options const& storage,
                 dtype type,
                 double unit,
                 std::uint64_t seed) {
  test::check_steps(test::each_alone(ranks),
                    clip,
                    [](int) { return reduce::adasum{}; },
                    {sizes, options, storage, type, unit, seed});
}

}  // namespace

TEST_CASE("reduce::adasum agrees with the tree under every clip policy, on any number of ranks") {
  auto seed = std::uint64_t{0};
  for (auto const ranks : {1, 2, 3, 4, 5, 7}) {
    for (auto const& options : {bucket_options{}, test::one_each, bucket_options{.pad_to = 48}}) {
      auto const check = [&](auto clip) {
        check_steps(ranks, clip, options, {}, dtype::fp32, 0x1p-23, ++seed);
      };
      check(clip::none{});
      check(clip::after{2.0});
      check(clip::before{2.0});
      check(clip::bucketwise{threshold::equal{2.0}});
    }
  }
}

TEST_CASE("reduce::adasum works in the dtype of the wire") {
  auto seed        = std::uint64_t{100};
  auto const check = [&](storage_options storage, dtype type, double unit) {
    check_steps(3, clip::none{}, test::one_each, storage, type, unit, ++seed);
    auto const clipped = std::max(unit, 0x1p-23);  // the clip's coefficient is a float
    check_steps(3, clip::bucketwise{threshold::equal{4.0}}, {}, storage, type, clipped, ++seed);
  };
  check({}, dtype::fp64, 0x1p-52);
  check({}, dtype::bf16, 0x1p-7);
  check({}, dtype::fp16, 0x1p-10);
  check({.reduce = dtype::bf16}, dtype::fp32, 0x1p-7);
  check({.reduce = dtype::fp32}, dtype::bf16, 0x1p-7);
  check({.accumulate = dtype::fp32}, dtype::fp16, 0x1p-10);
}

TEST_CASE("reduce::adasum joins the sums of micro-steps, from the trainer's own tensors") {
  local::run(2, [](communicator& comm, host::device& device) {
    auto own      = std::vector<std::vector<float>>{{0, 0, 0}, {0}};
    auto tensors  = std::vector<buffer_view>{std::span{own[0]}, std::span{own[1]}};
    auto buckets  = gradient_buckets{device,
                                    bucket_plan{test::parameters({3, 1})},
                                    tensors,
                                    storage_options{.accumulate = dtype::fp32}};
    auto pipeline = clip_allreduce{buckets, comm, clip::none{}, reduce::adasum{}};
    auto compute  = device.make_stream();
    for (auto const last : {false, true}) {
      test::run_step(pipeline,
                     buckets,
                     compute,
                     [&](std::size_t, buffer_view view) {
                       for (auto i = std::size_t{0}; i < view.count(); ++i) {
                         test::store(view, i, last ? 2.0 : 1.0);
                       }
                     },
                     {.accumulate = !last});
    }
    CHECK(own[0] == std::vector<float>{3, 3, 3});  // equal on both ranks
    CHECK(own[1][0] == 3.0F);
  });
}

TEST_CASE(
    "step_report tells how orthogonal the ranks' gradients are, by parameter and on average") {
  for (auto const ranks : {1, 2, 3, 4, 5}) {
    auto wrong = std::atomic<int>{0};
    local::run(ranks, [&](communicator& comm, host::device& device) {
      // parallel, orthogonal, 0, of no elements
      auto const size = static_cast<std::size_t>(ranks);
      auto buckets =
          gradient_buckets{device, bucket_plan{test::parameters({7, size, 3, 0}), test::one_each}};
      auto pipeline = clip_allreduce{buckets, comm, clip::none{}, reduce::adasum{}};
      auto compute  = device.make_stream();
      for (auto step = 0; step < 2; ++step) {
        test::run_step(pipeline, buckets, compute, [&](std::size_t p, buffer_view view) {
          for (auto i = std::size_t{0}; i < view.count(); ++i) {
            auto const one = p == 0 || (p == 1 && i == static_cast<std::size_t>(comm.rank()));
            test::store(view, i, one ? 2.0 : 0.0);
          }
        });
        auto const& report = pipeline.sync_report();
        auto const& by     = report.parameter_orthogonality;
        auto const near    = [&](double found, double expected) {
          if (!(std::abs(found - expected) < 1e-6)) { ++wrong; }
        };
        near(by.at(0), 1.0 / ranks);
        near(by.at(1), 1.0);
        near(report.orthogonality, ranks == 1 ? 1.0 : (1.0 / ranks + 1.0) / 2);
        if (!std::isnan(by.at(3)) || (ranks > 1 && !std::isnan(by.at(2)))) { ++wrong; }
      }
    });
    CHECK(wrong == 0);
  }
}

TEST_CASE("reduce::adasum skips on all ranks what is not finite on one") {
  auto const check = [](auto clip) {
    CAPTURE(clip.describe());
    local::run(3, [&](communicator& comm, host::device& device) {
      auto buckets =
          gradient_buckets{device, bucket_plan{test::parameters({4, 5, 6}), test::one_each}};
      auto pipeline = clip_allreduce{buckets, comm, clip, reduce::adasum{}, non_finite::fail{}};
      auto compute  = device.make_stream();
      for (auto step = 0; step < 4; ++step) {
        auto const bad = step % 2 == 1;
        test::run_step(pipeline, buckets, compute, [&](std::size_t p, buffer_view view) {
          test::write(view, comm.rank(), 0, p);
          if (bad && p == 1 && comm.rank() == 2) {
            test::store(view, 3, std::numeric_limits<double>::infinity());
          }
        });
        if (!bad) {
          CHECK_FALSE(pipeline.sync_report().skipped);
          continue;
        }
        // clip::before loses all of the rank's gradient, so that its peers know no bucket
        auto const known = decltype(clip)::scope != clip_scope::local_total || comm.rank() == 2;
        CHECK_THROWS_WITH_AS(
            static_cast<void>(pipeline.sync_report()),
            doctest::Contains(known ? "not finite in bucket 1" : "not finite in bucket 0"),
            non_finite_error);
        CHECK(pipeline.status()->skip != 0);
      }
    });
  };
  check(clip::none{});
  check(clip::after{1.0});
  check(clip::before{1.0});
  check(clip::bucketwise{threshold::equal{1.0}});
}

TEST_CASE("reduce::adasum is told by describe(), and ranks must agree on it") {
  auto refused = std::atomic<int>{0};
  local::run(2, [&](communicator& comm, host::device& device) {
    auto buckets = gradient_buckets{device, bucket_plan{test::parameters({4})}};
    {
      auto const pipeline = clip_allreduce{buckets, comm, clip::none{}, reduce::adasum{}};
      auto const text     = pipeline.describe();
      CHECK(text.find("over ranks: adasum") != std::string::npos);
      CHECK(text.find("(1 - a.b / (2|a|^2)) a + (1 - a.b / (2|b|^2)) b") != std::string::npos);
    }
    try {
      if (comm.rank() == 0) {
        auto const pipeline = clip_allreduce{buckets, comm, clip::none{}, reduce::adasum{}};
      } else {
        auto const pipeline = clip_allreduce{buckets, comm, clip::none{}, average::ranks{}};
      }
    } catch (plan_mismatch_error const& e) {
      if (std::string{e.what()}.find("rank 1 has   over ranks: ranks") != std::string::npos) {
        ++refused;
      }
    }
  });
  CHECK(refused == 2);
}

TEST_CASE("reduce::adasum follows a plan that was laid out anew") {
  auto wrong = std::atomic<int>{0};
  local::run(3, [&](communicator& comm, host::device& device) {
    auto buckets =
        gradient_buckets{device, bucket_plan{test::parameters({3, 40, 5}), test::one_each}};
    auto pipeline   = clip_allreduce{buckets, comm, clip::none{}, reduce::adasum{}};
    auto compute    = device.make_stream();
    auto const step = [&](std::size_t number) {
      pipeline.begin(compute);
      for (auto const p : {0U, 2U, 1U}) {
        test::write(buckets.gradient(p), comm.rank(), number, p);
        pipeline.ready(p, compute);
      }
      pipeline.finish(compute);
      device.sync(compute);
      auto const g = test::all_gradients(3, number, {3, 40, 5});
      if (!(test::largest_error(buckets, test::adasum(g, test::ones(g), test::each_alone(3))) <=
            1e-5)) {
        ++wrong;
      }
    };
    step(0);
    pipeline.sync_learn_order();
    if (pipeline.plan().buckets()[0].parameters[0] != 0) { ++wrong; }
    step(1);
    step(2);
    if (pipeline.sync_report().parameter_orthogonality.size() != 3) { ++wrong; }
  });
  CHECK(wrong == 0);
}

TEST_CASE("reduce::adasum names the bucket that a lost rank has kept from being reduced") {
  for (auto const dies : {false, true}) {
    auto told = std::atomic<int>{0};
    // calls 0 and 1 compare plan and buffers; each bucket takes 3 exchanges on 2 ranks
    auto faults = local::script{};
    (dies ? faults.deaths : faults.failures).push_back({1, 6});
    local::run(2, {.faults = faults}, [&](communicator& comm, host::device& device) {
      auto buckets =
          gradient_buckets{device, bucket_plan{test::parameters({4, 5}), test::one_each}};
      auto pipeline = clip_allreduce{buckets, comm, clip::none{}, reduce::adasum{}};
      auto compute  = device.make_stream();
      comm.set_deadline(dies ? 50ms : 10s);
      try {
        pipeline.begin(compute);
        for (auto p = std::size_t{2}; p-- > 0;) {
          test::write(buckets.gradient(p), comm.rank(), 0, p);
          pipeline.ready(p, compute);
        }
        pipeline.finish(compute, 10s);
      } catch (communication_error const& e) {
        if (std::string{e.what()}.find("bucket 1, 'p0'") != std::string::npos) { ++told; }
      }
    });
    CHECK(told == 2);
  }
}

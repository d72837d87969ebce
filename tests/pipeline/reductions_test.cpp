// SPDX-License-Identifier: Apache-2.0
// What every reduction over the ranks must bear: parameters of no elements and of nearly all, ranks
// that disagree, a NaN on one of them.
#include <gradlane/gradlane.hpp>

#include <doctest/doctest.h>

#include <support/model.hpp>

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <limits>
#include <string>
#include <vector>

namespace {

using namespace gradlane;
using local::communicator;

constexpr auto ranks = 4;

/// Calls `check(reduction_of)` for each policy; `reduction_of(rank)` gives it. Nodes are of 2
/// ranks.
template <class Check>
void for_each_reduction(Check check) {
  check([](int) { return average::ranks{}; });
  check([](int) { return reduce::sharded{average::ranks{}}; });
  check([](int) { return reduce::sharded{average::ranks{}, shard_by::parameters}; });
  check([](int) { return reduce::adasum{}; });
  check([](int rank) { return reduce::adasum_hierarchical{.node = rank / 2}; });
}

[[nodiscard]] bucket_options padded(bool one_each) {
  auto options   = one_each ? test::one_each : bucket_options{};
  options.pad_to = ranks;
  return options;
}

/// Equal gradients on all ranks, of 1, 2, 3, …: what every reduction keeps as they are.
void write_alike(buffer_view view) {
  for (auto i = std::size_t{0}; i < view.count(); ++i) {
    test::store(view, i, static_cast<double>(1 + i % 64));
  }
}

/// Whether a rank has the gradients back, where it has them at all.
template <class Pipeline, class Buckets>
[[nodiscard]] bool are_kept(Pipeline& pipeline, Buckets& buckets) {
  auto const& plan = buckets.plan();
  for (auto b = std::size_t{0}; b < plan.buckets().size(); ++b) {
    for (auto const p : plan.buckets()[b].parameters) {
      auto const& slot = *plan.slot(p);
      auto const part = intersection({slot.offset, slot.offset + slot.count}, pipeline.own_part(b));
      for (auto i = part.begin; i < part.end; ++i) {
        auto const place = i - slot.offset;
        auto const found = test::load(buckets.gradient(p), place);
        if (!(std::abs(found / static_cast<double>(1 + place % 64) - 1.0) <= 1e-5)) {
          return false;
        }
      }
    }
  }
  return true;
}

}  // namespace

TEST_CASE("every reduction bears no parameters, empty ones, few elements, and one giant") {
  for_each_reduction([](auto reduction_of) {
    for (auto const& sizes : {std::vector<std::size_t>{},
                              {0},
                              {0, 0, 0},
                              {1},
                              {0, 3, 0},
                              {2, 1, 0, 4099, 1},
                              {4099, 2, 1}}) {
      for (auto const one_each : {false, true}) {
        auto wrong = std::atomic<int>{0};
        local::run(ranks, [&](communicator& comm, host::device& device) {
          auto buckets =
              gradient_buckets{device, bucket_plan{test::parameters(sizes), padded(one_each)}};
          auto pipeline = clip_allreduce{
              buckets, comm, clip::after{1e9}, reduction_of(comm.rank()), non_finite::fail{}};
          auto compute = device.make_stream();
          for (auto step = 0; step < 2; ++step) {
            test::poison_all(buckets);
            test::run_step(pipeline, buckets, compute, [](std::size_t, buffer_view view) {
              write_alike(view);
            });
            if (pipeline.sync_report().skipped || !are_kept(pipeline, buckets)) { ++wrong; }
          }
        });
        CHECK(wrong == 0);
      }
    }
  });
}

TEST_CASE("every reduction skips on all ranks what is NaN or Inf on one, under every clip policy") {
  for_each_reduction([](auto reduction_of) {
    auto const check = [&](auto clip, double bad, int bad_rank) {
      CAPTURE(clip.describe());
      CAPTURE(bad_rank);
      auto skipped = std::atomic<int>{0};
      auto kept    = std::atomic<int>{0};
      local::run(ranks, [&](communicator& comm, host::device& device) {
        auto buckets =
            gradient_buckets{device, bucket_plan{test::parameters({7, 90, 0, 6}), padded(true)}};
        auto pipeline =
            clip_allreduce{buckets, comm, clip, reduction_of(comm.rank()), non_finite::skip{}};
        auto compute = device.make_stream();
        for (auto const is_bad : {false, true, false}) {
          test::run_step(pipeline, buckets, compute, [&](std::size_t p, buffer_view view) {
            write_alike(view);
            if (is_bad && p == 1 && comm.rank() == bad_rank) { test::store(view, 61, bad); }
          });
          if (is_bad && pipeline.sync_report().skipped) { ++skipped; }
          if (!is_bad && !pipeline.sync_report().skipped && are_kept(pipeline, buckets)) { ++kept; }
        }
      });
      CHECK(skipped == ranks);
      CHECK(kept == 2 * ranks);
    };
    for (auto const bad_rank : {0, 3}) {
      for (auto const bad :
           {std::numeric_limits<double>::quiet_NaN(), -std::numeric_limits<double>::infinity()}) {
        check(clip::none{}, bad, bad_rank);
        check(clip::after{1e9}, bad, bad_rank);
        check(clip::before{1e9}, bad, bad_rank);
        check(clip::bucketwise{threshold::each{1e9}}, bad, bad_rank);
      }
    }
  });
}

TEST_CASE("every reduction refuses ranks that disagree, on all of them, naming what differs") {
  for_each_reduction([](auto reduction_of) {
    auto refused       = std::atomic<int>{0};
    auto const attempt = [&](auto sizes_of, auto options_of, std::string const& text) {
      refused = 0;
      local::run(ranks, [&](communicator& comm, host::device& device) {
        auto buckets = gradient_buckets{
            device, bucket_plan{test::parameters(sizes_of(comm.rank())), options_of(comm.rank())}};
        try {
          auto const pipeline =
              clip_allreduce{buckets, comm, clip::none{}, reduction_of(comm.rank())};
        } catch (plan_mismatch_error const& e) {
          if (std::string{e.what()}.find(text) != std::string::npos) { ++refused; }
        }
      });
      return refused == ranks;
    };
    using sizes = std::vector<std::size_t>;
    CHECK(attempt([](int rank) { return rank == 2 ? sizes{4, 8} : sizes{4, 4}; },
                  [](int) { return padded(false); },
                  "; rank 2 has parameter 1: 'p1'"));
    CHECK(attempt([](int rank) { return rank == 3 ? sizes{4} : sizes{4, 4}; },
                  [](int) { return padded(false); },
                  "rank 0 has parameter 1: 'p1'"));
    CHECK(attempt([](int) { return sizes{4, 4}; },
                  [](int rank) { return padded(rank == 1); },
                  "rank 1 has "));
  });
}

TEST_CASE("every reduction tells the ranks that wait for one that has left") {
  for_each_reduction([](auto reduction_of) {
    auto told = std::atomic<int>{0};
    local::run(ranks, [&](communicator& comm, host::device& device) {
      auto buckets  = gradient_buckets{device, bucket_plan{test::parameters({8}), padded(false)}};
      auto pipeline = clip_allreduce{buckets, comm, clip::none{}, reduction_of(comm.rank())};
      auto compute  = device.make_stream();
      pipeline.begin(compute);
      if (comm.rank() == 1) { return; }
      try {
        pipeline.ready(0, compute);
        pipeline.finish(compute, std::chrono::seconds{20});
      } catch (aborted_error const& e) {
        if (std::string{e.what()}.find("bucket 0, 'p0'") != std::string::npos) { ++told; }
      }
    });
    CHECK(told == ranks - 1);
  });
}

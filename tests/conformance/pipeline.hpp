// SPDX-License-Identifier: Apache-2.0
#pragma once

// What a pipeline must do on every device with every communicator, as test cases over a fixture:
//   On::device
//   On::worlds()                     numbers of ranks that run() can be asked for, a vector of int
//   On::run(ranks, seed, f)          calls f(communicator&, device&) on every rank; the seed is for
//                                    what the communicator may do at random
//   On::delay(device, stream, us)    enqueues work that takes about that many microseconds
//   On::schedules                    how many random schedules of one process are enough
// A test file says GRADLANE_PIPELINE_CONFORMANCE(fixture). All memory is read and written in stream
// order, and every buffer is poisoned, so that what is read too early, or written too late, shows.

#include <gradlane/clip_allreduce.hpp>    // for clip_allreduce
#include <gradlane/gradient_buckets.hpp>  // for gradient_buckets, storage_options
#include <gradlane/types.hpp>             // for dtype, stream_priority

#include <doctest/doctest.h>

#include <support/dice.hpp>  // for dice
#include <support/model.hpp>

#include <array>    // for array
#include <cstddef>  // for size_t
#include <cstdint>  // for uint64_t
#include <limits>   // for numeric_limits
#include <span>     // for as_bytes, span
#include <utility>  // for swap
#include <vector>   // for vector

namespace gradlane::test {

/// What half an ulp of 1 is, about.
[[nodiscard]] inline double rounding_of(dtype type) {
  switch (type) {
    case dtype::bf16:
      return 0x1p-8;
    case dtype::fp16:
      return 0x1p-11;
    case dtype::fp64:
      return 0x1p-52;
    default:
      return 0x1p-23;
  }
}

/// Three steps of one clip mode, against its serial reference.
template <class On, class Clip, class Expected>
void check_mode(int ranks,
                Clip clip,
                Expected expected,
                bucket_options options  = {},
                storage_options storage = {},
                dtype type              = dtype::fp32) {
  auto const sizes = std::vector<std::size_t>{5, 0, 300, 64, 1};
  auto const plan  = bucket_plan{parameters(sizes, type), options};
  CAPTURE(ranks);
  CAPTURE(clip.describe());
  CAPTURE(plan.describe());
  On::run(ranks, 1, [&](auto& comm, auto& device) {
    auto buckets           = gradient_buckets{device, plan, storage};
    auto pipeline          = clip_allreduce{buckets, comm, clip};
    auto compute           = device.make_stream(stream_priority::normal);
    auto random            = dice{static_cast<std::uint64_t>(comm.rank())};
    auto const collectives = [&comm] {
      if constexpr (requires { comm.collectives(); }) { return comm.collectives(); }
      return std::uint64_t{0};  // are not counted
    };
    for (auto step = std::size_t{0}; step < 3; ++step) {
      auto const before = collectives();
      poison_all(buckets);
      run_step(pipeline, buckets, compute, [&](std::size_t p, buffer_view view) {
        On::delay(device, compute, static_cast<int>(random.below(300)));
        enqueue_write(device, compute, view, comm.rank(), step, p);
      });
      auto const g    = all_gradients(comm.size(), step, sizes);
      auto const unit = rounding_of(storage.reduce == dtype::bf16 ? dtype::bf16 : type);
      CHECK(largest_error(buckets, expected(g, plan)) <= 8 * 8 * comm.size() * unit);
      if (before > 0 && ranks > 1) { CHECK(collectives() == before + plan.buckets().size()); }
    }
  });
}

/// What a seed stands for: the same on all ranks.
struct scenario {
  scenario(std::uint64_t seed, std::vector<int> const& worlds) : random{seed} {
    auto const count = 1 + random.below(7);
    for (auto p = std::size_t{0}; p < count; ++p) {
      sizes.push_back(std::array<std::size_t, 6>{0, 1, 3, 17, 64, 401}.at(random.below(6)));
    }
    ranks = worlds.at(random.below(worlds.size()));
    type  = std::array{dtype::fp32, dtype::fp64, dtype::bf16, dtype::fp16}.at(random.below(4));
    options =
        std::array{bucket_options{},
                   one_each,
                   bucket_options{.cap_bytes = 300, .first_cap_bytes = 100, .alignment_bytes = 8},
                   bucket_options{.cap_bytes = 4096, .first_cap_bytes = 4096, .pad_to = 4}}
            .at(random.below(4));
    if (random.below(3) == 0) { storage.reduce = dtype::fp32; }
    if (random.below(3) == 0) { storage.accumulate = dtype::fp32; }
    clips = random.below(2) == 0;
  }

  /// Tight bounds clip every bucket; infinite ones leave exact numbers.
  [[nodiscard]] double bound() const {
    return clips ? 2.5 : std::numeric_limits<double>::infinity();
  }

  /// Roundings of a value up to 8: coefficient (in fp32), product, sum, result. There are none
  /// where nothing is clipped and the ranks divide integers exactly.
  [[nodiscard]] double tolerance() const {
    auto const unit  = rounding_of(type == dtype::fp64 ? dtype::fp32 : type);
    auto const exact = !clips && (ranks & (ranks - 1)) == 0;
    return exact ? 0.0 : 8 * 8 * unit;
  }

  dice random;
  std::vector<std::size_t> sizes;
  int ranks{};
  dtype type{};
  bucket_options options;
  storage_options storage;
  bool clips{};
};

/// Backward of one step on several streams, in an order and with delays of this rank's own.
template <class On, class Pipeline, class Buckets, class Stream>
void backward(Pipeline& pipeline,
              Buckets& buckets,
              std::vector<Stream>& streams,
              dice& random,
              int rank,
              std::size_t step) {
  auto order = every(buckets.plan().parameters().size());
  for (auto k = order.size(); k > 1; --k) { std::swap(order[k - 1], order[random.below(k)]); }
  for (auto const p : order) {
    auto& producer = streams[random.below(streams.size())];
    auto const g   = buckets.gradient(p);
    enqueue_poison(buckets.device(), producer, g);
    if (random.below(4) == 0) {
      On::delay(buckets.device(), producer, static_cast<int>(random.below(300)));
    }
    enqueue_write(buckets.device(), producer, g, rank, step, p);
    pipeline.ready(p, producer);
  }
}

template <class On, class MakeClip, class Expected>
void check_schedule(std::uint64_t seed, MakeClip make_clip, Expected expected) {
  constexpr auto steps = std::size_t{3};
  auto const world     = scenario{seed, On::worlds()};
  auto const plan      = bucket_plan{parameters(world.sizes, world.type), world.options};
  CAPTURE(seed);
  CAPTURE(world.ranks);
  CAPTURE(plan.describe());
  On::run(world.ranks, seed, [&](auto& comm, auto& device) {
    auto random    = dice{seed * 1000 + static_cast<std::uint64_t>(comm.rank())};
    auto buckets   = gradient_buckets{device, plan, world.storage};
    auto streams   = std::vector<typename On::device::stream>{};
    auto pipeline  = clip_allreduce{buckets, comm, make_clip(world.bound())};
    auto snapshots = std::vector<snapshot<decltype(buckets)>>{};
    for (auto s = 0; s < 3; ++s) { streams.push_back(device.make_stream(stream_priority::normal)); }
    poison_all(buckets);
    for (auto step = std::size_t{0}; step < steps; ++step) {
      pipeline.begin(streams[0]);
      for (auto& s : streams) { pipeline.admit(s); }
      backward<On>(pipeline, buckets, streams, random, comm.rank(), step);
      auto& optimizer = streams[random.below(streams.size())];
      pipeline.finish(optimizer);
      snapshots.emplace_back(buckets, optimizer);
      if (random.below(2) == 0) { device.sync(optimizer); }
      // The other streams may write again only after this one has read.
      auto read = device.make_event();
      device.record(read, optimizer);
      for (auto& s : streams) { device.wait(s, read); }
    }
    for (auto& s : streams) { device.sync(s); }
    for (auto step = std::size_t{0}; step < steps; ++step) {
      auto const g = all_gradients(world.ranks, step, world.sizes);
      CHECK(snapshots[step].error(expected(g, plan, world.bound())) <= world.tolerance());
    }
  });
}

}  // namespace gradlane::test

TEST_CASE_TEMPLATE_DEFINE("pipeline: agrees with a serial reference in every mode and dtype",
                          On,
                          pipeline_modes) {
  using namespace gradlane;
  auto const none   = [](auto const& g, auto const&) { return test::reference_none(g); };
  auto const bucket = clip::bucketwise{threshold::equal{2.0}};
  for (auto const ranks : On::worlds()) {
    for (auto const& options : {bucket_options{}, test::one_each}) {
      auto const run = [&](storage_options storage, dtype type) {
        test::check_mode<On>(ranks, clip::none{}, none, options, storage, type);
      };
      run({}, dtype::fp32);
      run({}, dtype::fp64);
      run({}, dtype::bf16);
      run({}, dtype::fp16);
      run({.reduce = dtype::bf16}, dtype::fp32);
      run({.accumulate = dtype::fp32}, dtype::bf16);
      test::check_mode<On>(
          ranks,
          clip::after{2.0},
          [](auto const& g, auto const&) { return test::reference_after(g, 2.0); },
          options);
      test::check_mode<On>(
          ranks,
          clip::before{2.0},
          [](auto const& g, auto const&) { return test::reference_before(g, 2.0); },
          options);
      for (auto const& storage : {storage_options{}, storage_options{.reduce = dtype::bf16}}) {
        test::check_mode<On>(
            ranks,
            bucket,
            [&](auto const& g, auto const& plan) {
              return test::reference_bucketwise(g, plan, bucket.bounds(plan));
            },
            options,
            storage);
      }
    }
  }
}

TEST_CASE_TEMPLATE_DEFINE("pipeline: gives the same under random schedules: none",
                          On,
                          pipeline_schedules_none) {
  using namespace gradlane;
  for (auto seed = std::uint64_t{0}; seed < On::schedules; ++seed) {
    test::check_schedule<On>(
        seed,
        [](double) { return clip::none{}; },
        [](auto const& g, auto const&, double) { return test::reference_none(g); });
  }
}

TEST_CASE_TEMPLATE_DEFINE("pipeline: gives the same under random schedules: after",
                          On,
                          pipeline_schedules_after) {
  using namespace gradlane;
  for (auto seed = std::uint64_t{0}; seed < On::schedules; ++seed) {
    test::check_schedule<On>(
        seed,
        [](double c) { return clip::after{c}; },
        [](auto const& g, auto const&, double c) { return test::reference_after(g, c); });
  }
}

TEST_CASE_TEMPLATE_DEFINE("pipeline: gives the same under random schedules: before",
                          On,
                          pipeline_schedules_before) {
  using namespace gradlane;
  for (auto seed = std::uint64_t{0}; seed < On::schedules; ++seed) {
    test::check_schedule<On>(
        seed,
        [](double c) { return clip::before{c}; },
        [](auto const& g, auto const&, double c) { return test::reference_before(g, c); });
  }
}

TEST_CASE_TEMPLATE_DEFINE("pipeline: gives the same under random schedules: bucketwise",
                          On,
                          pipeline_schedules_bucketwise) {
  using namespace gradlane;
  for (auto seed = std::uint64_t{0}; seed < On::schedules; ++seed) {
    test::check_schedule<On>(
        seed,
        [](double c) { return clip::bucketwise{threshold::equal{c}}; },
        [](auto const& g, auto const& plan, double c) {
          return test::reference_bucketwise(g, plan, threshold::equal{c}.values(plan));
        });
  }
}

TEST_CASE_TEMPLATE_DEFINE("pipeline: Inf and NaN skip the step on all ranks, and are located",
                          On,
                          pipeline_skip) {
  using namespace gradlane;
  for (auto const ranks : On::worlds()) {
    On::run(ranks, 1, [&](auto& comm, auto& device) {
      auto const check = [&](auto clip, float bad) {
        CAPTURE(clip.describe());
        auto buckets =
            gradient_buckets{device, bucket_plan{test::parameters({4, 40, 7}), test::one_each}};
        auto pipeline = clip_allreduce{buckets, comm, clip, average::ranks{}, non_finite::skip{}};
        auto compute  = device.make_stream(stream_priority::normal);
        test::poison_all(buckets);
        auto const step = [&](bool spoiled) {
          test::run_step(pipeline, buckets, compute, [&](std::size_t p, buffer_view view) {
            test::enqueue_write(device, compute, view, comm.rank(), 0, p);
            if (spoiled && p == 1 && comm.rank() == comm.size() - 1) {
              auto const value = std::span{&bad, 1};
              device.upload(compute, std::as_bytes(value), view.subview(33, 1));
            }
          });
          return pipeline.sync_report();
        };
        CHECK_FALSE(step(false).skipped);
        auto const report = step(true);
        CHECK(report.skipped);
        CHECK(report.skipped_steps == 1);
        CHECK_FALSE(report.buckets[1].finite);
        for (auto const other : {std::size_t{0}, std::size_t{2}}) {  // one norm spoils all
          CHECK(report.buckets[other].finite == (clip.scope != clip_scope::local_total));
        }
        if (comm.rank() == comm.size() - 1) {
          CHECK(report.buckets[1].parameter == "p1");
          CHECK(report.buckets[1].offset == 33);
        }
        CHECK_FALSE(step(false).skipped);
      };
      constexpr auto infinity = std::numeric_limits<float>::infinity();
      check(clip::bucketwise{threshold::equal{2.0}}, infinity);
      check(clip::before{2.0}, -infinity);
      check(clip::after{2.0}, std::numeric_limits<float>::quiet_NaN());
      check(clip::none{}, infinity);
    });
  }
}

TEST_CASE_TEMPLATE_DEFINE("pipeline: packs a trainer's own tensors, whatever their alignment",
                          On,
                          pipeline_copies) {
  using namespace gradlane;
  auto const sizes = std::vector<std::size_t>{33, 1, 500, 7};
  for (auto const ranks : On::worlds()) {
    On::run(ranks, 1, [&](auto& comm, auto& device) {
      for (auto const type : {dtype::fp32, dtype::bf16}) {
        auto const plan = bucket_plan{test::parameters(sizes, type)};
        auto memory     = device.allocate(8192);
        auto tensors    = std::vector<buffer_view>{};
        auto next       = size_of(type);  // one element off any alignment
        for (auto const n : sizes) {
          tensors.emplace_back(memory.data() + next, n, type);
          next += (n + 1) * size_of(type);
        }
        auto buckets  = gradient_buckets{device, plan, tensors, {.reduce = dtype::fp32}};
        auto pipeline = clip_allreduce{buckets, comm, clip::bucketwise{threshold::equal{2.0}}};
        auto compute  = device.make_stream(stream_priority::normal);
        for (auto step = std::size_t{0}; step < 2; ++step) {
          test::poison_all(buckets);
          test::run_step(pipeline, buckets, compute, [&](std::size_t p, buffer_view view) {
            test::enqueue_write(device, compute, view, comm.rank(), step, p);
          });
          auto const g = test::all_gradients(comm.size(), step, sizes);
          auto const t = threshold::equal{2.0}.values(plan);
          CHECK(test::largest_error(buckets, test::reference_bucketwise(g, plan, t)) <=
                8 * 8 * comm.size() * test::rounding_of(type));
        }
      }
    });
  }
}

TEST_CASE_TEMPLATE_DEFINE("pipeline: adds micro-steps up in fp32", On, pipeline_micro_steps) {
  using namespace gradlane;
  auto const sizes = std::vector<std::size_t>{33, 1, 70};
  for (auto const ranks : On::worlds()) {
    On::run(ranks, 1, [&](auto& comm, auto& device) {
      auto buckets  = gradient_buckets{device,
                                      bucket_plan{test::parameters(sizes, dtype::bf16)},
                                      storage_options{.accumulate = dtype::fp32}};
      auto pipeline = clip_allreduce{buckets, comm, clip::none{}, average::none{}};
      auto compute  = device.make_stream(stream_priority::normal);
      test::poison_all(buckets);
      for (auto step = std::size_t{0}; step < 3; ++step) {
        test::run_step(pipeline,
                       buckets,
                       compute,
                       [&](std::size_t p, buffer_view view) {
                         test::enqueue_write(device, compute, view, comm.rank(), step, p);
                       },
                       {.accumulate = step < 2});
      }
      auto sum = test::combine(
          test::all_gradients(comm.size(), 0, sizes),
          {static_cast<std::size_t>(comm.size()), std::vector<double>(sizes.size(), 1.0)});
      for (auto step = std::size_t{1}; step < 3; ++step) {
        auto const g = test::all_gradients(comm.size(), step, sizes);
        for (auto const& own : g) {
          for (auto p = std::size_t{0}; p < sizes.size(); ++p) {
            for (auto i = std::size_t{0}; i < sizes[p]; ++i) { sum[p][i] += own[p][i]; }
          }
        }
      }
      CHECK(test::largest_error(buckets, sum) <= 24.0 * comm.size() * 0x1p-8);  // written back
    });
  }
}

TEST_CASE_TEMPLATE_DEFINE("pipeline: weights of ranks are shared in the step",
                          On,
                          pipeline_weights) {
  using namespace gradlane;
  auto const sizes = std::vector<std::size_t>{33, 1, 70};
  for (auto const ranks : On::worlds()) {
    On::run(ranks, 1, [&](auto& comm, auto& device) {
      auto buckets  = gradient_buckets{device, bucket_plan{test::parameters(sizes)}};
      auto pipeline = clip_allreduce{buckets, comm, clip::none{}, average::weighted{}};
      auto compute  = device.make_stream(stream_priority::normal);
      test::poison_all(buckets);
      for (auto step = std::size_t{0}; step < 3; ++step) {
        auto weights = std::vector<double>{};
        for (auto r = 0; r < comm.size(); ++r) {
          weights.push_back(static_cast<double>(1 + (static_cast<std::size_t>(r) + step) % 3));
        }
        test::run_step(pipeline,
                       buckets,
                       compute,
                       [&](std::size_t p, buffer_view view) {
                         test::enqueue_write(device, compute, view, comm.rank(), step, p);
                       },
                       {.weight = weights[static_cast<std::size_t>(comm.rank())]});
        auto const expected =
            test::reference_weighted(test::all_gradients(comm.size(), step, sizes), weights);
        CHECK(test::largest_error(buckets, expected) <= 8 * 4 * comm.size() * 0x1p-23);
      }
    });
  }
}

#define GRADLANE_PIPELINE_CONFORMANCE(...)                               \
  TEST_CASE_TEMPLATE_INVOKE(pipeline_modes, __VA_ARGS__);                \
  TEST_CASE_TEMPLATE_INVOKE(pipeline_schedules_none, __VA_ARGS__);       \
  TEST_CASE_TEMPLATE_INVOKE(pipeline_schedules_after, __VA_ARGS__);      \
  TEST_CASE_TEMPLATE_INVOKE(pipeline_schedules_before, __VA_ARGS__);     \
  TEST_CASE_TEMPLATE_INVOKE(pipeline_schedules_bucketwise, __VA_ARGS__); \
  TEST_CASE_TEMPLATE_INVOKE(pipeline_skip, __VA_ARGS__);                 \
  TEST_CASE_TEMPLATE_INVOKE(pipeline_copies, __VA_ARGS__);               \
  TEST_CASE_TEMPLATE_INVOKE(pipeline_micro_steps, __VA_ARGS__);          \
  TEST_CASE_TEMPLATE_INVOKE(pipeline_weights, __VA_ARGS__)

// SPDX-License-Identifier: Apache-2.0
// Random schedules: whatever the order and the delays of backward, streams and ranks, the result is
// the same. Every buffer is poisoned, so that what is read too early, or written too late, shows.
#include <gradlane/gradlane.hpp>

#include <doctest/doctest.h>

#include <support/model.hpp>
#include <support/watchdog.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <thread>
#include <vector>

namespace {

using namespace gradlane;
using local::communicator;
using namespace std::chrono_literals;

constexpr auto seeds = std::uint64_t{200};
constexpr auto steps = std::size_t{3};

#ifdef __SANITIZE_THREAD__
constexpr auto thread_sanitizer = true;  // it finds planted races by itself, and fails the test
#else
constexpr auto thread_sanitizer = false;
#endif

/// Numbers of one seed, the same with every standard library.
class dice {
 public:
  explicit dice(std::uint64_t seed) : engine_{seed} {}
  std::size_t below(std::size_t bound) { return static_cast<std::size_t>(engine_() % bound); }

 private:
  std::mt19937_64 engine_;
};

/// What a seed stands for: the same on all ranks.
struct scenario {
  explicit scenario(std::uint64_t seed) : random{seed} {
    auto const count = 1 + random.below(7);
    for (auto p = std::size_t{0}; p < count; ++p) {
      sizes.push_back(std::array<std::size_t, 6>{0, 1, 3, 17, 64, 401}.at(random.below(6)));
    }
    ranks = std::array{1, 2, 4}.at(random.below(3));
    type  = std::array{dtype::fp32, dtype::fp64, dtype::bf16, dtype::fp16}.at(random.below(4));
    options =
        std::array{bucket_options{},
                   test::one_each,
                   bucket_options{.cap_bytes = 300, .first_cap_bytes = 100, .alignment_bytes = 8},
                   bucket_options{.cap_bytes = 4096, .first_cap_bytes = 4096, .pad_to = 4}}
            .at(random.below(4));
    if (random.below(3) == 0) { storage.reduce = dtype::fp32; }
    if (random.below(3) == 0) { storage.accumulate = dtype::fp32; }
    clips            = random.below(2) == 0;
    script.seed      = seed;
    script.reorder   = random.below(2) == 0;
    script.max_delay = std::array{0us, 50us, 300us}.at(random.below(3));
  }

  /// Tight bounds clip every bucket; infinite ones leave exact numbers.
  [[nodiscard]] double bound() const {
    return clips ? 2.5 : std::numeric_limits<double>::infinity();
  }

  /// Roundings of a value up to 8: coefficient, product, sum, result.
  [[nodiscard]] double tolerance() const {
    auto const unit = type == dtype::bf16 ? 0x1p-8 : type == dtype::fp16 ? 0x1p-11 : 0x1p-23;
    return clips ? 8 * 8 * unit : 0.0;
  }

  dice random;
  std::vector<std::size_t> sizes;
  int ranks{};
  dtype type{};
  bucket_options options;
  storage_options storage;
  bool clips{};
  local::script script;
};

/// Backward of one step on several streams, in an order and with delays of this rank's own.
template <class Pipeline, class Buckets>
void backward(Pipeline& pipeline,
              Buckets& buckets,
              host::device& device,
              std::vector<host::stream>& streams,
              dice& random,
              int rank,
              std::size_t step) {
  auto order = test::every(buckets.plan().parameters().size());
  for (auto k = order.size(); k > 1; --k) { std::swap(order[k - 1], order[random.below(k)]); }
  for (auto const p : order) {
    auto& producer   = streams[random.below(streams.size())];
    auto const delay = std::chrono::microseconds{random.below(4) == 0 ? random.below(300) : 0};
    device.enqueue(producer, [view = buckets.gradient(p), rank, step, p, delay] {
      test::poison(view);
      if (delay > 0us) { std::this_thread::sleep_for(delay); }
      test::write(view, rank, step, p);
    });
    pipeline.ready(p, producer);
  }
}

template <class MakeClip, class Expected>
void run_schedule(std::uint64_t seed, MakeClip make_clip, Expected expected) {
  auto const world = scenario{seed};
  auto const plan  = bucket_plan{test::parameters(world.sizes, world.type), world.options};
  CAPTURE(seed);
  CAPTURE(world.ranks);
  CAPTURE(plan.describe());
  local::run(world.ranks, {.faults = world.script}, [&](communicator& comm, host::device& device) {
    auto random   = dice{seed * 1000 + static_cast<std::uint64_t>(comm.rank())};
    auto buckets  = gradient_buckets{device, plan, world.storage};
    auto streams  = std::vector<host::stream>{};
    auto pipeline = clip_allreduce{buckets, comm, make_clip(world.bound())};
    for (auto s = 0; s < 3; ++s) { streams.push_back(device.make_stream()); }
    test::poison_all(buckets);
    auto errors = std::vector<double>(steps);
    for (auto step = std::size_t{0}; step < steps; ++step) {
      pipeline.begin(streams[0]);
      for (auto& s : streams) { pipeline.admit(s); }
      backward(pipeline, buckets, device, streams, random, comm.rank(), step);
      auto& optimizer = streams[random.below(streams.size())];
      pipeline.finish(optimizer);
      device.enqueue(optimizer, [&, step] {
        auto const g = test::all_gradients(world.ranks, step, world.sizes);
        errors[step] = test::largest_error(buckets, expected(g, plan, world.bound()));
      });
      if (random.below(2) == 0) { device.sync(optimizer); }
      // The other streams may write again only after this one has read.
      auto read = device.make_event();
      device.record(read, optimizer);
      for (auto& s : streams) { device.wait(s, read); }
    }
    for (auto& s : streams) { device.sync(s); }
    for (auto const error : errors) { CHECK(error <= world.tolerance()); }
  });
}

}  // namespace

TEST_CASE("clip_allreduce gives the same under 200 random schedules: none") {
  for (auto seed = std::uint64_t{0}; seed < seeds; ++seed) {
    run_schedule(
        seed,
        [](double) { return clip::none{}; },
        [](auto const& g, auto const&, double) { return test::reference_none(g); });
  }
}

TEST_CASE("clip_allreduce gives the same under 200 random schedules: after") {
  for (auto seed = std::uint64_t{0}; seed < seeds; ++seed) {
    run_schedule(
        seed,
        [](double c) { return clip::after{c}; },
        [](auto const& g, auto const&, double c) { return test::reference_after(g, c); });
  }
}

TEST_CASE("clip_allreduce gives the same under 200 random schedules: before") {
  for (auto seed = std::uint64_t{0}; seed < seeds; ++seed) {
    run_schedule(
        seed,
        [](double c) { return clip::before{c}; },
        [](auto const& g, auto const&, double c) { return test::reference_before(g, c); });
  }
}

TEST_CASE("clip_allreduce gives the same under 200 random schedules: bucketwise") {
  for (auto seed = std::uint64_t{0}; seed < seeds; ++seed) {
    run_schedule(
        seed,
        [](double c) { return clip::bucketwise{threshold::equal{c}}; },
        [](auto const& g, auto const& plan, double c) {
          return test::reference_bucketwise(g, plan, threshold::equal{c}.values(plan));
        });
  }
}

TEST_CASE("a planted read that does not wait for the pipeline is found by the same method" *
          doctest::skip(thread_sanitizer)) {
  // The optimizer's stream is not the one that finish() was given, and nothing orders them.
  auto found = 0;
  for (auto seed = std::uint64_t{0}; seed < 20 && found == 0; ++seed) {
    local::run(2,
               {.faults = {.seed = seed, .max_delay = 2ms}},
               [&](communicator& comm, host::device& device) {
                 auto buckets  = gradient_buckets{device, bucket_plan{test::parameters({64})}};
                 auto pipeline = clip_allreduce{buckets, comm, clip::none{}};
                 auto compute  = device.make_stream();
                 auto other    = device.make_stream();
                 auto error    = 0.0;
                 pipeline.begin(compute);
                 device.enqueue(compute, [&] {
                   std::this_thread::sleep_for(5ms);
                   test::write(buckets.gradient(0), comm.rank(), 0, 0);
                 });
                 test::poison(buckets.gradient(0));
                 pipeline.ready(0, compute);
                 pipeline.finish(compute);
                 auto const expected = test::reference_none(test::all_gradients(2, 0, {64}));
                 device.enqueue(other, [&] { error = test::largest_error(buckets, expected); });
                 device.sync(other);
                 device.sync(compute);
                 if (comm.rank() == 0 && error > 0) { ++found; }
               });
  }
  CHECK(found > 0);
}

TEST_CASE("ready may be called from several threads") {
  auto const sizes = std::vector<std::size_t>(16, 33);
  for (auto seed = std::uint64_t{0}; seed < 20; ++seed) {
    local::run(2, [&](communicator& comm, host::device& device) {
      auto buckets = gradient_buckets{device, bucket_plan{test::parameters(sizes), test::one_each}};
      auto pipeline = clip_allreduce{buckets, comm, clip::bucketwise{threshold::each{1e9}}};
      auto compute  = device.make_stream();
      pipeline.begin(compute);
      device.sync(compute);
      {
        auto threads = std::vector<std::jthread>{};
        for (auto t = std::size_t{0}; t < 4; ++t) {
          threads.emplace_back([&, t] {
            auto own = device.make_stream();
            for (auto p = t; p < sizes.size(); p += 4) {
              test::write(buckets.gradient(p), comm.rank(), seed, p);
              pipeline.ready(p, own);
            }
          });
        }
      }
      pipeline.finish(compute);
      device.sync(compute);
      CHECK(test::largest_error(buckets,
                                test::reference_none(test::all_gradients(2, seed, sizes))) == 0.0);
    });
  }
}

TEST_CASE(
    "the trainer's streams wait for nothing between begin and finish, and reductions overlap") {
  // Backward goes on although no reduction can: rank 1's arrivals are held back until rank 0 has
  // gone through the whole of its backward.
  auto backward_done = std::atomic<bool>{false};
  local::run(2, [&](communicator& comm, host::device& device) {
    auto buckets =
        gradient_buckets{device, bucket_plan{test::parameters({8, 8, 8, 8}), test::one_each}};
    auto pipeline = clip_allreduce{buckets, comm, clip::bucketwise{threshold::each{1e9}}};
    auto compute  = device.make_stream();
    pipeline.begin(compute);
    if (comm.rank() == 1) {
      while (!backward_done) { std::this_thread::yield(); }
    }
    for (auto p = std::size_t{4}; p-- > 0;) {
      device.enqueue(compute, [&, p] { test::write(buckets.gradient(p), comm.rank(), 0, p); });
      pipeline.ready(p, compute);
    }
    if (comm.rank() == 0) {
      device.sync(compute);  // would not return if compute waited for a reduction
      backward_done = true;
    }
    pipeline.finish(compute);
    device.sync(compute);
    CHECK(test::largest_error(
              buckets, test::reference_none(test::all_gradients(2, 0, {8, 8, 8, 8}))) == 0.0);
  });
}

TEST_CASE("results do not depend on bucket sizes, and repeat bit for bit") {
  auto const sizes = std::vector<std::size_t>{1000, 77, 3, 4096};
  auto first       = std::vector<float>{};
  auto const caps  = std::array<std::size_t, 4>{
      1U << 10U, 64U << 10U, 25U << 20U, std::numeric_limits<std::size_t>::max()};
  for (auto run = std::size_t{0}; run < 20; ++run) {
    local::run(3, [&](communicator& comm, host::device& device) {
      auto const cap = caps.at(run % caps.size());
      auto buckets   = gradient_buckets{
          device, bucket_plan{test::parameters(sizes), {.cap_bytes = cap, .first_cap_bytes = cap}}};
      auto pipeline = clip_allreduce{buckets, comm, clip::none{}};
      auto compute  = device.make_stream();
      test::run_step(pipeline, buckets, compute, [&](std::size_t p, buffer_view view) {
        for (auto i = std::size_t{0}; i < view.count(); ++i) {
          test::store(view, i, test::value(comm.rank(), 0, p, i) * 0.1);
        }
      });
      if (comm.rank() != 1) { return; }
      auto result = std::vector<float>{};
      for (auto const p : test::every(sizes.size())) {
        auto const g = buckets.gradient<float>(p);
        result.insert(result.end(), g.begin(), g.end());
      }
      if (first.empty()) { first = result; }
      CHECK(result == first);
    });
  }
}

// SPDX-License-Identifier: Apache-2.0
// Host time of one reduction_pipeline::ready() call that completes no bucket, beside what it is
// made of: an event's record, and an uncontended mutex.
//
//   ./bench/pipeline_ready_bench
#include <gradlane/gradlane.hpp>

#include <benchmark/benchmark.h>

#include <chrono>
#include <cstddef>
#include <mutex>
#include <string>
#include <vector>

namespace {

using namespace gradlane;

constexpr auto parameters = std::size_t{400};  // as many as BERT-large has

[[nodiscard]] bucket_plan one_bucket() {
  auto list = std::vector<parameter>{};
  for (auto i = std::size_t{0}; i < parameters; ++i) {
    list.push_back({.name = std::string{"p"}.append(std::to_string(i)), .count = 64});
  }
  return bucket_plan{std::move(list)};
}

/// @param busy  the stream that wrote the gradients has work under way.
void ready(benchmark::State& state, bool busy) {
  auto world  = local::world{1};
  auto device = host::device{};
  auto comm   = local::communicator{world, device, 0};
  auto gate   = std::mutex{};
  {
    auto buckets  = gradient_buckets{device, one_bucket()};
    auto pipeline = clip_allreduce{buckets, comm, clip::bucketwise{threshold::equal{1.0}}};
    auto compute  = device.make_stream();
    for (auto _ : state) {
      pipeline.begin(compute);
      auto hold = std::unique_lock{gate};
      if (busy) {
        device.enqueue(compute, [&gate] { auto const wait = std::scoped_lock{gate}; });
      }
      auto const start = std::chrono::steady_clock::now();
      for (auto p = parameters; p-- > 1;) { pipeline.ready(p, compute); }
      auto const end = std::chrono::steady_clock::now();
      hold.unlock();
      pipeline.ready(0, compute);
      pipeline.finish(compute);
      device.sync(compute);
      state.SetIterationTime(std::chrono::duration<double>{end - start}.count() /
                             static_cast<double>(parameters - 1));
    }
  }
}

void record(benchmark::State& state) {
  auto device = host::device{};
  auto stream = device.make_stream();
  auto event  = device.make_event();
  for (auto _ : state) { device.record(event, stream); }
}

void lock(benchmark::State& state) {
  auto mutex = std::mutex{};
  for (auto _ : state) {
    auto const held = std::scoped_lock{mutex};
    benchmark::DoNotOptimize(&held);
  }
}

BENCHMARK_CAPTURE(ready, idle_stream, false)->UseManualTime()->Iterations(300);
BENCHMARK_CAPTURE(ready, busy_stream, true)->UseManualTime()->Iterations(300);
BENCHMARK(record);
BENCHMARK(lock);

}  // namespace

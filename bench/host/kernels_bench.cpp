// SPDX-License-Identifier: Apache-2.0
// Kernels of the host device on 1 GiB (out of any cache) and 128 KiB (in cache), beside a memcpy
// and a pure read (vectorised sum of floats) of the same bytes in the same run.
//
// Floor: sum of squares at 1 GiB >= 0.9 of the pure read, in every type.
//   host_kernels_bench --benchmark_repetitions=5 --benchmark_enable_random_interleaving=true
//     --benchmark_min_time=0.2 --benchmark_report_aggregates_only=true
// Last results are in bench/RESULTS.md.
#include <gradlane/buffer_view.hpp>   // for buffer_view
#include <gradlane/host/kernels.hpp>  // for sum_of_squares, scale, cast, pack
#include <gradlane/host/memory.hpp>   // for buffer
#include <gradlane/types.hpp>         // for dtype, size_of

#include <benchmark/benchmark.h>

#include <cstddef>  // for size_t
#include <cstdint>  // for int64_t
#include <cstring>  // for memcpy, memset
#include <span>     // for span

namespace {

using namespace gradlane;
namespace kernels = gradlane::host::kernels;

constexpr std::int64_t out_of_cache = std::int64_t{1} << 30;
constexpr std::int64_t in_cache     = std::int64_t{1} << 17;

/// Memory filled with the byte 1: a small normal number in every floating dtype.
class ones {
 public:
  ones(std::size_t bytes, dtype type)
      : memory_{bytes}, view_{memory_.data(), bytes / size_of(type), type} {
    std::memset(memory_.data(), 1, bytes);
  }
  [[nodiscard]] buffer_view view() const noexcept { return view_; }

 private:
  host::buffer memory_;
  buffer_view view_;
};

void set_bytes(benchmark::State& state, std::int64_t a_round) {
  state.SetBytesProcessed(state.iterations() * a_round);
}

/// Reads 128 bytes a round into eight independent sums: as fast as a core reads.
[[nodiscard]] float pure_read(std::span<float const> x) noexcept {
  using floats [[gnu::vector_size(16)]] = float;
  floats sums[8]                        = {};
  auto add                              = [&](std::size_t lane, float const* from) {
    floats value;
    std::memcpy(&value, from, sizeof value);
    sums[lane] += value;
  };
  for (std::size_t i = 0; i + 32 <= x.size(); i += 32) {
    add(0, &x[i]);
    add(1, &x[i + 4]);
    add(2, &x[i + 8]);
    add(3, &x[i + 12]);
    add(4, &x[i + 16]);
    add(5, &x[i + 20]);
    add(6, &x[i + 24]);
    add(7, &x[i + 28]);
  }
  auto const all = sums[0] + sums[1] + sums[2] + sums[3] + sums[4] + sums[5] + sums[6] + sums[7];
  return all[0] + all[1] + all[2] + all[3];
}

void read(benchmark::State& state) {
  auto const memory = ones{static_cast<std::size_t>(state.range(0)), dtype::fp32};
  for (auto _ : state) { benchmark::DoNotOptimize(pure_read(memory.view().as<float>())); }
  set_bytes(state, state.range(0));
}

void copy(benchmark::State& state) {
  auto const bytes = static_cast<std::size_t>(state.range(0));
  auto const from  = ones{bytes, dtype::fp32};
  auto const to    = ones{bytes, dtype::fp32};
  for (auto _ : state) {
    std::memcpy(to.view().data(), from.view().data(), bytes);
    benchmark::ClobberMemory();
  }
  set_bytes(state, state.range(0));
}

template <element T>
void sum_of_squares(benchmark::State& state) {
  auto const memory = ones{static_cast<std::size_t>(state.range(0)), dtype_of<T>};
  auto const view   = memory.view();
  for (auto _ : state) { benchmark::DoNotOptimize(kernels::sum_of_squares(std::span{&view, 1})); }
  set_bytes(state, state.range(0));
}

template <element T>
void scale(benchmark::State& state) {
  auto const memory = ones{static_cast<std::size_t>(state.range(0)), dtype_of<T>};
  auto sign         = -1.001F;  // so that values neither vanish nor grow beyond bounds
  for (auto _ : state) {
    kernels::scale(memory.view(), sign);
    sign = 1 / sign;
    benchmark::ClobberMemory();
  }
  set_bytes(state, state.range(0));
}

template <element In, element Out>
void pack(benchmark::State& state) {
  auto const bytes = static_cast<std::size_t>(state.range(0));
  auto const from  = ones{bytes, dtype_of<In>};
  auto const to    = ones{bytes / sizeof(In) * sizeof(Out), dtype_of<Out>};
  auto const in    = from.view();
  auto const out   = to.view();
  auto sum         = 0.0;
  for (auto _ : state) {
    kernels::pack(std::span{&in, 1}, std::span{&out, 1}, &sum);
    benchmark::DoNotOptimize(sum);
  }
  set_bytes(state, state.range(0));
}

void sizes(benchmark::internal::Benchmark* bench) {
  bench->Arg(out_of_cache)->Arg(in_cache)->ArgName("bytes");
}

BENCHMARK(read)->Apply(sizes);
BENCHMARK(copy)->Apply(sizes);
BENCHMARK(sum_of_squares<float>)->Apply(sizes);
BENCHMARK(sum_of_squares<double>)->Apply(sizes);
BENCHMARK(sum_of_squares<bf16>)->Apply(sizes);
BENCHMARK(sum_of_squares<fp16>)->Apply(sizes);
BENCHMARK(scale<float>)->Apply(sizes);
BENCHMARK(scale<double>)->Apply(sizes);
BENCHMARK(scale<bf16>)->Apply(sizes);
BENCHMARK(scale<fp16>)->Apply(sizes);
BENCHMARK(pack<float, float>)->Apply(sizes);
BENCHMARK(pack<float, bf16>)->Apply(sizes);
BENCHMARK(pack<bf16, bf16>)->Apply(sizes);
BENCHMARK(pack<bf16, float>)->Apply(sizes);

}  // namespace

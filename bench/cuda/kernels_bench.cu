// SPDX-License-Identifier: Apache-2.0
// Bytes a second of what reads gradients on a GPU, beside a device-to-device copy in the same run.
//
//   ./bench/cuda_kernels_bench
//
// A copy of n bytes moves 2 n; sum_of_squares reads n; pack with its norm reads n and writes n. So
// bytes_per_second of sum_of_squares is to be compared with that of copy: what a copy shows the
// memory to be able to move. Times are of events on the stream.
#include <gradlane/cuda/device.cuh>  // for device
#include <gradlane/cuda/error.hpp>   // for check
#include <gradlane/gradlane.hpp>     // for bf16, buffer_view

#include <benchmark/benchmark.h>

#include <cuda_runtime_api.h>

#include <cstddef>  // for size_t
#include <cstdint>  // for int64_t
#include <span>     // for span

namespace gradlane::bench {

constexpr auto mib = std::int64_t{1} << 20;

/// Runs `work(device, stream)`, which moves `bytes`, and times it on the device.
template <class F>
void timed(benchmark::State& state, cuda::device& d, std::int64_t bytes, F work) {
  auto s      = d.make_stream();
  auto* begin = cudaEvent_t{};
  auto* end   = cudaEvent_t{};
  cuda::check(cudaEventCreate(&begin));
  cuda::check(cudaEventCreate(&end));
  work(s);
  d.sync(s);
  for (auto _ : state) {
    cuda::check(cudaEventRecord(begin, s.get()));
    work(s);
    cuda::check(cudaEventRecord(end, s.get()));
    cuda::check(cudaEventSynchronize(end));
    auto ms = 0.0F;
    cuda::check(cudaEventElapsedTime(&ms, begin, end));
    state.SetIterationTime(static_cast<double>(ms) * 1e-3);
  }
  state.SetBytesProcessed(static_cast<std::int64_t>(state.iterations()) * bytes);
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
}

/// `n` bytes of T, zeroed.
template <class T>
struct gradients {
  gradients(cuda::device& d, std::size_t bytes)
      : memory{d.allocate(bytes)}, view{memory.data(), bytes / sizeof(T), dtype_of<T>} {
    auto s = d.make_stream();
    d.zero(s, view);
    d.sync(s);
  }
  cuda::buffer memory;
  buffer_view view;
};

void copy(benchmark::State& state) {
  auto d        = cuda::device{};
  auto const in = gradients<float>{d, static_cast<std::size_t>(state.range(0))};
  auto out      = gradients<float>{d, static_cast<std::size_t>(state.range(0))};
  timed(state, d, 2 * state.range(0), [&](auto& s) { d.copy(s, in.view, out.view); });
}

template <class T>
void sum_of_squares(benchmark::State& state) {
  auto d          = cuda::device{};
  auto const x    = gradients<T>{d, static_cast<std::size_t>(state.range(0))};
  auto const list = d.make_tensor_list(std::span{&x.view, 1});
  auto sum        = d.allocate(sizeof(double));
  timed(state, d, state.range(0), [&](auto& s) {
    d.sum_of_squares(s, list, reinterpret_cast<double*>(sum.data()));
  });
}

template <class T>
void pack_with_norm(benchmark::State& state) {
  auto d          = cuda::device{};
  auto const in   = gradients<T>{d, static_cast<std::size_t>(state.range(0))};
  auto const out  = gradients<T>{d, static_cast<std::size_t>(state.range(0))};
  auto const from = d.make_tensor_list(std::span{&in.view, 1});
  auto const to   = d.make_tensor_list(std::span{&out.view, 1});
  auto sum        = d.allocate(sizeof(double));
  timed(state, d, 2 * state.range(0), [&](auto& s) {
    d.pack(s, from, to, reinterpret_cast<double*>(sum.data()));
  });
}

void sizes(benchmark::internal::Benchmark* b) {
  for (auto const n : {1, 25, 256, 1024}) { b->Arg(n * mib); }
  b->UseManualTime();
}

BENCHMARK(copy)->Apply(sizes);
BENCHMARK(sum_of_squares<float>)->Apply(sizes);
BENCHMARK(sum_of_squares<bf16>)->Apply(sizes);
BENCHMARK(pack_with_norm<float>)->Apply(sizes);
BENCHMARK(pack_with_norm<bf16>)->Apply(sizes);

}  // namespace gradlane::bench

// SPDX-License-Identifier: Apache-2.0
//
// Time of the attention kernels by CUDA's events, and what it means in TFLOP/s: 4 · 64 n² a head in
// forward and 10 · 64 n² in backward, as is usual, although backward computes 14 · 64 n².
//
//     attention_bench [--tokens N] [--heads N] [--lengths FILE] [--fp16] [Google Benchmark's
//     options]
//
// Workloads: sequences of 128, of 512 and of 2048 rows; with a file of lines "length,count",
// lengths as they are distributed there ("mix"), and the same number of rows and scores in equal
// lengths
// ("even"): mix reaches less than even by what uneven lengths cost. All in bf16, with --fp16 also
// in that; 128 also in fp32. Defaults: 16384 tokens, 16 heads. Nothing but the kernels is timed.
#include "attention.cuh"

#include <benchmark/benchmark.h>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>     // for max
#include <charconv>      // for from_chars
#include <cstddef>       // for size_t
#include <cstdint>       // for int32_t, uint32_t
#include <cstdlib>       // for EXIT_FAILURE
#include <cstring>       // for strcmp
#include <exception>     // for exception
#include <fstream>       // for ifstream
#include <iostream>      // for cerr
#include <memory>        // for make_shared, shared_ptr
#include <span>          // for span
#include <sstream>       // for istringstream
#include <stdexcept>     // for runtime_error
#include <string>        // for string, getline
#include <system_error>  // for errc
#include <utility>       // for exchange
#include <vector>        // for vector

namespace {

namespace attention = bert::attention;
using bf16          = __nv_bfloat16;
using fp16          = __half;

struct settings {
  std::size_t tokens = 16384;
  std::size_t heads  = 16;
  std::string lengths;  // file; none: no mix
  bool fp16 = false;
};

void check(cudaError_t code) {
  if (code != cudaSuccess) { throw attention::cuda_error{"attention_bench", code}; }
}

template <class T>
class device_buffer {
 public:
  explicit device_buffer(std::size_t size) : size_{size} {
    check(cudaMalloc(&data_, std::max(size, std::size_t{1}) * sizeof(T)));
  }
  explicit device_buffer(std::vector<T> const& values) : device_buffer{values.size()} {
    check(cudaMemcpy(data_, values.data(), size_ * sizeof(T), cudaMemcpyHostToDevice));
  }
  ~device_buffer() { static_cast<void>(cudaFree(data_)); }
  device_buffer(device_buffer const&)            = delete;
  device_buffer& operator=(device_buffer const&) = delete;
  [[nodiscard]] std::span<T> span() const { return {data_, size_}; }

 private:
  std::size_t size_;
  T* data_ = nullptr;
};

class event {
 public:
  event() { check(cudaEventCreate(&handle_)); }
  ~event() { static_cast<void>(cudaEventDestroy(handle_)); }
  event(event const&)            = delete;
  event& operator=(event const&) = delete;
  void record() const { check(cudaEventRecord(handle_, nullptr)); }
  [[nodiscard]] double seconds_since(event const& start) const {
    check(cudaEventSynchronize(handle_));
    auto milliseconds = 0.0F;
    check(cudaEventElapsedTime(&milliseconds, start.handle_, handle_));
    return double{milliseconds} * 1e-3;
  }

 private:
  cudaEvent_t handle_{};
};

using length_list = std::vector<std::int32_t>;

/// Sequences of one length, `tokens` rows in all or the least more.
length_list equal_lengths(std::size_t tokens, std::size_t length) {
  return length_list((tokens + length - 1) / length, static_cast<std::int32_t>(length));
}

/// Quantiles of the distribution in a file of lines "length,count", for about `tokens` rows.
length_list mixed_lengths(std::size_t tokens, std::string const& file) {
  auto input = std::ifstream{file};
  if (!input) { throw std::runtime_error{file + ": cannot be read"}; }
  auto counts = std::vector<double>{};  // by length
  auto all    = 0.0;
  auto rows   = 0.0;
  for (auto line = std::string{}; std::getline(input, line);) {
    auto fields = std::istringstream{line};
    auto length = std::size_t{0};
    auto comma  = char{};
    auto count  = 0.0;
    if (!(fields >> length >> comma >> count)) { continue; }  // a comment or the heading
    counts.resize(std::max(counts.size(), length + 1));
    counts[length] += count;
    all += count;
    rows += count * static_cast<double>(length);
  }
  if (rows <= 0) { throw std::runtime_error{file + ": no lines \"length,count\" with sequences"}; }
  auto const sequences = std::max(1.0, static_cast<double>(tokens) * all / rows);
  auto result          = length_list{};
  auto below           = 0.0;
  for (auto length = std::size_t{0}; length < counts.size(); ++length) {
    below += counts[length];
    while ((static_cast<double>(result.size()) + 0.5) / sequences * all < below) {
      result.push_back(static_cast<std::int32_t>(length));
    }
  }
  return result;
}

/// As many rows and (almost) as many scores as `mix`, in sequences of one length: Σn² / Σn.
length_list even_lengths(length_list const& mix) {
  auto rows   = std::size_t{0};
  auto scores = std::size_t{0};
  for (auto const length : mix) {
    auto const n = static_cast<std::size_t>(length);
    rows += n;
    scores += n * n;
  }
  return equal_lengths(rows, std::max(scores / std::max(rows, std::size_t{1}), std::size_t{1}));
}

/// Everything on the device that a workload needs; values do not matter to the speed.
template <class Value>
struct workload {
  std::size_t heads;
  std::size_t rows;
  double scores = 0;  // Σ n² over sequences
  device_buffer<std::int32_t> starts;
  device_buffer<std::uint32_t> samples;
  device_buffer<attention::tile> tiles;
  device_buffer<Value> qkv, context, dcontext, dqkv;
  device_buffer<float> lse;
  device_buffer<attention::row_terms> scratch;

  workload(length_list const& lengths, std::size_t head_count)
      : workload{starts_of(lengths), lengths, head_count} {}

  [[nodiscard]] attention::forward_arguments<Value> forward(bert::dropout const& drop) const {
    return {batch(), drop, qkv.span(), context.span(), lse.span()};
  }
  [[nodiscard]] attention::backward_arguments<Value> backward(bert::dropout const& drop) const {
    return {batch(),
            drop,
            qkv.span(),
            context.span(),
            lse.span(),
            dcontext.span(),
            dqkv.span(),
            scratch.span()};
  }

 private:
  workload(std::vector<std::int32_t> const& begin,
           length_list const& lengths,
           std::size_t head_count)
      : heads{head_count},
        rows{static_cast<std::size_t>(begin.back())},
        starts{begin},
        samples{std::vector<std::uint32_t>(lengths.size(), 1)},
        tiles{tiles_of(begin)},
        qkv{noise(rows * 3 * heads * attention::head_size)},
        context{rows * heads * attention::head_size},
        dcontext{noise(rows * heads * attention::head_size)},
        dqkv{rows * 3 * heads * attention::head_size},
        lse{rows * heads},
        scratch{rows * heads} {
    for (auto const n : lengths) { scores += double{static_cast<float>(n)} * n; }
  }

  [[nodiscard]] attention::ragged_batch batch() const {
    return {starts.span(), samples.span(), tiles.span(), heads};
  }
  static std::vector<std::int32_t> starts_of(length_list const& lengths) {
    auto result = std::vector<std::int32_t>{0};
    for (auto const length : lengths) { result.push_back(result.back() + length); }
    return result;
  }
  static std::vector<attention::tile> tiles_of(std::vector<std::int32_t> const& begin) {
    auto result = std::vector<attention::tile>(attention::count_tiles(begin));
    attention::fill_tiles(begin, result);
    return result;
  }
  static std::vector<Value> noise(std::size_t size) {
    auto result = std::vector<Value>(size);
    auto state  = std::uint32_t{1};
    for (auto& x : result) {
      state = state * 1664525U + 1013904223U;
      x     = Value(static_cast<float>(state >> 8U) * 0x1p-23F - 1.0F);
    }
    return result;
  }
};

/// Times `launch` by events.
template <class Launch>
void measure(benchmark::State& state, Launch const& launch, double flops, std::size_t rows) {
  auto const start = event{};
  auto const stop  = event{};
  launch();  // loads the kernels
  check(cudaDeviceSynchronize());
  for (auto const _ : state) {
    start.record();
    launch();
    stop.record();
    state.SetIterationTime(stop.seconds_since(start));
  }
  auto const runs          = static_cast<double>(state.iterations());
  auto const rate          = benchmark::Counter::kIsRate;
  state.counters["flop"]   = benchmark::Counter{flops * runs, rate};
  state.counters["tokens"] = benchmark::Counter{static_cast<double>(rows) * runs, rate};
}

/// Device memory of the workload that runs: benchmarks of one workload follow each other.
template <class Value>
class current_workload {
 public:
  workload<Value> const& of(std::string const& name,
                            length_list const& lengths,
                            std::size_t heads) {
    if (name != name_) {
      held_.reset();  // first, or there must be room for two
      held_ = std::make_shared<workload<Value>>(lengths, heads);
      name_ = name;
    }
    return *held_;
  }

 private:
  std::string name_;
  std::shared_ptr<workload<Value>> held_;
};

template <class Value>
void register_all(std::string const& type,
                  std::string const& name,
                  length_list const& lengths,
                  std::size_t heads,
                  std::shared_ptr<current_workload<Value>> const& held) {
  constexpr auto head_size = static_cast<double>(attention::head_size);
  auto const add           = [&](std::string const& what, double products, auto const& launch) {
    for (auto const with : {false, true}) {
      auto const drop = with ? bert::dropout{1, 2, 3, 230, 256.0F / 230.0F} : bert::dropout{};
      auto const full = type + "/" + what + "/" + name + (with ? "/dropout" : "");
      benchmark::RegisterBenchmark(
          full.c_str(),
          [=](benchmark::State& state) {
            auto const& x = held->of(name, lengths, heads);
            measure(
                state,
                [&] { launch(x, drop); },
                products * 2 * head_size * x.scores * static_cast<double>(x.heads),
                x.rows);
          })
          ->UseManualTime()
          ->Unit(benchmark::kMicrosecond);
    }
  };
  using arguments = workload<Value>;
  add("forward", 2, [](arguments const& x, bert::dropout const& drop) {
    attention::forward(nullptr, x.forward(drop));
  });
  if constexpr (sizeof(Value) == 2) {
    add("forward64", 2, [](arguments const& x, bert::dropout const& drop) {
      attention::forward<64>(nullptr, x.forward(drop));
    });
  }
  add("backward", 5, [](arguments const& x, bert::dropout const& drop) {
    attention::backward(nullptr, x.backward(drop));
  });
}

std::size_t positive(std::string const& name, std::string const& text) {
  auto number    = std::size_t{0};
  auto const end = text.data() + text.size();
  auto const got = std::from_chars(text.data(), end, number);
  if (got.ec != std::errc{} || got.ptr != end || number == 0) {
    throw std::runtime_error{name + " needs a positive number, not '" + text + "'"};
  }
  return number;
}

/// Takes our own options out of the command line.
settings parse(int& count, char** values) {
  auto result = settings{};
  auto kept   = 1;
  for (auto i = 1; i < count; ++i) {
    auto const name  = std::string{values[i]};
    auto const* next = i + 1 < count ? values[i + 1] : nullptr;
    if (name == "--fp16") {
      result.fp16 = true;
      continue;
    }
    if (name != "--tokens" && name != "--heads" && name != "--lengths") {
      values[kept++] = values[i];
      continue;
    }
    if (next == nullptr) { throw std::runtime_error{name + " needs a value"}; }
    if (name == "--tokens") { result.tokens = positive(name, next); }
    if (name == "--heads") { result.heads = positive(name, next); }
    if (name == "--lengths") { result.lengths = next; }
    ++i;
  }
  count = kept;
  return result;
}

void run(int count, char** values) {
  auto const options = parse(count, values);
  benchmark::Initialize(&count, values);
  if (benchmark::ReportUnrecognizedArguments(count, values)) {
    throw std::runtime_error{"unknown option"};
  }
  auto const brain = std::make_shared<current_workload<bf16>>();
  auto const half  = std::make_shared<current_workload<fp16>>();
  auto const full  = std::make_shared<current_workload<float>>();
  auto const add   = [&](std::string const& name, length_list const& lengths) {
    register_all<bf16>("bf16", name, lengths, options.heads, brain);
    if (options.fp16) { register_all<fp16>("fp16", name, lengths, options.heads, half); }
  };
  for (auto const length : {std::size_t{128}, std::size_t{512}, std::size_t{2048}}) {
    if (length <= options.tokens) {
      add(std::to_string(length), equal_lengths(options.tokens, length));
    }
  }
  if (!options.lengths.empty()) {
    auto const mix = mixed_lengths(options.tokens, options.lengths);
    add("mix", mix);
    add("even", even_lengths(mix));
  }
  register_all<float>("fp32", "128", equal_lengths(options.tokens, 128), options.heads, full);
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
}

}  // namespace

int main(int count, char** values) {
  try {
    run(count, values);
  } catch (std::exception const& failure) {
    std::cerr << "attention_bench: " << failure.what() << '\n';
    return EXIT_FAILURE;
  }
}

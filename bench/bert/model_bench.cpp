// SPDX-License-Identifier: Apache-2.0
// A step of BERT on the CPU (forward, backward, AdamW), tokens per second. The peer is
// torch_bert.py beside this file: the same sizes, dropout, batch and masked rows in PyTorch.
//
//   OMP_NUM_THREADS=1 bert_model_bench --benchmark_filter=base
//   python3 torch_bert.py base bf16
//
// Last results are in bench/RESULTS.md.
#include <gradlane/types.hpp>  // for bf16

#include <benchmark/benchmark.h>

#include <bert/cpu/device.hpp>
#include <bert/model.hpp>
#include <bert/optimizer.hpp>

#include <array>    // for array
#include <chrono>   // for steady_clock
#include <cstddef>  // for size_t
#include <cstdint>  // for int32_t, uint32_t
#include <span>     // for span
#include <string>   // for string
#include <vector>   // for vector

namespace {

using namespace bert;

/// Eight lengths spread as those of Wikipedia's sequences are (mean 250, a quarter at 512).
constexpr auto natural = std::array<std::size_t, 8>{28, 66, 110, 165, 245, 362, 512, 512};

/// Sequences of these lengths, 15 % of their tokens masked.
batch make_batch(model_config const& config, std::span<std::size_t const> lengths) {
  auto data = batch{};
  for (auto s = 0U; s < lengths.size(); ++s) {
    auto const length = lengths[s];
    auto ids          = std::vector<std::int32_t>(length);
    auto predicted    = std::vector<std::int32_t>{};
    auto labels       = std::vector<std::int32_t>{};
    for (auto i = 0U; i < length; ++i) {
      auto const random = philox({s, i, 0, 0}, 1, 2);
      ids[i]            = static_cast<std::int32_t>(1 + random.x % (config.vocab_size - 1));
      if (random.y % 100 < 15) {
        predicted.push_back(static_cast<std::int32_t>(i));
        labels.push_back(ids[i]);
      }
    }
    data.append(s, ids, std::vector<std::int32_t>(length), predicted, labels, 0);
  }
  return data;
}

/// Forward, backward and AdamW, as a step on one rank.
template <class Value>
void step(benchmark::State& state, std::string const& name, std::span<std::size_t const> lengths) {
  auto config      = preset(name);
  config.dropout   = 0.1;  // as the peer's
  auto const list  = parameter_list{config};
  auto const data  = make_batch(config, lengths);
  auto const sites = dropout_sites{config, config.dropout, 1, 2};
  auto parameters  = std::vector<float>(list.total());
  auto flat        = std::vector<float>(list.total());
  auto gradients   = std::vector<std::span<float>>{};
  initialise(list, parameters, 1);
  for (auto i = std::size_t{0}; i < list.size(); ++i) {
    gradients.push_back(list.slice(std::span<float>{flat}, i));
  }
  auto device   = cpu::device<Value>{};
  auto bert     = model<cpu::device<Value>>{config, device, parameters};
  auto update   = optimizer{list, {}};
  auto updating = 0.0;
  auto run      = [&] {
    auto const sums = bert.forward(data, sites);
    bert.backward(1.0 / static_cast<double>(sums.predictions),
                  1.0 / static_cast<double>(sums.sequences),
                  gradients,
                  false,
                  [](std::size_t) {});
    auto const start = std::chrono::steady_clock::now();
    update.step(parameters, gradients, 1e-5);
    updating += std::chrono::duration<double>{std::chrono::steady_clock::now() - start}.count();
    bert.refresh();
  };
  run();  // memory and oneDNN's kernels
  updating         = 0;
  auto const start = std::chrono::steady_clock::now();
  for (auto _ : state) { run(); }
  auto const total =
      std::chrono::duration<double>{std::chrono::steady_clock::now() - start}.count();
  state.counters["tokens/s"]    = benchmark::Counter(static_cast<double>(data.token_count()),
                                                  benchmark::Counter::kIsIterationInvariantRate);
  state.counters["optimizer %"] = 100 * updating / total;
}

template <class Value>
void equal(benchmark::State& state, std::string const& name) {
  auto const lengths = std::vector<std::size_t>(static_cast<std::size_t>(state.range(1)),
                                                static_cast<std::size_t>(state.range(0)));
  step<Value>(state, name, lengths);
}

void fp32(benchmark::State& state, std::string const& name) { equal<float>(state, name); }
void bf16(benchmark::State& state, std::string const& name) { equal<gradlane::bf16>(state, name); }
void fp32_natural(benchmark::State& state) { step<float>(state, "base", natural); }
void bf16_natural(benchmark::State& state) { step<gradlane::bf16>(state, "base", natural); }

void shapes(benchmark::internal::Benchmark* b) {
  b->ArgNames({"length", "sequences"})->Unit(benchmark::kMillisecond)->UseRealTime();
}

BENCHMARK_CAPTURE(fp32, mini, "mini")->Apply(shapes)->Args({128, 32});
BENCHMARK_CAPTURE(bf16, mini, "mini")->Apply(shapes)->Args({128, 32});
BENCHMARK_CAPTURE(fp32, base, "base")->Apply(shapes)->Args({128, 8});
BENCHMARK_CAPTURE(bf16, base, "base")->Apply(shapes)->Args({128, 8});
BENCHMARK(fp32_natural)->Unit(benchmark::kMillisecond)->UseRealTime();
BENCHMARK(bf16_natural)->Unit(benchmark::kMillisecond)->UseRealTime();

}  // namespace

// SPDX-License-Identifier: Apache-2.0
// Forward and backward of BERT on the CPU, tokens per second. The peer is torch_bert.py beside
// this file: the same sizes, dropout, batch and masked rows in PyTorch.
//
//   OMP_NUM_THREADS=1 bert_model_bench --benchmark_filter=base
//   python3 torch_bert.py base bf16
//
// One core of a Xeon with AVX-512 but without AMX, shared with other work, so by processor time
// and in turns; torch 2.15.0, transformers 5.24.0. Thousands of tokens per second, ours / theirs:
//
//                    fp32                  bf16
//   mini, 32 x 128   5.00  / 3.54  1.41x   4.47  / 2.55  1.75x
//   base,  8 x 128   0.251 / 0.197 1.27x   0.241 / 0.120 2.01x
#include <gradlane/types.hpp>  // for bf16

#include <benchmark/benchmark.h>

#include <bert/cpu/device.hpp>
#include <bert/model.hpp>

#include <cstdint>  // for int32_t, uint32_t
#include <span>     // for span
#include <string>   // for string
#include <vector>   // for vector

namespace {

using namespace bert;

/// `sequences` of equal length, 15 % of their tokens masked.
batch make_batch(model_config const& config, std::size_t length, std::size_t sequences) {
  auto data = batch{};
  for (auto s = 0U; s < sequences; ++s) {
    auto ids       = std::vector<std::int32_t>(length);
    auto predicted = std::vector<std::int32_t>{};
    auto labels    = std::vector<std::int32_t>{};
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

template <class Value>
void forward_backward(benchmark::State& state, std::string const& name) {
  auto const config = preset(name);
  auto const list   = parameter_list{config};
  auto const length = static_cast<std::size_t>(state.range(0));
  auto const data   = make_batch(config, length, static_cast<std::size_t>(state.range(1)));
  auto const sites  = dropout_sites{config, config.dropout, 1, 2};
  auto parameters   = std::vector<float>(list.total());
  auto flat         = std::vector<float>(list.total());
  auto gradients    = std::vector<std::span<float>>{};
  initialise(list, parameters, 1);
  for (auto i = std::size_t{0}; i < list.size(); ++i) {
    gradients.push_back(list.slice(std::span<float>{flat}, i));
  }
  auto device = cpu::device<Value>{};
  auto bert   = model<cpu::device<Value>>{config, device, parameters};
  auto step   = [&] {
    bert.refresh();  // as after an optimizer's update
    auto const sums = bert.forward(data, sites);
    bert.backward(1.0 / static_cast<double>(sums.predictions),
                  1.0 / static_cast<double>(sums.sequences),
                  gradients,
                  false,
                  [](std::size_t) {});
  };
  step();  // memory and oneDNN's kernels
  for (auto _ : state) { step(); }
  state.counters["tokens/s"] = benchmark::Counter(static_cast<double>(data.token_count()),
                                                  benchmark::Counter::kIsIterationInvariantRate);
}

void fp32(benchmark::State& state, std::string const& name) {
  forward_backward<float>(state, name);
}
void bf16(benchmark::State& state, std::string const& name) {
  forward_backward<gradlane::bf16>(state, name);
}

void shapes(benchmark::internal::Benchmark* b) {
  b->ArgNames({"length", "sequences"})->Unit(benchmark::kMillisecond)->UseRealTime();
}

BENCHMARK_CAPTURE(fp32, mini, "mini")->Apply(shapes)->Args({128, 32});
BENCHMARK_CAPTURE(bf16, mini, "mini")->Apply(shapes)->Args({128, 32});
BENCHMARK_CAPTURE(fp32, base, "base")->Apply(shapes)->Args({128, 8})->Args({512, 2});
BENCHMARK_CAPTURE(bf16, base, "base")->Apply(shapes)->Args({128, 8})->Args({512, 2});

}  // namespace

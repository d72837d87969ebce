// SPDX-License-Identifier: Apache-2.0
#include "cuda_memory.hpp"  // for device_memory, on_cuda, test_stream
#include "golden_run.hpp"   // for check_golden, golden, golden_bound
#include "model_run.hpp"    // for check_close, run_model
#include "on_cpu.hpp"       // for on_cpu
#include "support.hpp"      // for formula_parameters, make_batch, relative_error

#include <gradlane/cuda/error.hpp>  // for check
#include <gradlane/types.hpp>       // for bf16, fp16

#include <doctest/doctest.h>

#include <bert/config.hpp>
#include <bert/cuda/device.hpp>
#include <bert/dropout.hpp>
#include <bert/model.hpp>
#include <bert/pad.hpp>
#include <bert/parameters.hpp>

#include <algorithm>  // for all_of
#include <cmath>      // for abs, isfinite
#include <cstddef>    // for size_t
#include <span>       // for span
#include <vector>     // for vector

// The model on CUDA against the same on the CPU: same weights, batches and dropout.
//
// fp32: both add up in fp32 in orders of their own; 1e-4 in losses and gradients is what the two
// programs promise each other, and what any two orders of the sums are held to. bf16: the weights
// by formula are large and so are, here, the errors of roundings at the bottom of the model: the
// CPU's bf16, whose roundings are as many, says what is to be expected.

namespace {

using namespace bert;
using gradlane::bf16;
using gradlane::fp16;
using test::on_cpu;
using test::on_cuda;
using test::run_model;

/// The mini model, whose heads have 64 columns, with fewer layers and tokens.
model_config config() {
  auto result              = preset("mini");
  result.num_hidden_layers = 2;
  result.vocab_size        = 1021;
  return result;
}

std::vector<batch> data() { return {test::make_batch(config(), {40, 1, 64, 33, 65})}; }

TEST_CASE("cuda model in fp32 is the CPU's to 1e-4, dropout on") {
  auto own     = on_cuda<float>::make();
  auto other   = on_cpu<float>::make();
  auto const a = run_model<on_cuda<float>>(config(), own, data());
  auto const b = run_model<on_cpu<float>>(config(), other, data());
  check_close(config(), a, b, 1e-4, 1e-4);
  CHECK(a.sums.correct == b.sums.correct);
}

TEST_CASE_TEMPLATE("cuda model agrees with Hugging Face's BERT", T, float, bf16, fp16) {
  auto device = on_cuda<T>::make();
  test::check_golden<on_cuda<T>>(test::golden::heads_of_64, device, test::golden_bound<T>);
}

/// Relative errors of the gradients of all tensors but those that are zero but for rounding.
template <class T>
std::vector<double> errors(test::model_result<T> const& of,
                           test::model_result<float> const& exact) {
  auto const list = parameter_list{config()};
  auto result     = std::vector<double>{};
  for (auto i = std::size_t{0}; i < list.size(); ++i) {
    if (list[i].name.ends_with("key.bias")) { continue; }
    result.push_back(test::relative_error(list.slice(std::span<T const>{of.gradients}, i),
                                          list.slice(std::span<float const>{exact.gradients}, i)));
  }
  return result;
}

TEST_CASE("cuda model in bf16 is as near to fp32 as the CPU's in bf16, dropout on") {
  auto own         = on_cuda<bf16>::make();
  auto other       = on_cpu<bf16>::make();
  auto full        = on_cpu<float>::make();
  auto const exact = run_model<on_cpu<float>>(config(), full, data());
  auto const a     = run_model<on_cuda<bf16>>(config(), own, data());
  auto const b     = run_model<on_cpu<bf16>>(config(), other, data());
  CHECK(std::abs(a.sums.masked_lm / exact.sums.masked_lm - 1) < 1e-2);
  CHECK(std::abs(a.sums.next_sentence / exact.sums.next_sentence - 1) < 1e-2);
  auto const of_cuda = errors(a, exact);
  auto const of_cpu  = errors(b, exact);
  for (auto i = std::size_t{0}; i < of_cpu.size(); ++i) {
    CAPTURE(i);
    CHECK(of_cuda[i] < 1.5 * of_cpu[i] + 0x1p-8);
  }
}

TEST_CASE("cuda model in fp16 with a loss scale is nearer to fp32 than in bf16, dropout on") {
  auto own         = on_cuda<fp16>::make();
  auto other       = on_cuda<bf16>::make();
  auto full        = on_cuda<float>::make();
  auto const exact = run_model<on_cuda<float>>(config(), full, data());
  auto const a     = run_model<on_cuda<fp16>>(config(), own, data(), 0.1, 0x1p8);
  auto const b     = run_model<on_cuda<bf16>>(config(), other, data());
  CHECK(std::abs(a.sums.masked_lm / exact.sums.masked_lm - 1) < 1e-3);
  CHECK(std::abs(a.sums.next_sentence / exact.sums.next_sentence - 1) < 1e-3);
  auto const in_fp16 = errors(a, exact);
  auto const in_bf16 = errors(b, exact);
  for (auto i = std::size_t{0}; i < in_fp16.size(); ++i) {
    CAPTURE(i);
    CHECK(in_fp16[i] < 0.25 * in_bf16[i] + 0x1p-11);
  }
}

TEST_CASE("cuda model in fp16 shows in every gradient that a loss scale is too high") {
  auto own          = on_cuda<fp16>::make();
  auto const list   = parameter_list{config()};
  auto const result = run_model<on_cuda<fp16>>(config(), own, data(), 0.1, 0x1p40);
  CHECK(std::isfinite(result.sums.masked_lm));
  for (auto i = std::size_t{0}; i < list.size(); ++i) {
    auto const of = list.slice(std::span<float const>{result.gradients}, i);
    CHECK_MESSAGE(!std::all_of(of.begin(), of.end(), [](float g) { return std::isfinite(g); }),
                  list[i].name);
  }
}

TEST_CASE("cuda model gives a batch cut into pieces the same losses and gradients to 1e-4") {
  auto device      = on_cuda<float>::make();
  auto const whole = run_model<on_cuda<float>>(config(), device, data());
  auto const parts = run_model<on_cuda<float>>(config(),
                                               device,
                                               {test::make_batch(config(), {40}),
                                                test::make_batch(config(), {1, 64}, 1),
                                                batch{},
                                                test::make_batch(config(), {33, 65}, 3)});
  check_close(config(), parts, whole, 1e-4, 1e-4);
}

TEST_CASE_TEMPLATE("cuda model gives a padded batch the same losses and gradients to 1e-4",
                   T,
                   float,
                   bf16) {
  auto const real   = data().front();
  auto const padded = pad(real, rounded_up(real.shape(), real.token_count(), 128), 128);
  auto device       = on_cuda<T>::make();
  auto const a      = run_model<on_cuda<T>>(config(), device, {padded});
  auto const b      = run_model<on_cuda<T>>(config(), device, {real});
  CHECK(a.sums.masked_lm == doctest::Approx(b.sums.masked_lm).epsilon(1e-12));
  CHECK(a.sums.next_sentence == doctest::Approx(b.sums.next_sentence).epsilon(1e-12));
  CHECK(a.sums.correct == b.sums.correct);
  check_close(config(), a, b, 1e-5, 1e-4);
}

TEST_CASE_TEMPLATE("cuda model gives the same bits in every run", T, float, bf16, fp16) {
  auto one     = on_cuda<T>::make();
  auto other   = on_cuda<T>::make();
  auto const a = run_model<on_cuda<T>>(config(), one, data());
  run_model<on_cuda<T>>(config(), other, {test::make_batch(config(), {3, 29}, 9)});
  auto const b = run_model<on_cuda<T>>(config(), other, data());
  CHECK(a.sums.masked_lm == b.sums.masked_lm);
  CHECK(a.gradients == b.gradients);
}

TEST_CASE_TEMPLATE("cuda model is captured whole, once it has room: it allocates and waits nowhere",
                   T,
                   float,
                   bf16,
                   fp16) {
  using gradlane::cuda::check;
  auto const list   = parameter_list{config()};
  auto const stream = test::test_stream().get();
  auto parameters   = test::device_memory<float>{test::formula_parameters<float>(list)};
  auto gradients    = test::device_memory<float>{std::vector<float>(list.total(), 7)};
  auto spans        = std::vector<std::span<float>>{};
  for (auto i = std::size_t{0}; i < list.size(); ++i) {
    spans.push_back(list.slice(gradients.span(), i));
  }
  auto device      = on_cuda<T>::make();
  auto bert        = model<cuda::device<T>>{config(), device, parameters.span()};
  auto const batch = data().front();
  auto const bytes = bert.reserve(batch.shape());
  CHECK(bert.reserve({1, 1, 1}) == bytes);
  bert.take(batch);
  auto* graph    = cudaGraph_t{};
  auto* instance = cudaGraphExec_t{};
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  bert.start_forward(dropout_sites{config(), 0.1, 3, 4});
  bert.backward(1.0 / 50, 1.0 / 5, spans, false, [](std::size_t) {});
  check(cudaStreamEndCapture(stream, &graph));
  check(cudaGraphInstantiate(&instance, graph, 0));
  auto plain          = on_cuda<T>::make();
  auto const expected = run_model<on_cuda<T>>(config(), plain, data());
  for (auto i = 0; i < 2; ++i) {
    check(cudaGraphLaunch(instance, stream));
    CHECK(bert.sync_losses().masked_lm == expected.sums.masked_lm);
    CHECK(gradients.values() == expected.gradients);
  }
  check(cudaGraphExecDestroy(instance));
  check(cudaGraphDestroy(graph));
}

}  // namespace

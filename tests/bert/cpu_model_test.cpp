// SPDX-License-Identifier: Apache-2.0
#include "golden_run.hpp"    // for check_golden, golden, golden_bound
#include "model_run.hpp"     // for check_close, run_model
#include "on_cpu.hpp"        // for on_cpu
#include "on_reference.hpp"  // for on_reference
#include "support.hpp"       // for make_batch, formula_parameters

#include <gradlane/types.hpp>  // for bf16

#include <doctest/doctest.h>

#include <bert/cpu/device.hpp>
#include <bert/model.hpp>
#include <bert/pad.hpp>
#include <bert/reference.hpp>
#include <omp.h>  // for omp_set_num_threads

#include <type_traits>  // for is_same_v

// The whole model on the CPU against the reference in fp64: same parameters, batch and dropout.
//
// fp32: about 30 operations of relative error 1e-6 follow each other; 3e-5 per tensor, 1e-6 in the
// losses, where errors of many rows average out. bf16: 30 roundings of 2^-9 / √3 add up like a
// random walk to 6e-3 and are amplified by LayerNorm of small rows; 5e-2 per tensor.

namespace {

using namespace bert;
using gradlane::bf16;
using test::check_close;

model_config small_config() {
  auto config                = test::tiny_config();
  config.hidden_size         = 48;
  config.intermediate_size   = 80;
  config.vocab_size          = 211;
  config.num_attention_heads = 4;
  return config;
}

template <class T>
auto run(model_config const& config, cpu::device<T>& device, std::vector<batch> const& pieces) {
  return test::run_model<test::on_cpu<T>>(config, device, pieces);
}

auto run(model_config const& config,
         reference_device<double>& device,
         std::vector<batch> const& pieces) {
  return test::run_model<test::on_reference<double>>(config, device, pieces);
}

TEST_CASE_TEMPLATE("cpu model agrees with the reference in fp64", T, float, bf16) {
  auto const config = small_config();
  auto const data   = std::vector{test::make_batch(config, {40, 1, 17, 33, 9})};
  auto fast         = cpu::device<T>{};
  auto exact        = reference_device<double>{};
  auto const loose  = std::is_same_v<T, bf16>;
  check_close(config,
              run(config, fast, data),
              run(config, exact, data),
              loose ? 1e-2 : 1e-6,
              loose ? 5e-2 : 3e-5);
}

TEST_CASE_TEMPLATE("cpu model agrees with Hugging Face's BERT", T, float, bf16) {
  auto device = cpu::device<T>{};
  for (auto const* expected : {&test::golden::heads_of_16, &test::golden::heads_of_64}) {
    test::check_golden<test::on_cpu<T>>(*expected, device, test::golden_bound<T>);
  }
}

TEST_CASE("cpu model in bf16 agrees with the reference by native products too") {
  auto const config = small_config();
  auto const data   = std::vector{test::make_batch(config, {40, 1, 17, 33, 9})};
  auto fast         = cpu::device<bf16>{cpu::bf16_products::native};
  auto exact        = reference_device<double>{};
  check_close(config, run(config, fast, data), run(config, exact, data), 1e-2, 5e-2);
}

TEST_CASE("cpu model gives a batch cut into pieces the same losses and gradients to 1e-5") {
  auto const config = small_config();
  auto device       = cpu::device<float>{};
  auto const whole  = run(config, device, {test::make_batch(config, {40, 1, 17, 33, 9})});
  auto const pieces = run(config,
                          device,
                          {test::make_batch(config, {40}),
                           test::make_batch(config, {1, 17}, 1),
                           test::make_batch(config, {33, 9}, 3)});
  check_close(config, pieces, whole, 1e-5, 1e-5);
}

TEST_CASE_TEMPLATE("cpu model gives a padded batch the same losses and gradients to 1e-5",
                   T,
                   float,
                   bf16) {
  auto const config = small_config();
  auto const data   = test::make_batch(config, {40, 1, 17, 33, 9});
  auto const padded = pad(data, rounded_up(data.shape(), data.token_count(), 40), 40);
  auto device       = cpu::device<T>{};
  auto const a      = run(config, device, {padded});
  auto const b      = run(config, device, {data});
  CHECK(a.sums.masked_lm == b.sums.masked_lm);
  CHECK(a.sums.next_sentence == b.sums.next_sentence);
  CHECK(a.sums.correct == b.sums.correct);
  check_close(config, a, b, 1e-5, 1e-5);
}

TEST_CASE_TEMPLATE("cpu model gives the same bits in every run", T, float, bf16) {
  auto const config = small_config();
  auto const data   = std::vector{test::make_batch(config, {40, 1, 17, 33, 9})};
  auto one          = cpu::device<T>{};
  auto other        = cpu::device<T>{};
  auto const a      = run(config, one, data);
  run(config, other, {test::make_batch(config, {3, 29}, 9)});  // another history
  auto const b = run(config, other, data);
  CHECK(a.sums.masked_lm == b.sums.masked_lm);
  CHECK(a.gradients == b.gradients);
}

TEST_CASE("cpu model gives the same losses and gradients to 1e-5 on one and on three threads") {
  auto const config = small_config();
  auto const data   = std::vector{test::make_batch(config, {40, 1, 17, 33, 9})};
  auto const before = omp_get_max_threads();
  omp_set_num_threads(1);
  auto single    = cpu::device<float>{};
  auto const one = run(config, single, data);
  omp_set_num_threads(3);
  auto several     = cpu::device<float>{};
  auto const three = run(config, several, data);
  omp_set_num_threads(before);
  check_close(config, three, one, 1e-5, 1e-5);
}

TEST_CASE("cpu model keeps its memory from the largest batch on") {
  auto const config     = small_config();
  auto const list       = parameter_list{config};
  auto const parameters = test::formula_parameters<float>(list);
  auto device           = cpu::device<float>{};
  auto bert             = model<cpu::device<float>>{config, device, parameters};
  auto const none       = dropout_sites{config, 0, 0, 0};
  bert.forward(test::make_batch(config, {40, 33, 9}), none);
  auto const* const logits = bert.logits().data;
  bert.forward(test::make_batch(config, {12}), none);
  CHECK(bert.logits().data == logits);
  bert.forward(test::make_batch(config, {40, 33, 9}), none);
  CHECK(bert.logits().data == logits);
}

TEST_CASE("cpu model takes a batch without sequences after a larger one") {
  auto const config = small_config();
  auto device       = cpu::device<float>{};
  auto const r      = run(config, device, {test::make_batch(config, {40, 3}), batch{}});
  auto const whole  = run(config, device, {test::make_batch(config, {40, 3})});
  CHECK(r.gradients == whole.gradients);
}

}  // namespace

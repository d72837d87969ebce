// SPDX-License-Identifier: Apache-2.0
#include "support.hpp"  // for make_batch, formula_parameters, gradient_store, relative_error

#include <gradlane/types.hpp>  // for bf16

#include <doctest/doctest.h>

#include <bert/cpu/device.hpp>
#include <bert/model.hpp>
#include <bert/reference.hpp>
#include <omp.h>  // for omp_set_num_threads

// The whole model on the CPU against the reference in fp64: same parameters, batch and dropout.
//
// fp32: about 30 operations of relative error 1e-6 follow each other; 3e-5 per tensor, 1e-6 in the
// losses, where errors of many rows average out. bf16: 30 roundings of 2^-9 / √3 add up like a
// random walk to 6e-3 and are amplified by LayerNorm of small rows; 5e-2 per tensor.

namespace {

using namespace bert;
using gradlane::bf16;

template <class Device>
struct result {
  losses sums;
  test::gradient_store<typename Device::real> gradients;
};

template <class Device>
result<Device> run(model_config const& config,
                   Device& device,
                   std::vector<batch> const& pieces,
                   double probability = 0.1) {
  auto const list       = parameter_list{config};
  auto const parameters = test::formula_parameters<typename Device::real>(list);
  auto bert             = model<Device>{config, device, parameters};
  auto r                = result<Device>{{}, test::gradient_store<typename Device::real>{list, 7}};
  auto first            = true;
  for (auto const& piece : pieces) {
    auto const part = bert.forward(piece, dropout_sites{config, probability, 3, 4});
    r.sums.masked_lm += part.masked_lm;
    r.sums.next_sentence += part.next_sentence;
    r.sums.predictions += part.predictions;
    bert.backward(1.0 / 50, 1.0 / 5, r.gradients.spans, !first, [](std::size_t) {});
    first = false;
  }
  return r;
}

model_config small_config() {
  auto config                = test::tiny_config();
  config.hidden_size         = 48;
  config.intermediate_size   = 80;
  config.vocab_size          = 211;
  config.num_attention_heads = 4;
  return config;
}

template <class A, class B>
void check_close(model_config const& config, A const& a, B const& b, double loss, double tensor) {
  CHECK(a.sums.predictions == b.sums.predictions);
  CHECK(std::abs(a.sums.masked_lm / b.sums.masked_lm - 1) < loss);
  CHECK(std::abs(a.sums.next_sentence / b.sums.next_sentence - 1) < loss);
  auto const list = parameter_list{config};
  for (auto i = std::size_t{0}; i < list.size(); ++i) {
    if (list[i].name.ends_with("key.bias")) { continue; }  // zero but for rounding
    using real_a     = typename decltype(a.gradients.flat)::value_type;
    using real_b     = typename decltype(b.gradients.flat)::value_type;
    auto const error = test::relative_error(std::span<real_a const>{a.gradients.spans[i]},
                                            std::span<real_b const>{b.gradients.spans[i]});
    CHECK_MESSAGE(error < tensor, list[i].name);
  }
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

TEST_CASE_TEMPLATE("cpu model gives the same bits in every run", T, float, bf16) {
  auto const config = small_config();
  auto const data   = std::vector{test::make_batch(config, {40, 1, 17, 33, 9})};
  auto one          = cpu::device<T>{};
  auto other        = cpu::device<T>{};
  auto const a      = run(config, one, data);
  run(config, other, {test::make_batch(config, {3, 29}, 9)});  // another history
  auto const b = run(config, other, data);
  CHECK(a.sums.masked_lm == b.sums.masked_lm);
  CHECK(a.gradients.flat == b.gradients.flat);
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
  CHECK(r.gradients.flat == whole.gradients.flat);
}

}  // namespace

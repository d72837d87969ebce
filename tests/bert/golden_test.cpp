// SPDX-License-Identifier: Apache-2.0
#include "golden.hpp"

#include "support.hpp"  // for formula_parameters, gradient_store

#include <doctest/doctest.h>

#include <bert/model.hpp>
#include <bert/reference.hpp>

#include <string>  // for string

// The reference in fp64 against Hugging Face's BERT in fp64. Both round at 1e-16 and differ in the
// order of sums over at most 101 terms and 30 operations: 1e-12 of each tensor's norm is ample.

namespace {

using namespace bert;
namespace golden = bert::test::golden;
using device     = reference_device<double>;

TEST_CASE("model agrees with Hugging Face's BERT: logits, losses and every gradient") {
  auto config                    = model_config{};
  config.vocab_size              = 101;
  config.hidden_size             = 48;
  config.num_hidden_layers       = 2;
  config.num_attention_heads     = 3;
  config.intermediate_size       = 80;
  config.max_position_embeddings = 24;
  auto data                      = batch{};
  data.tokens                    = golden::tokens;
  data.segments                  = golden::segments;
  data.predicted                 = golden::predicted;
  data.labels                    = golden::labels;
  data.next                      = golden::next;
  data.samples.resize(golden::lengths.size());
  data.starts.push_back(0);
  for (auto const length : golden::lengths) { data.starts.push_back(data.starts.back() + length); }

  auto const list       = parameter_list{config};
  auto const parameters = test::formula_parameters<double>(list);
  auto on               = device{};
  auto bert             = model<device>{config, on, parameters};
  auto const sums       = bert.forward(data, dropout_sites{config, 0, 0, 0});
  CHECK(sums.masked_lm == doctest::Approx(golden::masked_lm).epsilon(1e-12));
  CHECK(sums.next_sentence == doctest::Approx(golden::next_sentence).epsilon(1e-12));
  for (auto i = std::size_t{0}; i < golden::logits.size(); ++i) {
    CHECK(std::abs(bert.logits()(i / 3, i % 3) - golden::logits[i]) < 1e-12);
  }
  for (auto i = std::size_t{0}; i < golden::next_logits.size(); ++i) {
    CHECK(std::abs(bert.next_logits()(i / 2, i % 2) - golden::next_logits[i]) < 1e-12);
  }

  auto gradients = test::gradient_store<double>{list};
  bert.backward(1.0 / 8, 1.0 / 4, gradients.spans, false, [](std::size_t) {});
  REQUIRE(golden::gradients.size() == list.size());
  for (auto i = std::size_t{0}; i < list.size(); ++i) {
    auto const& expected = golden::gradients[i];
    auto const& computed = gradients.spans[i];
    auto squares         = 0.0;
    for (auto const g : computed) { squares += g * g; }
    CHECK(list[i].name == std::string{expected.name});
    auto const bound = 1e-12 * std::max(1.0, expected.norm);
    CHECK_MESSAGE(std::abs(std::sqrt(squares) - expected.norm) < bound, expected.name);
    CHECK_MESSAGE(std::abs(computed.front() - expected.first) < bound, expected.name);
    CHECK_MESSAGE(std::abs(computed.back() - expected.last) < bound, expected.name);
  }
}

}  // namespace

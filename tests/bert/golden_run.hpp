// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "golden.hpp"   // for result, tokens
#include "support.hpp"  // for formula_parameters

#include <gradlane/types.hpp>  // for fp16

#include <doctest/doctest.h>

#include <bert/batch.hpp>
#include <bert/config.hpp>
#include <bert/dropout.hpp>
#include <bert/model.hpp>
#include <bert/parameters.hpp>

#include <cmath>        // for abs, sqrt
#include <cstddef>      // for size_t
#include <span>         // for span
#include <string>       // for string
#include <type_traits>  // for is_same_v
#include <vector>       // for vector

namespace bert::test {

[[nodiscard]] inline batch golden_batch() {
  auto data      = batch{};
  data.tokens    = golden::tokens;
  data.segments  = golden::segments;
  data.predicted = golden::predicted;
  data.labels    = golden::labels;
  data.next      = golden::next;
  data.samples.resize(golden::lengths.size());
  data.starts.push_back(0);
  for (auto const length : golden::lengths) { data.starts.push_back(data.starts.back() + length); }
  return data;
}

/// What the two roundings come to: see cpu_model_test.cpp for bf16.
template <class T>
constexpr double golden_bound = std::is_same_v<T, float>            ? 3e-6
                                : std::is_same_v<T, gradlane::fp16> ? 5e-2 / 8
                                                                    : 5e-2;

/// A model on a device against Hugging Face's in fp64: logits, losses and every gradient.
/// @param On     a fixture as operations.hpp describes it, with read(matrix) to host memory.
/// @param bound  of errors: relative for losses, absolute for logits, which are of order 1; of a
///               gradient's norm and elements relative to the norm, and a hundredth of it absolute.
template <class On>
void check_golden(golden::result const& expected, typename On::device& device, double bound) {
  using real                     = typename On::device::real;
  using memory                   = typename On::template memory<real>;
  auto config                    = model_config{};
  config.vocab_size              = 101;
  config.hidden_size             = expected.hidden_size;
  config.num_hidden_layers       = 2;
  config.num_attention_heads     = expected.heads;
  config.intermediate_size       = expected.intermediate_size;
  config.max_position_embeddings = 24;
  auto const list                = parameter_list{config};
  auto parameters                = memory{formula_parameters<real>(list)};
  auto gradients                 = memory{std::vector<real>(list.total())};
  auto spans                     = std::vector<std::span<real>>{};
  for (auto i = std::size_t{0}; i < list.size(); ++i) {
    spans.push_back(list.slice(gradients.span(), i));
  }
  auto bert       = model<typename On::device>{config, device, parameters.span()};
  auto const sums = bert.forward(golden_batch(), dropout_sites{config, 0, 0, 0});
  CHECK(sums.masked_lm == doctest::Approx(expected.masked_lm).epsilon(bound));
  CHECK(sums.next_sentence == doctest::Approx(expected.next_sentence).epsilon(bound));
  auto const near = [&](auto value, double other) {
    return std::abs(static_cast<double>(value) - other) < bound;
  };
  auto const logits = On::read(bert.logits());  // (P, V)
  for (auto i = std::size_t{0}; i < expected.logits.size(); ++i) {
    CHECK(near(logits[i / 3 * config.vocab_size + i % 3], expected.logits[i]));
  }
  auto const next_logits = On::read(bert.next_logits());
  for (auto i = std::size_t{0}; i < expected.next_logits.size(); ++i) {
    CHECK(near(next_logits[i], expected.next_logits[i]));
  }

  bert.backward(1.0 / 8, 1.0 / 4, spans, false, [](std::size_t) {});
  auto const flat = gradients.values();
  REQUIRE(expected.gradients.size() == list.size());
  for (auto i = std::size_t{0}; i < list.size(); ++i) {
    auto const& e       = expected.gradients[i];
    auto const computed = list.slice(std::span<real const>{flat}, i);
    auto squares        = 0.0;
    for (auto const g : computed) { squares += static_cast<double>(g) * static_cast<double>(g); }
    CHECK(list[i].name == std::string{e.name});
    auto const allowed = bound * (e.norm + 0.01);
    CHECK_MESSAGE(std::abs(std::sqrt(squares) - e.norm) < allowed, e.name);
    CHECK_MESSAGE(std::abs(static_cast<double>(computed.front()) - e.first) < allowed, e.name);
    CHECK_MESSAGE(std::abs(static_cast<double>(computed.back()) - e.last) < allowed, e.name);
  }
}

}  // namespace bert::test

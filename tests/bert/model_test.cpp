// SPDX-License-Identifier: Apache-2.0
#include "support.hpp"  // for make_batch, formula_parameters, gradient_store, tiny_config

#include <doctest/doctest.h>

#include <bert/model.hpp>
#include <bert/reference.hpp>

#include <algorithm>  // for max

namespace {

using namespace bert;
using device = reference_device<double>;

struct fixture {
  model_config config = test::tiny_config();
  parameter_list list{config};
  std::vector<double> parameters = test::formula_parameters<double>(list);
  device on;
  model<device> bert{config, on, parameters};
  dropout_sites sites{config, 0.1, 11, 12};
};

TEST_CASE_FIXTURE(fixture,
                  "model's gradients are those of its two losses, parameter by parameter") {
  auto const data = test::make_batch(config, {7, 12, 1});
  auto const loss = [&] {
    bert.refresh();
    auto const sums = bert.forward(data, sites);
    return 0.5 * sums.masked_lm + 0.25 * sums.next_sentence;
  };
  loss();
  auto gradients = test::gradient_store<double>{list, 1e9};  // must be overwritten
  bert.backward(0.5, 0.25, gradients.spans, false, [](std::size_t) {});
  for (auto index = std::size_t{0}; index < list.size(); ++index) {
    auto const& p   = list[index];
    auto const step = std::max(std::size_t{1}, p.size / 7);  // seven or eight elements of each
    auto largest    = 0.0;
    auto worst      = 0.0;
    for (auto const g : gradients.spans[index]) { largest = std::max(largest, std::abs(g)); }
    for (auto i = p.size / 14; i < p.size; i += step) {
      auto& x           = parameters[p.offset + i];
      auto const before = x;
      x                 = before + 1e-5;
      auto const above  = loss();
      x                 = before - 1e-5;
      auto const below  = loss();
      x                 = before;
      worst = std::max(worst, std::abs((above - below) / 2e-5 - gradients.spans[index][i]));
    }
    // Losses of order 100 in fp64: cancellation 1e2 * 1e-16 / 1e-5 = 1e-9, truncation of like size.
    CHECK_MESSAGE(worst < 1e-7 * std::max(1.0, largest), p.name);
    if (!p.name.ends_with("key.bias")) {  // which cancels in the softmax
      CHECK_MESSAGE(largest > 1e-4, p.name);
    }
  }
}

TEST_CASE_FIXTURE(fixture, "model reports every parameter ready once, in reverse order") {
  for (auto const with_labels : {true, false}) {
    auto data = test::make_batch(config, {7, 3});
    if (!with_labels) { data.next.clear(); }
    bert.forward(data, sites);
    auto gradients = test::gradient_store<double>{list};
    auto seen      = std::vector<std::size_t>{};
    auto kept      = std::vector<double>(list.total());
    bert.backward(1, 1, gradients.spans, false, [&](std::size_t index) {
      seen.push_back(index);
      std::copy(gradients.spans[index].begin(),
                gradients.spans[index].end(),
                kept.begin() + static_cast<std::ptrdiff_t>(list[index].offset));
    });
    REQUIRE(seen.size() == list.size());
    for (auto i = std::size_t{0}; i < seen.size(); ++i) { CHECK(seen[i] == list.size() - 1 - i); }
    CHECK(kept == gradients.flat);  // nothing changed after it was called ready
  }
}

TEST_CASE_FIXTURE(fixture, "model gives a batch cut into pieces the same losses and gradients") {
  auto const whole = test::make_batch(config, {7, 12, 1, 4});
  auto const sums  = bert.forward(whole, sites);
  auto expected    = test::gradient_store<double>{list};
  bert.backward(0.5, 0.25, expected.spans, false, [](std::size_t) {});
  auto total     = losses{};
  auto gradients = test::gradient_store<double>{list};
  auto first     = true;
  for (auto const& piece :
       {test::make_batch(config, {7, 12}), test::make_batch(config, {1, 4}, 2)}) {
    auto const part = bert.forward(piece, sites);
    total.masked_lm += part.masked_lm;
    total.next_sentence += part.next_sentence;
    total.predictions += part.predictions;
    bert.backward(0.5, 0.25, gradients.spans, !first, [](std::size_t) {});
    first = false;
  }
  CHECK(total.predictions == sums.predictions);
  CHECK(total.masked_lm == doctest::Approx(sums.masked_lm).epsilon(1e-13));
  CHECK(total.next_sentence == doctest::Approx(sums.next_sentence).epsilon(1e-13));
  for (auto i = std::size_t{0}; i < expected.flat.size(); ++i) {
    CHECK(std::abs(gradients.flat[i] - expected.flat[i]) < 1e-11);
  }
}

TEST_CASE_FIXTURE(fixture, "model takes batches without sequences, predictions or labels") {
  auto gradients = test::gradient_store<double>{list, 5.0};
  auto calls     = std::size_t{0};
  auto const sum = bert.forward(batch{}, sites);
  bert.backward(1, 1, gradients.spans, false, [&](std::size_t) { ++calls; });
  CHECK(sum.predictions == 0);
  CHECK(sum.masked_lm == 0);
  CHECK(calls == list.size());
  CHECK(gradients.flat == std::vector<double>(list.total(), 0.0));

  auto data = test::make_batch(config, {7, 3});
  data.predicted.clear();
  data.labels.clear();
  auto const next_only = bert.forward(data, sites);
  CHECK(next_only.masked_lm == 0);
  CHECK(next_only.next_sentence > 0);
  bert.backward(1, 1, gradients.spans, false, [](std::size_t) {});
  for (auto const g : gradients.spans[list.heads()]) { CHECK(g == 0); }
  CHECK(gradients.spans[list.layer(0)][0] != 0);
}

TEST_CASE_FIXTURE(fixture, "model without dropout does not depend on sample ids, with it it does") {
  auto const a    = test::make_batch(config, {7, 12});
  auto b          = a;
  b.samples       = {1000, 2000};
  auto const none = dropout_sites{config, 0, 0, 0};
  CHECK(bert.forward(a, none).masked_lm == bert.forward(b, none).masked_lm);
  CHECK(bert.forward(a, sites).masked_lm != bert.forward(b, sites).masked_lm);
}

TEST_CASE_FIXTURE(fixture, "model refuses misuse with a message that says what is wrong") {
  auto gradients = test::gradient_store<double>{list};
  auto const run = [&] { bert.backward(1, 1, gradients.spans, false, [](std::size_t) {}); };
  CHECK_THROWS_AS(run(), gradlane::state_error);
  bert.forward(test::make_batch(config, {7}), sites);
  run();
  CHECK_THROWS_AS(run(), gradlane::state_error);
  bert.forward(test::make_batch(config, {7}), sites);
  gradients.spans[3] = gradients.spans[3].subspan(1);
  CHECK_THROWS_WITH_AS(
      run(), doctest::Contains("bert.embeddings.LayerNorm.weight"), gradlane::contract_error);
  auto const make = [&] {
    return model<device>{config, on, std::span<double const>{parameters}.subspan(1)};
  };
  CHECK_THROWS_AS(make(), gradlane::contract_error);
}

}  // namespace

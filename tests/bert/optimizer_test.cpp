// SPDX-License-Identifier: Apache-2.0
#include "support.hpp"  // for tiny_config, noise, relative_error

#include <gradlane/error.hpp>

#include <doctest/doctest.h>

#include <bert/delta_optimizer.hpp>
#include <bert/errors.hpp>
#include <bert/optimizer.hpp>
#include <bert/schedule.hpp>
#include <omp.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

namespace {

using namespace bert;
using gradlane::step_status;

/// The formulas, in fp64 and one tensor after another.
struct reference {
  optimizer_settings settings;
  std::vector<double> p, m, v;
  int t = 0;

  reference(optimizer_settings const& wanted, std::span<float const> initial)
      : settings{wanted}, p(initial.begin(), initial.end()), m(p.size()), v(p.size()) {}

  void step(parameter_list const& list, std::span<float const> gradient, double rate, double c) {
    ++t;
    auto const b1 = settings.beta1;
    auto const b2 = settings.beta2;
    for (auto const& tensor : list) {
      auto const lambda = tensor.decay ? settings.weight_decay : 0;
      auto u            = std::vector<double>(tensor.size);
      auto norm_p       = 0.0;
      auto norm_u       = 0.0;
      for (auto j = std::size_t{0}; j < tensor.size; ++j) {
        auto const i     = tensor.offset + j;
        auto const g     = c * static_cast<double>(gradient[i]);
        m[i]             = b1 * m[i] + (1 - b1) * g;
        v[i]             = b2 * v[i] + (1 - b2) * g * g;
        auto const bias1 = settings.bias_correction ? 1 - std::pow(b1, t) : 1;
        auto const bias2 = settings.bias_correction ? 1 - std::pow(b2, t) : 1;
        u[j] = m[i] / bias1 / (std::sqrt(v[i] / bias2) + settings.epsilon) + lambda * p[i];
        norm_p += p[i] * p[i];
        norm_u += u[j] * u[j];
      }
      auto ratio         = 1.0;
      auto const trusted = lambda != 0 || settings.trust_without_decay;
      if (settings.rule == update_rule::lamb && trusted && norm_p > 0 && norm_u > 0) {
        ratio = std::sqrt(norm_p) / std::sqrt(norm_u);
      }
      for (auto j = std::size_t{0}; j < tensor.size; ++j) {
        p[tensor.offset + j] -= rate * ratio * u[j];
      }
    }
  }
};

/// A model whose largest tensor takes more than one block, and whose gradients lie apart.
struct problem {
  parameter_list list;
  std::vector<float> parameters;
  std::vector<float> gradient;
  std::vector<std::span<float>> gradients;

  problem() : list{config()}, parameters(list.total()), gradient(list.total()) {
    initialise(list, parameters, 1);
    for (auto i = std::size_t{0}; i < list.size(); ++i) {
      gradients.push_back(list.slice(std::span{gradient}, i));
    }
  }
  [[nodiscard]] static model_config config() {
    auto result       = test::tiny_config();
    result.vocab_size = 3001;  // 36012 elements
    return result;
  }
  void draw_gradient(std::uint32_t seed) {
    auto const values = test::noise<float>(gradient.size(), seed);
    std::copy(values.begin(), values.end(), gradient.begin());
  }
};

void compare(optimizer_settings const& settings) {
  auto data   = problem{};
  auto plain  = reference{settings, data.parameters};
  auto tested = optimizer{data.list, settings};
  auto before = data.parameters;
  for (auto step = std::uint32_t{0}; step < 10; ++step) {
    data.draw_gradient(step);
    auto const c = step % 3 == 1 ? 0.25F : 1.0F;
    tested.step(data.parameters, data.gradients, 1e-3, {c, 0});
    plain.step(data.list, data.gradient, 1e-3, static_cast<double>(c));
  }
  // A step's update is right to some roundings of fp32 (6e-8 each), and the parameter is rounded
  // once a step, to 2^-24 of itself.
  for (auto i = std::size_t{0}; i < data.list.size(); ++i) {
    auto const& tensor = data.list[i];
    CAPTURE(tensor.name);
    auto moved    = std::vector<double>(tensor.size);
    auto expected = std::vector<double>(tensor.size);
    for (auto j = std::size_t{0}; j < tensor.size; ++j) {
      auto const k = tensor.offset + j;
      moved[j]     = static_cast<double>(data.parameters[k]) - static_cast<double>(before[k]);
      expected[j]  = plain.p[k] - static_cast<double>(before[k]);
    }
    auto difference = 0.0;
    auto norm       = 0.0;
    auto size       = 0.0;
    for (auto j = std::size_t{0}; j < tensor.size; ++j) {
      size += plain.p[tensor.offset + j] * plain.p[tensor.offset + j];
      difference += (moved[j] - expected[j]) * (moved[j] - expected[j]);
      norm += expected[j] * expected[j];
    }
    CHECK(norm > 0);
    CHECK(std::sqrt(difference) < 3e-6 * std::sqrt(norm) + 10 * 0x1p-24 * std::sqrt(size));
  }
  CHECK(tested.steps() == 10);
}

TEST_CASE("optimizer's AdamW is the formula, with and without bias correction") {
  auto settings = optimizer_settings{};
  compare(settings);
  settings.bias_correction = false;
  settings.epsilon         = 1e-6;
  compare(settings);
  settings.beta1        = 0.8;
  settings.beta2        = 0.95;
  settings.weight_decay = 0.5;
  compare(settings);
}

TEST_CASE("optimizer's LAMB is the formula, a trust ratio for each tensor that decays") {
  compare(lamb_settings());
  auto settings                = lamb_settings();
  settings.trust_without_decay = true;
  compare(settings);
}

TEST_CASE("optimizer's LAMB gives query, key and value trust ratios of their own") {
  auto data        = problem{};
  auto const query = data.list.layer(0) + parameter_list::query_weight;
  auto const key   = data.list.layer(0) + parameter_list::key_weight;
  auto const slice = [&](std::size_t i) { return data.list.slice(std::span{data.parameters}, i); };
  for (auto& p : slice(query)) { p = 1; }
  for (auto& p : slice(key)) { p = 4; }
  auto settings         = lamb_settings();
  settings.weight_decay = 1e-12;
  data.draw_gradient(1);
  optimizer{data.list, settings}.step(data.parameters, data.gradients, 0.5);
  // The first direction is ±1 but for epsilon, so ‖u‖ = √n, and the ratios are 1 and 4.
  for (auto const p : slice(query)) {
    CHECK(std::abs(p - 1) == doctest::Approx(0.5).epsilon(1e-3));
  }
  for (auto const p : slice(key)) { CHECK(std::abs(p - 4) == doctest::Approx(2).epsilon(1e-3)); }
}

TEST_CASE("optimizer skips a step that the status says to skip, and does not count it") {
  for (auto const& settings : {optimizer_settings{}, lamb_settings()}) {
    auto data   = problem{};
    auto tested = optimizer{data.list, settings};
    data.draw_gradient(1);
    data.gradient[5]  = std::nanf("");
    auto const before = data.parameters;
    tested.step(data.parameters, data.gradients, 1, {1, 1});
    CHECK(data.parameters == before);
    CHECK(tested.steps() == 0);
    CHECK(std::vector<float>(tested.first_moment().begin(), tested.first_moment().end()) ==
          std::vector<float>(before.size()));
  }
}

TEST_CASE("optimizer gives the same bits on any number of threads") {
  auto const threads = omp_get_max_threads();
  for (auto const& settings : {optimizer_settings{}, lamb_settings()}) {
    auto results = std::vector<std::vector<float>>{};
    for (auto const count : {1, 2, 5}) {
      omp_set_num_threads(count);
      auto data   = problem{};
      auto tested = optimizer{data.list, settings};
      for (auto step = std::uint32_t{0}; step < 3; ++step) {
        data.draw_gradient(step);
        tested.step(data.parameters, data.gradients, 1e-2);
      }
      results.push_back(data.parameters);
    }
    CHECK(results[1] == results[0]);
    CHECK(results[2] == results[0]);
  }
  omp_set_num_threads(threads);
}

TEST_CASE("optimizer goes on bit for bit from a state that was saved") {
  auto data   = problem{};
  auto tested = optimizer{data.list, lamb_settings()};
  data.draw_gradient(1);
  tested.step(data.parameters, data.gradients, 1e-2);
  auto copy       = problem{};
  copy.parameters = data.parameters;
  auto resumed    = optimizer{copy.list, lamb_settings()};
  resumed.restore(tested.steps(), tested.first_moment(), tested.second_moment());
  data.draw_gradient(2);
  copy.draw_gradient(2);
  tested.step(data.parameters, data.gradients, 1e-2);
  resumed.step(copy.parameters, copy.gradients, 1e-2);
  CHECK(copy.parameters == data.parameters);
}

TEST_CASE("optimizer keeps a copy in bf16, rounded from the fp32 parameters") {
  for (auto const& settings : {optimizer_settings{}, lamb_settings()}) {
    auto data    = problem{};
    auto working = std::vector<gradlane::bf16>(data.list.total());
    data.draw_gradient(1);
    optimizer{data.list, settings}.step(data.parameters, data.gradients, 1e-2, {}, working);
    auto wrong = 0;
    for (auto i = std::size_t{0}; i < working.size(); ++i) {
      wrong += working[i].bits == gradlane::bf16{data.parameters[i]}.bits ? 0 : 1;
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("optimizer refuses what does not fit its parameters, and settings without meaning") {
  auto data   = problem{};
  auto tested = optimizer{data.list, {}};
  auto few    = std::span{data.gradients}.first(3);
  CHECK_THROWS_AS(tested.step(data.parameters, few, 1), gradlane::contract_error);
  auto shorter = std::span{data.parameters}.first(3);
  CHECK_THROWS_AS(tested.step(shorter, data.gradients, 1), gradlane::contract_error);
  CHECK_THROWS_AS(tested.restore(1, shorter, shorter), gradlane::contract_error);
  CHECK(tested.steps() == 0);
  auto settings  = optimizer_settings{};
  settings.beta2 = 1;
  CHECK_THROWS_AS(optimizer(data.list, settings), input_error);
  settings              = {};
  settings.weight_decay = -1;
  CHECK_THROWS_AS(optimizer(data.list, settings), input_error);
}

TEST_CASE("schedule rises linearly to its peak and falls along the power") {
  auto rate = schedule{1e-3, 0, 10, 110, 1};
  CHECK(rate.at(0) == doctest::Approx(1e-4));
  CHECK(rate.at(9) == doctest::Approx(1e-3));
  CHECK(rate.at(10) == doctest::Approx(1e-3));
  CHECK(rate.at(60) == doctest::Approx(5e-4));
  CHECK(rate.at(109) == doctest::Approx(1e-5));
  CHECK(rate.at(110) == 0);
  CHECK(rate.at(1000) == 0);
  rate.power = 0.5;
  CHECK(rate.at(85) == doctest::Approx(5e-4));
  rate.power = 0;
  CHECK(rate.at(109) == doctest::Approx(1e-3));
  CHECK(rate.at(1000) == doctest::Approx(1e-3));
  rate = schedule{1e-3, 2e-4, 0, 100, 1};
  CHECK(rate.at(0) == doctest::Approx(1e-3));
  CHECK(rate.at(50) == doctest::Approx(6e-4));
  CHECK(rate.at(100) == doctest::Approx(2e-4));
  CHECK(schedule{1, 0, 5, 5, 1}.at(4) == doctest::Approx(1));
  CHECK(schedule{1, 0, 5, 5, 1}.at(5) == 0);
}

TEST_CASE("schedule is refused with what is wrong") {
  CHECK_NOTHROW(schedule{}.check());
  CHECK_THROWS_WITH_AS(schedule({1e-3, 0, 11, 10, 1}).check(),
                       doctest::Contains("the warm-up has 11 steps, the training only 10"),
                       input_error);
  CHECK_THROWS_AS(schedule({0, 0, 1, 10, 1}).check(), input_error);
  CHECK_THROWS_AS(schedule({1, 2, 1, 10, 1}).check(), input_error);
  CHECK_THROWS_AS(schedule({1, 0, 1, 10, -1}).check(), input_error);
  CHECK(schedule_power("linear") == 1);
  CHECK(schedule_power("polynomial") == 0.5);
  CHECK(schedule_power("constant") == 0);
  CHECK_THROWS_WITH_AS(static_cast<void>(schedule_power("cosine")),
                       doctest::Contains("choose constant, linear or polynomial"),
                       input_error);
}

TEST_CASE(
    "optimizer of parts steps those alone, to the bits of the whole, with moments for no more") {
  auto whole       = problem{};
  auto split       = problem{};
  auto const& list = split.list;
  auto parts       = std::array<std::vector<tensor_part>, 3>{};  // of three ranks
  for (auto i = std::size_t{0}; i < list.size(); ++i) {
    auto const cut = list[i].size / 3;
    parts[0].push_back({i, 0, cut});
    parts[i % 2 + 1].push_back({i, cut, list[i].size - cut});
  }
  auto all    = optimizer{list, {}};
  auto ranks  = std::vector<optimizer>{};
  auto states = std::size_t{0};
  for (auto const& own : parts) {
    ranks.emplace_back(list, optimizer_settings{}, own);
    states += ranks.back().first_moment().size();
  }
  CHECK(states == list.total());
  auto const step = [&](std::uint32_t seed) {
    whole.draw_gradient(seed);
    split.draw_gradient(seed);
    all.step(whole.parameters, whole.gradients, 1e-3);
    for (auto& rank : ranks) { rank.step(split.parameters, split.gradients, 1e-3); }
  };
  for (auto seed = 0U; seed < 5; ++seed) { step(seed); }
  CHECK(split.parameters == whole.parameters);
  for (auto& rank : ranks) {  // what a checkpoint of the whole gives back
    rank.restore(all.steps(), all.first_moment(), all.second_moment());
  }
  step(5);
  CHECK(split.parameters == whole.parameters);
}

TEST_CASE("optimizer refuses parts that are none, and parts of tensors for LAMB") {
  using gradlane::contract_error;
  auto const list = parameter_list{problem::config()};
  auto const make = [&](tensor_part const& part, optimizer_settings const& settings) {
    static_cast<void>(optimizer{list, settings, std::span{&part, 1}});
  };
  CHECK_THROWS_AS(make({list.size(), 0, 1}, {}), contract_error);
  CHECK_THROWS_AS(make({0, 1, list[0].size}, {}), contract_error);
  CHECK_THROWS_AS(make({0, 0, 1}, lamb_settings()), contract_error);
  CHECK_NOTHROW(make({0, 0, list[0].size}, lamb_settings()));
}

TEST_CASE(
    "delta_optimizer proposes the steps that the optimizer makes; skipped ones leave no trace") {
  for (auto const& settings : {optimizer_settings{}, lamb_settings()}) {
    auto made        = problem{};
    auto joined      = problem{};
    auto expected    = optimizer{made.list, settings};
    auto proposer    = delta_optimizer{joined.list, settings};
    auto counted     = std::uint64_t{0};  // as the pipeline counts
    auto const start = joined.parameters;
    for (auto step = 0U; step < 12; ++step) {
      auto const skip = step % 4 == 1 ? 1U : 0U;
      made.draw_gradient(step);
      joined.draw_gradient(step);
      expected.step(made.parameters, made.gradients, 1e-3, {0.25F, skip});
      auto const before = joined.parameters;
      for (auto i = joined.list.size(); i-- > 0;) {
        auto const delta = joined.gradients[i];
        proposer.propose(i, joined.parameters, delta, delta, 1e-3, 0.25F, counted);
      }
      proposer.apply(joined.parameters, joined.gradients, {1.0F, skip});
      CHECK((joined.parameters == before) == (skip != 0));
      counted += 1 - skip;
    }
    CHECK(proposer.steps() == expected.steps());
    auto moved = std::vector<double>{};
    auto apart = std::vector<double>{};
    for (auto i = std::size_t{0}; i < start.size(); ++i) {
      moved.push_back(static_cast<double>(made.parameters[i]) - static_cast<double>(start[i]));
      apart.push_back(static_cast<double>(made.parameters[i]) -
                      static_cast<double>(joined.parameters[i]));
    }
    auto const norm = [](std::vector<double> const& x) {
      return std::sqrt(std::inner_product(x.begin(), x.end(), x.begin(), 0.0));
    };
    CHECK(norm(apart) < 1e-4 * norm(moved));
  }
}

TEST_CASE("delta_optimizer goes on from another's state as the optimizer does") {
  auto data     = problem{};
  auto same     = problem{};
  auto original = optimizer{data.list, {}};
  for (auto step = 0U; step < 3; ++step) {
    data.draw_gradient(step);
    original.step(data.parameters, data.gradients, 1e-3);
  }
  same.parameters = data.parameters;
  auto proposer   = delta_optimizer{same.list, {}};
  proposer.restore(original.steps(), original.first_moment(), original.second_moment());
  CHECK(std::ranges::equal(proposer.first_moment(), original.first_moment()));
  data.draw_gradient(9);
  same.draw_gradient(9);
  original.step(data.parameters, data.gradients, 1e-3);
  for (auto i = std::size_t{0}; i < same.list.size(); ++i) {
    proposer.propose(i, same.parameters, same.gradients[i], same.gradients[i], 1e-3, 1.0F, 0);
  }
  proposer.apply(same.parameters, same.gradients, {});
  CHECK(proposer.steps() == 4);
  for (auto i = std::size_t{0}; i < data.parameters.size(); ++i) {
    REQUIRE(std::abs(same.parameters[i] - data.parameters[i]) <=
            1e-6F * std::abs(data.parameters[i]) + 1e-8F);
  }
  CHECK_THROWS_AS(proposer.restore(1, original.first_moment(), original.second_moment()),
                  gradlane::state_error);
  CHECK_THROWS_AS(
      proposer.propose(0, same.parameters, same.gradients[1], same.gradients[0], 1, 1, 0),
      gradlane::contract_error);
}

}  // namespace

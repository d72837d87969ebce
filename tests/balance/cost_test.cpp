// SPDX-License-Identifier: Apache-2.0
#include <gradlane/balance/cost.hpp>
#include <gradlane/error.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

using namespace gradlane;
using balance::cost_model;
using balance::step_timings;

namespace {

using lengths = std::vector<std::uint32_t>;

/// Steps whose mixtures of short and long sequences differ.
auto const mixtures = std::vector<lengths>{{512, 512, 20, 30},
                                           {128, 128, 128},
                                           {7},
                                           {300, 200, 100},
                                           {512, 511, 510, 509, 90},
                                           {64, 64, 64, 64, 64, 64}};

/// Of a step that costs 2 ms, 1 us a token, and as much again at 2304 tokens a sequence.
[[nodiscard]] double seconds(lengths const& step) {
  auto sum = 2e-3;
  for (auto const n : step) { sum += 1e-6 * n * (1 + n / 2304.0); }
  return sum;
}

}  // namespace

TEST_CASE("cost_model counts tokens unless n0 is given") {
  CHECK(cost_model{}(0) == 0.0);
  CHECK(cost_model{}(512) == 512.0);
  CHECK(cost_model{512}(512) == 1024.0);
  CHECK(cost_model{1024}(512) == 768.0);
  auto const most = std::numeric_limits<std::uint32_t>::max();
  CHECK(cost_model{1.0}(most) == most + double{most} * most);
  CHECK(cost_model{}.describe() == "n");
  CHECK(cost_model{2304}.describe() == "n * (1 + n / 2304)");
}

TEST_CASE("cost_model refuses an n0 that is not positive") {
  for (auto const n0 : {0.0, -1.0, std::numeric_limits<double>::quiet_NaN()}) {
    CHECK_THROWS_AS(cost_model{n0}.check(), contract_error);
  }
  CHECK_NOTHROW(cost_model{}.check());
  CHECK_NOTHROW(cost_model{1e-3}.check());
}

TEST_CASE("step_timings find the model that timed steps follow") {
  auto timings = step_timings{};
  for (auto const& step : mixtures) { timings.add(step, seconds(step)); }
  auto const fit = timings.fit();
  // Six steps, sums below 1e7, conditioned better than 1e3: 1e-9 leaves four digits in reserve.
  CHECK(fit.model.n0 == doctest::Approx(2304).epsilon(1e-9));
  CHECK(fit.seconds_per_token == doctest::Approx(1e-6).epsilon(1e-9));
  CHECK(fit.fixed_seconds == doctest::Approx(2e-3).epsilon(1e-9));
  CHECK(fit.residual_seconds < 1e-9);
  CHECK(timings.size() == mixtures.size());
}

TEST_CASE("step_timings are as good after a long run as after a short one") {
  auto timings = step_timings{};
  for (auto turn = 0; turn < 20'000; ++turn) {
    auto const& step  = mixtures[static_cast<std::size_t>(turn) % mixtures.size()];
    auto const jitter = turn / 6 % 2 == 0 ? 1e-4 : -1e-4;  // on every mixture alike
    timings.add(step, seconds(step) + jitter);
  }
  auto const fit = timings.fit();
  CHECK(fit.model.n0 == doctest::Approx(2304).epsilon(1e-3));
  CHECK(fit.residual_seconds == doctest::Approx(1e-4).epsilon(1e-3));
}

TEST_CASE("step_timings leave out a quadratic part that would be negative") {
  auto timings = step_timings{};
  for (auto const& step : mixtures) {
    auto time = 1e-3;
    for (auto const n : step) { time += 1e-6 * n * (1 - n / 1e5); }
    timings.add(step, time);
  }
  auto const fit = timings.fit();
  CHECK(std::isinf(fit.model.n0));
  CHECK(fit.seconds_per_token == doctest::Approx(1e-6).epsilon(0.01));
  CHECK(fit.residual_seconds > 0);
}

TEST_CASE("step_timings refuse steps that cannot tell the model") {
  auto const refuses = [](std::vector<lengths> const& steps, double slope = 1e-6) {
    auto timings = step_timings{};
    for (auto const& step : steps) {
      auto tokens = 0.0;
      for (auto const n : step) { tokens += n; }
      timings.add(step, 1.0 + slope * tokens);
    }
    CHECK_THROWS_AS(static_cast<void>(timings.fit()), contract_error);
  };
  refuses({});
  refuses({{1, 2}, {3}});                              // two steps
  refuses({{5, 7}, {5, 7}, {5, 7}, {5, 7}});           // all alike
  refuses({{8, 8}, {1, 15}, {4, 12}});                 // as many tokens
  refuses({{9}, {9, 9}, {9, 9, 9}, {9, 9, 9, 9}});     // equal lengths
  refuses({{}, {}, {}});                               // nothing
  refuses({mixtures.begin(), mixtures.end()}, -1e-6);  // time falls
}

TEST_CASE("step_timings refuse times that are none") {
  auto timings = step_timings{};
  for (auto const time : {0.0, -1.0, std::numeric_limits<double>::infinity(), std::nan("")}) {
    CHECK_THROWS_AS(timings.add(mixtures[0], time), contract_error);
  }
  CHECK(timings.size() == 0);
}

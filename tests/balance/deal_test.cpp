// SPDX-License-Identifier: Apache-2.0
#include <gradlane/balance/deal.hpp>
#include <gradlane/error.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <random>
#include <set>
#include <utility>
#include <vector>

using namespace gradlane;
using balance::assignment;
using balance::deal;
using balance::deal_rules;
using balance::dealing;
using balance::sample;

namespace {

using engine = std::mt19937_64;

constexpr auto all_methods = {
    dealing::none, dealing::raster, dealing::snake, dealing::lpt, dealing::lpt_free};

[[nodiscard]] std::vector<sample> of_lengths(std::vector<std::uint32_t> const& lengths) {
  auto samples = std::vector<sample>{};
  for (auto const length : lengths) { samples.push_back({samples.size(), length}); }
  return samples;
}

/// The ids in each bin, sorted.
[[nodiscard]] std::vector<std::vector<std::uint64_t>> ids(std::vector<sample> const& samples,
                                                          assignment const& dealt) {
  auto result = std::vector<std::vector<std::uint64_t>>{};
  for (std::size_t s = 0; s < dealt.steps(); ++s) {
    for (std::size_t r = 0; r < dealt.ranks(); ++r) {
      auto& bin = result.emplace_back();
      for (auto const i : dealt.bin(s, r)) { bin.push_back(samples[i].id); }
    }
  }
  return result;
}

[[nodiscard]] std::vector<std::set<std::uint64_t>> steps_of(std::vector<sample> const& samples,
                                                            assignment const& dealt) {
  auto result = std::vector<std::set<std::uint64_t>>{};
  for (std::size_t s = 0; s < dealt.steps(); ++s) {
    auto& step = result.emplace_back();
    for (auto const i : dealt.step(s)) { step.insert(samples[i].id); }
  }
  return result;
}

/// Cost of the dearest bin of a step over the mean.
[[nodiscard]] double max_over_mean(std::vector<sample> const& samples,
                                   assignment const& dealt,
                                   std::size_t step,
                                   balance::cost_model cost = {}) {
  auto sum  = 0.0;
  auto most = 0.0;
  for (std::size_t r = 0; r < dealt.ranks(); ++r) {
    auto load = 0.0;
    for (auto const i : dealt.bin(step, r)) { load += cost(samples[i].length); }
    sum += load;
    most = std::max(most, load);
  }
  return most * static_cast<double>(dealt.ranks()) / sum;
}

struct random_case {
  std::vector<sample> samples{};
  deal_rules rules{};
};

/// Samples of 0 … 40 (now and then 2,000), of many kinds, and any rules.
[[nodiscard]] random_case make_case(engine& random) {
  auto const below = [&](std::uint64_t limit) { return random() % limit; };
  auto result      = random_case{};
  auto const size  = below(50) == 0 ? below(2000) : below(41);
  auto const kind  = below(5);
  auto const giant = size > 0 ? below(size) : 0;
  auto id          = below(std::uint64_t{1} << below(64));
  for (std::size_t i = 0; i < size; ++i) {
    auto length = std::uint32_t{77};                                         // all equal
    if (kind == 1) { length = static_cast<std::uint32_t>(below(4)); }        // ties, and 0
    if (kind == 2) { length = static_cast<std::uint32_t>(1 + below(512)); }  // as in BERT
    if (kind == 3) { length = i == giant ? 4'000'000'000U : 1U; }            // one giant
    if (kind == 4) { length = static_cast<std::uint32_t>(random()); }        // any
    result.samples.push_back({id, length});
    id += 1 + below(1000);
  }
  auto& rules  = result.rules;
  rules.method = static_cast<dealing>(below(5));
  rules.ranks  = 1 + below(9);
  rules.steps  = 1 + below(5);
  rules.swaps  = below(2) * 100;
  if (below(2) == 0) { rules.cost.n0 = static_cast<double>(1 + below(5000)); }
  return result;
}

void check_permutation(random_case const& c, assignment const& dealt) {
  auto seen = std::vector<bool>(c.samples.size());
  auto many = std::size_t{0};
  for (std::size_t s = 0; s < dealt.steps(); ++s) {
    for (std::size_t r = 0; r < dealt.ranks(); ++r) {
      for (auto const i : dealt.bin(s, r)) {
        REQUIRE(i < seen.size());
        REQUIRE(!seen[i]);
        seen[i] = true;
        ++many;
      }
    }
  }
  REQUIRE(many == c.samples.size());
}

/// Steps hold equally many samples to within one, and so do the ranks of a step.
void check_counts(random_case const& c, assignment const& dealt) {
  auto const n = c.samples.size();
  for (std::size_t s = 0; s < dealt.steps(); ++s) {
    auto const in_step = dealt.step(s).size();
    REQUIRE(in_step >= n / c.rules.steps);
    REQUIRE(in_step <= (n + c.rules.steps - 1) / c.rules.steps);
    if (c.rules.method == dealing::lpt_free) { continue; }
    for (std::size_t r = 0; r < dealt.ranks(); ++r) {
      REQUIRE(dealt.bin(s, r).size() >= in_step / c.rules.ranks);
      REQUIRE(dealt.bin(s, r).size() <= (in_step + c.rules.ranks - 1) / c.rules.ranks);
    }
  }
}

/// Longest first, equals by id.
void check_order(random_case const& c, assignment const& dealt) {
  for (std::size_t s = 0; s < dealt.steps(); ++s) {
    for (std::size_t r = 0; r < dealt.ranks(); ++r) {
      auto const bin = dealt.bin(s, r);
      for (std::size_t k = 1; k < bin.size(); ++k) {
        auto const& a = c.samples[bin[k - 1]];
        auto const& b = c.samples[bin[k]];
        REQUIRE((a.length > b.length || (a.length == b.length && a.id < b.id)));
      }
    }
  }
}

}  // namespace

TEST_CASE("deal gives every sample to one rank in one step, in equal counts, for any input") {
  auto random = engine{2402};
  for (auto turn = 0; turn < 10'000; ++turn) {
    CAPTURE(turn);
    auto const c     = make_case(random);
    auto const dealt = deal(c.samples, c.rules);
    REQUIRE(dealt.steps() == c.rules.steps);
    REQUIRE(dealt.ranks() == c.rules.ranks);
    check_permutation(c, dealt);
    check_counts(c, dealt);
    if (c.rules.method != dealing::none) { check_order(c, dealt); }
  }
}

TEST_CASE("deal depends on the set of samples, not on their order") {
  auto random = engine{2447};
  for (auto turn = 0; turn < 2'000; ++turn) {
    CAPTURE(turn);
    auto const c = make_case(random);
    if (c.rules.method == dealing::none) { continue; }
    auto shuffled = c.samples;
    std::shuffle(shuffled.begin(), shuffled.end(), random);
    REQUIRE(ids(c.samples, deal(c.samples, c.rules)) == ids(shuffled, deal(shuffled, c.rules)));
  }
}

TEST_CASE("deal composes steps alike on any number of ranks") {
  auto random = engine{17};
  for (auto turn = 0; turn < 500; ++turn) {
    CAPTURE(turn);
    auto c           = make_case(random);
    c.rules.ranks    = 1;
    auto const alone = steps_of(c.samples, deal(c.samples, c.rules));
    for (std::size_t ranks = 2; ranks < 9; ++ranks) {
      c.rules.ranks = ranks;
      REQUIRE(steps_of(c.samples, deal(c.samples, c.rules)) == alone);
    }
  }
}

TEST_CASE("deal follows the order that each method is named for") {
  auto const samples = of_lengths({10, 80, 30, 60, 50, 40, 70, 20});
  auto const dealt   = [&](dealing method) {
    return ids(samples, deal(samples, {.method = method, .ranks = 3}));
  };
  using bins = std::vector<std::vector<std::uint64_t>>;
  CHECK(dealt(dealing::none) == bins{{0, 1, 2}, {3, 4, 5}, {6, 7}});
  CHECK(dealt(dealing::raster) == bins{{1, 4, 7}, {6, 5, 0}, {3, 2}});
  CHECK(dealt(dealing::snake) == bins{{1, 2, 7}, {6, 5, 0}, {3, 4}});
  // 80 70 60, then 50, 40, 30 to the third, second, first, which now have 110 each.
  CHECK(dealt(dealing::lpt) == bins{{1, 2, 7}, {6, 5, 0}, {3, 4}});
}

TEST_CASE("deal by lpt fills equal counts, or balances better where counts are free") {
  auto const samples = of_lengths({100, 10, 10, 10, 10, 10});
  auto const equal   = deal(samples, {.method = dealing::lpt, .ranks = 2});
  CHECK(equal.bin(0, 0).size() == 3);
  CHECK(max_over_mean(samples, equal, 0) == doctest::Approx(120 / 75.0));
  auto const free = deal(samples, {.method = dealing::lpt_free, .ranks = 2});
  CHECK(free.bin(0, 0).size() == 1);
  CHECK(max_over_mean(samples, free, 0) == doctest::Approx(100 / 75.0));
}

TEST_CASE("deal balances by the cost it is given") {
  // By tokens 512 = 8 · 64; with n0 = 64 the long one costs 4608 and each short one 128.
  auto lengths = std::vector<std::uint32_t>(72, 64);
  lengths.push_back(512);
  auto const samples = of_lengths(lengths);
  auto const rules   = deal_rules{.method = dealing::lpt_free, .ranks = 2};
  auto by_cost       = rules;
  by_cost.cost.n0    = 64;
  CHECK(deal(samples, rules).bin(0, 0).size() == 33);
  CHECK(deal(samples, by_cost).bin(0, 0).size() == 19);
}

TEST_CASE("deal keeps J5's one long sequence among short ones to its bound") {
  auto lengths       = std::vector<std::uint32_t>(255, 16);
  lengths[100]       = 512;
  auto const samples = of_lengths(lengths);
  auto const dealt   = deal(samples, {.method = dealing::lpt, .ranks = 8});
  for (std::size_t r = 0; r < 8; ++r) { CHECK(dealt.bin(0, r).size() >= 31); }
  // The giant's rank holds 30 or 31 others, all others 32: no deal in equal counts does better.
  CHECK(max_over_mean(samples, dealt, 0) ==
        doctest::Approx((512 + 30 * 16) * 8.0 / (512 + 254 * 16)));
}

TEST_CASE("deal swaps pairs only where that lowers the dearest rank") {
  auto random     = engine{99};
  auto gained     = 0;
  auto const runs = 500;
  for (auto turn = 0; turn < runs; ++turn) {
    auto lengths = std::vector<std::uint32_t>{};
    for (auto i = 0; i < 64; ++i) {
      lengths.push_back(static_cast<std::uint32_t>(1 + random() % 512));
    }
    auto const samples = of_lengths(lengths);
    auto const without = deal(samples, {.ranks = 8, .cost = {2304}, .swaps = 0});
    auto const with    = deal(samples, {.ranks = 8, .cost = {2304}, .swaps = 64});
    auto const before  = max_over_mean(samples, without, 0, {2304});
    auto const after   = max_over_mean(samples, with, 0, {2304});
    REQUIRE(after <= before * (1 + 1e-12));
    if (after < before) { ++gained; }
  }
  CHECK(gained > runs / 2);
}

TEST_CASE("deal refuses rules that make no sense") {
  auto const refuses = [](deal_rules const& rules) {
    CHECK_THROWS_AS(static_cast<void>(deal({}, rules)), contract_error);
  };
  refuses({.ranks = 0});
  refuses({.steps = 0});
  refuses({.ranks = std::size_t{1} << 20U, .steps = std::size_t{1} << 20U});
  refuses({.cost = {-1.0}});
}

TEST_CASE("deal leaves ranks empty where there are fewer samples than ranks") {
  for (auto const method : all_methods) {
    CAPTURE(name_of(method));
    auto const samples = of_lengths({5, 6, 7});
    auto const dealt   = deal(samples, {.method = method, .ranks = 4, .steps = 2});
    CHECK(dealt.bin(1, 3).empty());
    CHECK(dealt.offsets().size() == 9);
    CHECK(dealt.order().size() == 3);
  }
}

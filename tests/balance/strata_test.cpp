// SPDX-License-Identifier: Apache-2.0
#include <gradlane/balance/histogram.hpp>
#include <gradlane/balance/strata.hpp>
#include <gradlane/error.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

using namespace gradlane;
using balance::bias_of;
using balance::largest_remainder;
using balance::length_count;
using balance::length_histogram;
using balance::strata;
using balance::stratum_total;

namespace {

using counts = std::vector<std::size_t>;

[[nodiscard]] std::vector<std::uint32_t> longest(strata const& s) {
  return {s.longest().begin(), s.longest().end()};
}

[[nodiscard]] length_histogram histogram(std::vector<length_count> entries) {
  return length_histogram{std::move(entries)};
}

}  // namespace

TEST_CASE("strata hold lengths up to and with their longest") {
  auto const s = strata::of_bert();
  CHECK(s.size() == 4);
  CHECK(s.index_of(0) == 0);
  CHECK(s.index_of(128) == 0);
  CHECK(s.index_of(129) == 1);
  CHECK(s.index_of(384) == 2);
  CHECK(s.index_of(385) == 3);
  CHECK(s.index_of(512) == 3);
  CHECK(strata{{9}}.index_of(9) == 0);
}

TEST_CASE("strata refuse lengths above the last, naming both") {
  auto const message = [](auto const& call) {
    try {
      call();
    } catch (contract_error const& e) { return std::string{e.message()}; }
    return std::string{};
  };
  CHECK(message([] { static_cast<void>(strata::of_bert().index_of(513)); }) ==
        "strata: length 513 is above the last stratum, which ends at 512; give one that holds it");
  CHECK_THROWS_AS(strata{std::vector<std::uint32_t>{}}, contract_error);
  CHECK_THROWS_AS((strata{{5, 5}}), contract_error);
  CHECK_THROWS_AS((strata{{6, 5}}), contract_error);
}

TEST_CASE("strata of equal probability end where the samples divide") {
  auto const h = histogram({{1, 25}, {2, 25}, {3, 25}, {4, 25}});
  CHECK(longest(strata::of_equal_probability(h, 4)) == std::vector<std::uint32_t>{1, 2, 3, 4});
  CHECK(longest(strata::of_equal_probability(h, 2)) == std::vector<std::uint32_t>{2, 4});
  CHECK(longest(strata::of_equal_probability(h, 1)) == std::vector<std::uint32_t>{4});
  // One length cannot be divided: three quarters of the samples make one stratum of the four.
  auto const spiked = histogram({{10, 25}, {512, 75}});
  CHECK(longest(strata::of_equal_probability(spiked, 4)) == std::vector<std::uint32_t>{10, 512});
  CHECK(longest(strata::of_equal_probability(histogram({{7, 1}}), 9)) ==
        std::vector<std::uint32_t>{7});
  for (auto const count : {std::size_t{100}, ~std::size_t{0}}) {  // each length by itself
    CHECK(longest(strata::of_equal_probability(h, count)) ==
          std::vector<std::uint32_t>{1, 2, 3, 4});
  }
}

TEST_CASE("strata of equal tokens end where the tokens divide") {
  auto const h = histogram({{1, 300}, {2, 75}, {3, 50}, {100, 6}});  // 300, 150, 150, 600 tokens
  CHECK(longest(strata::of_equal_tokens(h, 2)) == std::vector<std::uint32_t>{3, 100});
  CHECK(longest(strata::of_equal_tokens(h, 4)) == std::vector<std::uint32_t>{1, 3, 100});
}

TEST_CASE("strata are close to equal for any lengths") {
  auto random = std::mt19937_64{4};
  for (auto turn = 0; turn < 300; ++turn) {
    auto entries = std::vector<length_count>{};
    auto largest = std::uint64_t{0};
    for (auto length = 1U; length < 200; ++length) {
      entries.push_back({length, random() % 1000});
      largest = std::max(largest, entries.back().count);
    }
    auto const h      = histogram(entries);
    auto const count  = 1 + random() % 12;
    auto const s      = strata::of_equal_probability(h, count);
    auto const totals = totals_of(s, h);
    REQUIRE(s.size() == count);
    auto samples = std::uint64_t{0};
    auto tokens  = std::uint64_t{0};
    for (auto const& total : totals) {
      // Either end is off by half a length's count at most.
      auto const off = static_cast<double>(total.samples) -
                       static_cast<double>(h.samples()) / static_cast<double>(count);
      REQUIRE(std::abs(off) <= static_cast<double>(largest) + 1e-6);
      samples += total.samples;
      tokens += total.tokens;
    }
    REQUIRE(samples == h.samples());
    REQUIRE(tokens == h.tokens());
  }
}

TEST_CASE("strata cannot be made of nothing") {
  CHECK_THROWS_AS(static_cast<void>(strata::of_equal_probability(histogram({}), 4)),
                  contract_error);
  CHECK_THROWS_AS(static_cast<void>(strata::of_equal_tokens(histogram({{0, 5}}), 4)),
                  contract_error);
  CHECK_THROWS_AS(static_cast<void>(strata::of_equal_tokens(histogram({{1, 5}}), 0)),
                  contract_error);
}

TEST_CASE("largest_remainder gives the paper's quotas for a batch of 16") {
  auto const of_paper = std::vector{37.3, 19.7, 11.7, 31.4};
  CHECK(largest_remainder(of_paper, 16) == counts{6, 3, 2, 5});
  CHECK(largest_remainder(std::vector{6.0, 3.0, 2.0, 5.0}, 12) == counts{5, 2, 1, 4});
  CHECK(largest_remainder(std::vector{1.0, 1.0, 1.0}, 4) == counts{2, 1, 1});
  CHECK(largest_remainder(std::vector{0.0, 1.0}, 3) == counts{0, 3});
  CHECK(largest_remainder(std::vector{0.5}, 0) == counts{0});
}

TEST_CASE("largest_remainder adds up, and is within one of the exact share, for any weights") {
  auto random = std::mt19937_64{5};
  for (auto turn = 0; turn < 10'000; ++turn) {
    auto weights = std::vector<double>(1 + random() % 20);
    for (auto& w : weights) {
      w = random() % 4 == 0 ? 0.0 : std::ldexp(1.0, -static_cast<int>(random() % 20));
    }
    weights.front() += 1e-3;
    auto const count = random() % 1000;
    auto const parts = largest_remainder(weights, count);
    auto const sum   = std::accumulate(weights.begin(), weights.end(), 0.0);
    REQUIRE(std::accumulate(parts.begin(), parts.end(), std::size_t{0}) == count);
    for (std::size_t i = 0; i < parts.size(); ++i) {
      auto const exact = static_cast<double>(count) * weights[i] / sum;
      REQUIRE(std::abs(static_cast<double>(parts[i]) - exact) < 1 + 1e-9);
      if (weights[i] == 0) { REQUIRE(parts[i] == 0); }
    }
  }
}

TEST_CASE("largest_remainder refuses weights that are none") {
  auto const inf = std::numeric_limits<double>::infinity();
  for (auto const& weights :
       std::vector<std::vector<double>>{{}, {0.0, 0.0}, {-1.0, 2.0}, {inf}, {std::nan("")}}) {
    CHECK_THROWS_AS(static_cast<void>(largest_remainder(weights, 3)), contract_error);
  }
  auto const largest = std::numeric_limits<double>::max();
  CHECK(largest_remainder(std::vector{largest, 0.0}, 1) == counts{1, 0});
  CHECK_THROWS_AS(static_cast<void>(largest_remainder(std::vector{largest}, 2)), contract_error);
  CHECK_THROWS_AS(static_cast<void>(largest_remainder(std::vector{1.0}, std::size_t{1} << 32U)),
                  contract_error);
}

TEST_CASE("bias_of tells how fixed quotas differ from the data") {
  auto const totals = std::vector<stratum_total>{{10, 100}, {30, 900}};  // means 10 and 30
  auto const even   = bias_of(counts{1, 3}, totals);
  CHECK(even.share == std::vector{0.0, 0.0});
  CHECK(even.mean_length == 25.0);
  CHECK(even.true_length == 25.0);
  CHECK(even.left_over == 0);

  auto const odd = bias_of(counts{2, 2}, totals);
  CHECK(odd.share == std::vector{0.25, -0.25});
  CHECK(odd.mean_length == 20.0);
  CHECK(odd.left_over == 20);  // five batches use up the short ones
}

TEST_CASE("bias_of counts what J7's strata would lose, and bears an empty stratum") {
  auto const totals = std::vector<stratum_total>{{10, 640}, {0, 0}, {3, 900}, {1, 500}};
  auto const bias   = bias_of(counts{6, 3, 2, 5}, totals);
  CHECK(bias.left_over == 14);  // the one long sample fills no quota of five
  CHECK(bias.share[1] == 0.0);
  CHECK(bias.share[3] == doctest::Approx(5.0 / 13 - 1.0 / 14));
  CHECK(bias.mean_length == doctest::Approx((6 * 64.0 + 2 * 300.0 + 5 * 500.0) / 13));
  CHECK_THROWS_AS(static_cast<void>(bias_of(counts{0, 3, 0, 0}, totals)), contract_error);
  CHECK_THROWS_AS(static_cast<void>(bias_of(counts{1}, totals)), contract_error);
}

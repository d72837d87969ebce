// SPDX-License-Identifier: Apache-2.0
#include <gradlane/balance/sample_order.hpp>
#include <gradlane/balance/strata.hpp>
#include <gradlane/error.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <numeric>
#include <random>
#include <span>
#include <vector>

using namespace gradlane;
using balance::sample_order;
using balance::strata;

namespace {

using ids = std::vector<std::uint32_t>;

[[nodiscard]] ids epoch_of(sample_order const& order, std::uint64_t epoch) {
  auto result = ids(order.size());
  order.fill(epoch, 0, result);
  return result;
}

[[nodiscard]] bool is_permutation(ids order) {
  std::sort(order.begin(), order.end());
  for (std::size_t i = 0; i < order.size(); ++i) {
    if (order[i] != i) { return false; }
  }
  return true;
}

/// Lengths of the strata 1 … 10, 11 … 20, …: `counts[s]` of each, mixed.
[[nodiscard]] ids lengths_of(std::vector<std::size_t> const& counts) {
  auto result = ids{};
  for (std::size_t s = 0; s < counts.size(); ++s) {
    for (std::size_t i = 0; i < counts[s]; ++i) {
      result.push_back(static_cast<std::uint32_t>(10 * s + 1 + i % 10));
    }
  }
  auto random = std::mt19937{8};
  std::shuffle(result.begin(), result.end(), random);
  return result;
}

[[nodiscard]] strata tens(std::size_t count) {
  auto longest = ids{};
  for (std::size_t s = 0; s < count; ++s) {
    longest.push_back(static_cast<std::uint32_t>(10 * (s + 1)));
  }
  return strata{longest};
}

/// How many of `samples` each of `count` strata has.
[[nodiscard]] std::vector<std::size_t> composition(std::span<std::uint32_t const> samples,
                                                   ids const& lengths,
                                                   std::size_t count) {
  auto result = std::vector<std::size_t>(count);
  for (auto const i : samples) { ++result[(lengths[i] - 1) / 10]; }
  return result;
}

}  // namespace

TEST_CASE("sample_order goes through every sample once an epoch, in another order each") {
  for (auto const count : {0UL, 1UL, 2UL, 3UL, 4UL, 5UL, 16UL, 101UL, 1000UL, 65'537UL}) {
    CAPTURE(count);
    auto lengths = ids{};
    for (std::size_t i = 0; i < count; ++i) {
      lengths.push_back(static_cast<std::uint32_t>(i * i % 512 + 1));
    }
    auto const sequential = sample_order::sequential(count);
    auto const random     = sample_order::random(count, 7);
    auto const stratified = sample_order::stratified(lengths, strata::of_bert(), 7);
    for (auto epoch = 0U; epoch < 3; ++epoch) {
      CHECK(is_permutation(epoch_of(sequential, epoch)));
      CHECK(is_permutation(epoch_of(random, epoch)));
      CHECK(is_permutation(epoch_of(stratified, epoch)));
    }
    CHECK(epoch_of(sequential, 0) == epoch_of(sequential, 1));
    if (count < 16) { continue; }
    CHECK(epoch_of(random, 0) != epoch_of(random, 1));
    CHECK(epoch_of(random, 0) != epoch_of(sample_order::random(count, 8), 0));
    CHECK(epoch_of(stratified, 0) != epoch_of(stratified, 1));
  }
}

TEST_CASE("sample_order finds any position as if it had walked there") {
  auto engine = std::mt19937_64{3};
  for (auto turn = 0U; turn < 200; ++turn) {
    CAPTURE(turn);
    auto counts = std::vector<std::size_t>{};
    for (auto s = 1 + engine() % 9; s > 0; --s) { counts.push_back(engine() % 60); }
    auto quotas = std::vector<std::size_t>{};
    if (engine() % 2 == 0) {
      for (std::size_t s = 0; s < counts.size(); ++s) { quotas.push_back(engine() % 4); }
      quotas.back() += 1;
    }
    auto const lengths = lengths_of(counts);
    auto const order   = sample_order::stratified(lengths, tens(counts.size()), turn, quotas);
    auto const whole   = epoch_of(order, 5);
    REQUIRE(is_permutation(whole));
    for (auto from = std::size_t{0}; from < whole.size(); from += 1 + engine() % 7) {
      auto part = ids(std::min<std::size_t>(engine() % 9, whole.size() - from));
      order.fill(5, from, part);
      REQUIRE(
          std::equal(part.begin(), part.end(), whole.begin() + static_cast<std::ptrdiff_t>(from)));
    }
  }
}

TEST_CASE("sample_order by strata gives every stretch its share of each, to within two") {
  for (auto const& counts :
       std::vector<std::vector<std::size_t>>{{3694, 1969, 1173, 3164},
                                             {5000, 1, 0, 4999},
                                             {1, 1, 1, 1, 1000},
                                             std::vector<std::size_t>(64, 100)}) {
    auto const lengths = lengths_of(counts);
    auto const order   = epoch_of(sample_order::stratified(lengths, tens(counts.size()), 1), 0);
    auto worst         = 0.0;
    for (auto const width : {std::size_t{16}, std::size_t{128}, std::size_t{1000}}) {
      for (std::size_t begin = 0; begin + width <= order.size(); begin += 13) {
        auto const here =
            composition(std::span{order}.subspan(begin, width), lengths, counts.size());
        for (std::size_t s = 0; s < counts.size(); ++s) {
          auto const share =
              static_cast<double>(width * counts[s]) / static_cast<double>(order.size());
          worst = std::max(worst, std::abs(static_cast<double>(here[s]) - share));
        }
      }
    }
    CHECK(worst < 2.0);
  }
}

TEST_CASE("sample_order with quotas fills every batch with them until a stratum is used up") {
  auto const counts  = std::vector<std::size_t>{600, 310, 190, 520};
  auto const lengths = lengths_of(counts);
  auto const quotas  = std::vector<std::size_t>{6, 3, 2, 5};
  auto const order   = epoch_of(sample_order::stratified(lengths, tens(4), 1, quotas), 0);
  for (std::size_t b = 0; b < 95; ++b) {  // 190 / 2
    CHECK(composition(std::span{order}.subspan(16 * b, 16), lengths, 4) == quotas);
  }
  CHECK(is_permutation(order));
}

TEST_CASE("sample_order bears J7's strata: one empty, one used up at once, one without quota") {
  auto const lengths = lengths_of({10, 0, 3, 1});
  auto const quotas  = std::vector<std::size_t>{6, 3, 2, 5};
  auto const order   = epoch_of(sample_order::stratified(lengths, tens(4), 1, quotas), 0);
  CHECK(is_permutation(order));
  CHECK(composition(std::span{order}.first(9), lengths, 4) == std::vector<std::size_t>{6, 0, 2, 1});

  auto const last = std::vector<std::size_t>{1, 1, 0, 1};
  auto const late = epoch_of(sample_order::stratified(lengths, tens(4), 1, last), 0);
  CHECK(is_permutation(late));
  CHECK(composition(std::span{late}.last(3), lengths, 4) == std::vector<std::size_t>{0, 0, 3, 0});
}

TEST_CASE("sample_order mixes batches anew in every epoch") {
  auto const lengths = lengths_of({400, 400});
  auto const order   = sample_order::stratified(lengths, tens(2), 9);
  // Two samples that share a batch of 16 once share one of the 50 of the next epoch by chance only.
  auto const batch_of = [&](std::uint64_t epoch) {
    auto const list = epoch_of(order, epoch);
    auto result     = std::vector<std::size_t>(list.size());
    for (std::size_t i = 0; i < list.size(); ++i) { result[list[i]] = i / 16; }
    return result;
  };
  auto const first  = batch_of(0);
  auto const second = batch_of(1);
  auto together     = 0;
  auto again        = 0;
  for (std::size_t a = 0; a < first.size(); ++a) {
    for (auto b = a + 1; b < first.size(); ++b) {
      if (first[a] != first[b]) { continue; }
      ++together;
      if (second[a] == second[b]) { ++again; }
    }
  }
  CHECK(together == 50 * 120);
  CHECK(again < 200);  // 120 are expected, with a standard deviation of 11
}

TEST_CASE("sample_order puts every order of few samples equally often") {
  for (auto const count : {2UL, 3UL, 4UL, 5UL}) {
    CAPTURE(count);
    auto often  = std::map<ids, int>{};
    auto orders = 1.0;
    for (auto i = 2UL; i <= count; ++i) { orders *= static_cast<double>(i); }
    auto const runs = 2000.0 * orders;
    for (auto seed = 0U; seed < static_cast<unsigned>(runs); ++seed) {
      ++often[epoch_of(sample_order::random(count, seed), 1)];
    }
    CHECK(static_cast<double>(often.size()) == orders);
    auto chi = 0.0;
    for (auto const& [order, times] : often) {
      chi += (times - 2000.0) * (times - 2000.0) / 2000.0;
    }
    // Mean orders - 1, variance twice that: five standard deviations.
    CHECK(chi < orders - 1 + 5 * std::sqrt(2 * (orders - 1)));
  }
}

TEST_CASE("sample_order puts every sample anywhere equally often") {
  constexpr auto count = std::size_t{50};
  constexpr auto runs  = 20'000;
  auto often           = std::vector<int>(count * count);
  auto follows         = std::vector<int>(count);  // distance of neighbours
  for (auto epoch = 0U; epoch < runs; ++epoch) {
    auto const order = epoch_of(sample_order::random(count, 77), epoch);
    for (std::size_t i = 0; i < count; ++i) { ++often[i * count + order[i]]; }
    ++follows[(order[31] + count - order[30]) % count];
  }
  auto const expected = static_cast<double>(runs) / count;
  auto chi            = 0.0;
  for (auto const n : often) { chi += (n - expected) * (n - expected) / expected; }
  // 49² degrees of freedom; five standard deviations.
  CHECK(chi < 2401 + 5 * std::sqrt(2 * 2401.0));
  CHECK(follows[0] == 0);
  auto chi_follows         = 0.0;
  auto const expected_here = static_cast<double>(runs) / (count - 1);
  for (std::size_t d = 1; d < count; ++d) {
    chi_follows += (follows[d] - expected_here) * (follows[d] - expected_here) / expected_here;
  }
  CHECK(chi_follows < 48 + 5 * std::sqrt(2 * 48.0));
}

TEST_CASE("sample_order is the same on every machine, and today as yesterday") {
  auto const lengths = ids{10, 500, 200, 512, 40, 300, 512, 90, 130, 260, 511, 7};
  CHECK(epoch_of(sample_order::random(12, 1), 0) == ids{8, 11, 7, 0, 5, 10, 3, 2, 9, 4, 6, 1});
  CHECK(epoch_of(sample_order::stratified(lengths, strata::of_bert(), 1), 2) ==
        ids{10, 7, 9, 6, 4, 8, 1, 0, 5, 3, 11, 2});
}

TEST_CASE("sample_order tells by its fingerprint what it was made of") {
  auto const lengths = lengths_of({5, 6, 7});
  auto prints        = std::vector<std::uint64_t>{
      sample_order::sequential(18).fingerprint(),
      sample_order::random(18, 1).fingerprint(),
      sample_order::random(18, 2).fingerprint(),
      sample_order::random(19, 1).fingerprint(),
      sample_order::stratified(lengths, tens(3), 1).fingerprint(),
      sample_order::stratified(lengths, tens(3), 2).fingerprint(),
      sample_order::stratified(lengths, tens(4), 1).fingerprint(),
      sample_order::stratified(lengths_of({6, 6, 6}), tens(3), 1).fingerprint(),
      sample_order::stratified(lengths, tens(3), 1, std::vector<std::size_t>{1, 1, 1})
          .fingerprint(),
      sample_order::stratified(lengths, tens(3), 1, std::vector<std::size_t>{1, 1, 2})
          .fingerprint()};
  std::sort(prints.begin(), prints.end());
  CHECK(std::adjacent_find(prints.begin(), prints.end()) == prints.end());
  CHECK(sample_order::random(18, 1).fingerprint() == sample_order::random(18, 1).fingerprint());
}

TEST_CASE("sample_order refuses what it cannot order") {
  auto const lengths = lengths_of({5, 5});
  auto const make    = [&](std::vector<std::size_t> const& quotas) {
    return sample_order::stratified(lengths, tens(2), 1, quotas);
  };
  CHECK_THROWS_AS(static_cast<void>(make({1})), contract_error);
  CHECK_THROWS_AS(static_cast<void>(make({0, 0})), contract_error);
  CHECK_THROWS_AS(static_cast<void>(sample_order::stratified(lengths, tens(1), 1)), contract_error);
  CHECK_THROWS_AS(static_cast<void>(sample_order::random(std::uint64_t{1} << 32U, 1)),
                  contract_error);
  auto three = ids(3);
  CHECK_THROWS_AS(sample_order::random(10, 1).fill(0, 8, three), contract_error);
  CHECK_THROWS_AS(sample_order::random(10, 1).fill(0, 11, {}), contract_error);
  CHECK_NOTHROW(sample_order::random(10, 1).fill(0, 10, {}));
}

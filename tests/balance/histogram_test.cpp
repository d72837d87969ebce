// SPDX-License-Identifier: Apache-2.0
#include <gradlane/balance/histogram.hpp>
#include <gradlane/error.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <vector>

using namespace gradlane;
using balance::length_count;
using balance::length_histogram;

namespace {

[[nodiscard]] std::vector<length_count> entries(length_histogram const& h) {
  return {h.entries().begin(), h.entries().end()};
}

}  // namespace

TEST_CASE("length_histogram counts lengths in any order") {
  auto const lengths = std::vector<std::uint32_t>{7, 512, 7, 0, 4'000'000'000, 512, 7};
  auto const h       = length_histogram{lengths};
  CHECK(entries(h) == std::vector<length_count>{{0, 1}, {7, 3}, {512, 2}, {4'000'000'000, 1}});
  CHECK(h.samples() == 7);
  CHECK(h.tokens() == 4'000'001'045);
  CHECK(h.mean_length() == doctest::Approx(4'000'001'045 / 7.0));
}

TEST_CASE("length_histogram takes counts and leaves out empty ones") {
  auto const h = length_histogram{std::vector<length_count>{{1, 0}, {5, 10}, {6, 0}, {8, 1}}};
  CHECK(entries(h) == std::vector<length_count>{{5, 10}, {8, 1}});
  CHECK(h.samples() == 11);
  CHECK(h.tokens() == 58);
}

TEST_CASE("length_histogram may be empty") {
  auto const h = length_histogram{std::vector<std::uint32_t>{}};
  CHECK(h.entries().empty());
  CHECK(h.samples() == 0);
  CHECK(h.mean_length() == 0.0);
}

TEST_CASE("length_histogram refuses lengths that do not rise and sums that overflow") {
  using list = std::vector<length_count>;
  CHECK_THROWS_AS(length_histogram(list{{5, 1}, {5, 1}}), contract_error);
  CHECK_THROWS_AS(length_histogram(list{{5, 1}, {4, 1}}), contract_error);
  CHECK_THROWS_AS(length_histogram(list{{5, std::uint64_t{1} << 61U}}), contract_error);
  CHECK_THROWS_AS(length_histogram(list{{1, std::uint64_t{1} << 63U}}), contract_error);
  CHECK_NOTHROW(length_histogram(list{{0, 1}, {1, std::uint64_t{1} << 62U}}));
}

// SPDX-License-Identifier: Apache-2.0
#include <gradlane/buckets/readiness.hpp>

#include <doctest/doctest.h>

#include <support/model.hpp>

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

using namespace gradlane;

TEST_CASE("readiness gives buckets out in plan order, whatever order the marks take") {
  auto const plan = bucket_plan{test::parameters({1, 1, 1}), test::one_each};  // buckets: p2 p1 p0
  auto order      = test::every(3);
  do {
    auto state    = readiness{plan};
    auto launched = std::vector<std::size_t>{};
    for (auto const p : order) {
      CHECK_FALSE(state.all_launched());
      state.mark(p);
      while (auto const bucket = state.pop()) { launched.push_back(*bucket); }
      // Bucket b is out exactly when p2 .. p(2-b) are all marked.
      for (auto const b : launched) { CHECK(b < launched.size()); }
    }
    CHECK(launched == test::every(3));
    CHECK(state.all_launched());
    CHECK(std::vector<std::size_t>(state.order().begin(), state.order().end()) == order);
    CHECK_FALSE(state.pop());
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST_CASE("readiness waits for all uses of all tied parameters") {
  auto const plan = bucket_plan{
      {{.name = "a", .count = 1, .uses = 2}, {.name = "b", .count = 1, .tied_to = "a"}}};
  auto state = readiness{plan};
  CHECK(state.mark(0) == 0);
  CHECK(state.mark(0) == 1);
  CHECK_THROWS_WITH_AS(
      state.mark(0), doctest::Contains("'a' was marked already (uses = 2)"), state_error);
  CHECK_FALSE(state.pop());
  CHECK(state.order().empty());
  CHECK(state.describe_missing() == "'b' (bucket 0, 0 of 1 marks)");
  CHECK(state.mark(1) == 0);
  CHECK(state.pop() == 0);
  state.reset();
  CHECK_FALSE(state.pop());
  CHECK(state.mark(0) == 0);
}

TEST_CASE("readiness names at most eight missing parameters") {
  auto const plan = bucket_plan{test::parameters(std::vector<std::size_t>(11, 1))};
  auto const text = readiness{plan}.describe_missing();
  CHECK(text.find("'p7'") != std::string::npos);
  CHECK(text.find("'p8'") == std::string::npos);
  CHECK(text.ends_with("and 3 more"));
}

TEST_CASE("readiness is complete from the start where there is nothing to reduce") {
  auto const plan = bucket_plan{test::parameters({0})};
  auto state      = readiness{plan};
  CHECK(state.all_launched());
  state.mark(0);
  CHECK_THROWS_AS(state.mark(0), state_error);
}

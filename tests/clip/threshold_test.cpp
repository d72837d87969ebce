// SPDX-License-Identifier: Apache-2.0
#include <gradlane/clip/policy.hpp>
#include <gradlane/clip/threshold.hpp>

#include <doctest/doctest.h>

#include <support/model.hpp>

#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

using namespace gradlane;

TEST_CASE("threshold policies whose squares add up to c² do so for any plan") {
  for (auto const& sizes :
       std::vector<std::vector<std::size_t>>{{1}, {7, 13, 1009}, {1, 1, 1, 1000000}, {5, 0, 5}}) {
    auto const plan  = bucket_plan{test::parameters(sizes), test::one_each};
    auto const check = [&](auto policy) {
      auto sum = 0.0;
      for (auto const t : policy.values(plan)) { sum += t * t; }
      CHECK(sum == doctest::Approx(6.25).epsilon(1e-12));
    };
    check(threshold::equal{2.5});
    check(threshold::by_size{2.5});
  }
}

TEST_CASE("threshold policies give no bounds for a plan without buckets") {
  auto const plan = bucket_plan{{}};
  CHECK(threshold::equal{1.0}.values(plan).empty());
  CHECK(threshold::by_size{1.0}.values(plan).empty());
  CHECK(threshold::each{1.0}.values(plan).empty());
  CHECK(threshold::list{{}}.values(plan).empty());
  CHECK(threshold::adaptive{}.values(plan).empty());
}

TEST_CASE("threshold::adaptive clips nothing before it has seen a norm") {
  auto const plan = bucket_plan{test::parameters({1, 1}), test::one_each};
  CHECK(threshold::adaptive{}.values(plan) ==
        std::vector<double>(2, std::numeric_limits<double>::infinity()));
}

TEST_CASE("clip policies describe their formula and bound") {
  CHECK(clip::none::describe() == "none: mean_r g_r");
  CHECK(clip::after{0.1}.describe() == "after: clip(mean_r g_r, c), c = 0.1");
  CHECK(clip::before{1e-3}.describe() == "before: mean_r clip(g_r, c), c = 0.001");
  CHECK(clip::bucketwise{threshold::adaptive{.agreed = true}}.describe().find(
            "decay 0.99, averaged over ranks") != std::string::npos);
  CHECK(threshold::list{{1.0, 2.5}}.describe() == "t_b = 1 2.5");
}

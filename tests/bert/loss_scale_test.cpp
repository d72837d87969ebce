// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <bert/errors.hpp>
#include <bert/loss_scale.hpp>

#include <cmath>    // for nanf
#include <cstdint>  // for uint32_t
#include <limits>   // for numeric_limits

namespace {

using namespace bert;

loss_scale_state after(loss_scale_settings const& settings,
                       loss_scale_state state,
                       std::uint32_t good,
                       std::uint32_t skipped) {
  for (auto i = 0U; i < good; ++i) { state = after_step(settings, state, false); }
  for (auto i = 0U; i < skipped; ++i) { state = after_step(settings, state, true); }
  return state;
}

TEST_CASE("a loss scale doubles after 2000 good steps in a row, and halves where one is skipped") {
  auto const settings = loss_scale_settings{};
  auto const first    = loss_scale_state{settings.initial, 0};
  CHECK(first.scale == 1048576);
  CHECK(after(settings, first, 1999, 0) == loss_scale_state{0x1p20F, 1999});
  CHECK(after(settings, first, 2000, 0) == loss_scale_state{0x1p21F, 0});
  CHECK(after(settings, first, 1999, 1) == loss_scale_state{0x1p19F, 0});
  CHECK(after(settings, after(settings, first, 1999, 1), 1999, 0).scale == 0x1p19F);
  CHECK(after(settings, after(settings, first, 1999, 1), 2000, 0).scale == 0x1p20F);
  CHECK(after(settings, first, 0, 3) == loss_scale_state{0x1p17F, 0});
}

TEST_CASE(
    "a loss scale never leaves its ceiling, so that gradients of zero cannot take it to Inf") {
  auto const settings = loss_scale_settings{.initial = 1, .growth_interval = 1};
  CHECK(after(settings, {1, 0}, 40, 0).scale == settings.ceiling);
  CHECK(after(settings, {1, 0}, 4000, 0).scale == settings.ceiling);
}

TEST_CASE("a run has diverged when its loss scale falls below the floor, and stays so") {
  auto const settings = loss_scale_settings{.initial = 4};
  auto const lowest   = after(settings, {4, 0}, 0, 2);
  CHECK(lowest.scale == 1);
  CHECK_NOTHROW(expect_not_diverged(settings, lowest, 7));
  auto const below = after(settings, lowest, 0, 1);
  CHECK_THROWS_WITH_AS(expect_not_diverged(settings, below, 8),
                       doctest::Contains("training has diverged: at step 8 "),
                       diverged_error);
  CHECK(after(settings, below, 5000, 0) == below);
  CHECK(after(settings, below, 0, 1000) == below);
}

TEST_CASE("loss_scale_settings refuse what no run can mean") {
  CHECK_NOTHROW(loss_scale_settings{}.check());
  auto const nan = std::numeric_limits<float>::quiet_NaN();
  auto const inf = std::numeric_limits<float>::infinity();
  for (auto const bad : {0.0F, -2.0F, 3.0F, nan, inf, 0x1p41F, 0.5F}) {
    CAPTURE(bad);
    CHECK_THROWS_AS(loss_scale_settings{.initial = bad}.check(), input_error);
  }
  CHECK_THROWS_AS(loss_scale_settings{.floor = 0}.check(), input_error);
  CHECK_THROWS_AS(loss_scale_settings{.ceiling = inf}.check(), input_error);
  CHECK_THROWS_AS(loss_scale_settings{.growth_interval = 0}.check(), input_error);
}

}  // namespace

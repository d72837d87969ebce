// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "errors.hpp"  // for diverged_error, input_error

#include <gradlane/detail/host_device.hpp>  // for GRADLANE_HOST_DEVICE

#include <cmath>    // for frexp
#include <cstdint>  // for uint32_t, uint64_t
#include <string>   // for to_string

namespace bert {

/// Dynamic loss scaling, which keeps small gradients in fp16's range: losses are multiplied by a
/// scale, gradients divided by it again in fp32.
///
/// All are powers of two, so that scaling rounds nothing. A run that begins too high loses one step
/// for each halving; one that begins too low would go without its smallest gradients for thousands
/// of steps.
///
/// Source: Micikevicius et al. 2018, arXiv 1710.03740; the numbers are NVIDIA's for BERT.
struct loss_scale_settings {
  float initial                 = 0x1p20F;
  std::uint32_t growth_interval = 2000;     // good steps in a row until it doubles
  float floor                   = 1;        // the run has diverged when it falls below
  float ceiling                 = 0x1p40F;  // else gradients that are all zero would take it to Inf

  /// @throws input_error for values that no run can mean.
  void check() const {
    for (auto const value : {initial, floor, ceiling}) {
      auto exponent = 0;
      if (!(value > 0) || std::frexp(value, &exponent) != 0.5F) {
        throw input_error{"loss scales must be powers of two"};
      }
    }
    if (!(floor <= initial && initial <= ceiling)) {
      throw input_error{"the first loss scale must lie between its floor and its ceiling"};
    }
    if (growth_interval == 0) { throw input_error{"a loss scale cannot grow every 0 steps"}; }
  }
};

/// What a checkpoint keeps. Ranks that agree on which steps are skipped agree on it, bit for bit.
struct alignas(8) loss_scale_state {
  float scale              = 1;
  std::uint32_t good_steps = 0;  // in a row, since the scale last changed

  friend bool operator==(loss_scale_state const&, loss_scale_state const&) = default;
};

[[nodiscard]] GRADLANE_HOST_DEVICE constexpr bool has_diverged(loss_scale_settings const& settings,
                                                               loss_scale_state const& state) {
  return !(state.scale >= settings.floor);
}

/// The state after one more step. Once diverged it stays so: a host that looks late sees it too.
/// @param skipped  a gradient was not finite.
[[nodiscard]] GRADLANE_HOST_DEVICE constexpr loss_scale_state after_step(
    loss_scale_settings const& settings, loss_scale_state const& state, bool skipped) {
  if (has_diverged(settings, state)) { return state; }
  if (skipped) { return {state.scale / 2, 0}; }
  if (state.good_steps + 1 < settings.growth_interval) {
    return {state.scale, state.good_steps + 1};
  }
  return {state.scale < settings.ceiling ? state.scale * 2 : state.scale, 0};
}

/// @param step  the last one that the state knows of.
/// @throws diverged_error where the scale has fallen below its floor.
inline void expect_not_diverged(loss_scale_settings const& settings,
                                loss_scale_state const& state,
                                std::uint64_t step) {
  if (!has_diverged(settings, state)) { return; }
  throw diverged_error{"training has diverged: at step " + std::to_string(step) +
                       " gradients are not finite even with the lowest loss scale; lower "
                       "--learning-rate, or go on from an older checkpoint"};
}

}  // namespace bert

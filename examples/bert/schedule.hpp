// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "errors.hpp"  // for input_error

#include <cmath>        // for pow
#include <cstdint>      // for uint64_t
#include <string>       // for string
#include <string_view>  // for string_view

namespace bert {

/// The learning rate as a function of the step: a linear rise to `peak` over the warm-up steps,
/// then a fall to `end` at the last step, along (1 - progress)^power.
struct schedule {
  double peak           = 1e-4;
  double end            = 0;
  std::uint64_t warm_up = 0;
  std::uint64_t steps   = 1;  // in all, warm-up included
  double power          = 1;  // 1: linear; 0.5: LAMB's; 0: constant

  /// @param step  from 0. The first of w warm-up steps has peak / w; after the last step: `end`.
  [[nodiscard]] double at(std::uint64_t step) const {
    if (step < warm_up) {
      return peak * static_cast<double>(step + 1) / static_cast<double>(warm_up);
    }
    if (step >= steps) { return power > 0 ? end : peak; }
    auto const left = static_cast<double>(steps - step) / static_cast<double>(steps - warm_up);
    return end + (peak - end) * std::pow(left, power);
  }

  /// @throws input_error for what is no schedule.
  void check() const {
    if (!(peak > 0) || !(end >= 0) || end > peak) {
      throw input_error{"learning rates must be positive, and must not rise after the warm-up"};
    }
    if (!(power >= 0)) { throw input_error{"the power of a learning-rate schedule must be >= 0"}; }
    if (steps == 0 || warm_up > steps) {
      throw input_error{"the warm-up has " + std::to_string(warm_up) +
                        " steps, the training only " + std::to_string(steps)};
    }
  }
};

/// @throws input_error unless it is constant, linear or polynomial (LAMB's square root).
[[nodiscard]] inline double schedule_power(std::string_view name) {
  if (name == "constant") { return 0; }
  if (name == "linear") { return 1; }
  if (name == "polynomial") { return 0.5; }
  throw input_error{"no schedule '" + std::string{name} +
                    "': choose constant, linear or polynomial"};
}

}  // namespace bert

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "errors.hpp"  // for input_error

namespace bert {

enum class update_rule { adamw, lamb };

struct optimizer_settings {
  update_rule rule         = update_rule::adamw;
  double beta1             = 0.9;
  double beta2             = 0.999;
  double epsilon           = 1e-8;  // outside of the root; LAMB's is 1e-6
  double weight_decay      = 0.01;  // decoupled; biases and LayerNorm have none
  bool bias_correction     = true;
  bool trust_without_decay = false;  // LAMB: a trust ratio also where there is no decay (NVLAMB)

  /// @throws input_error for values that no run can mean.
  void check() const {
    auto const below_one = [](double x) { return x >= 0 && x < 1; };
    if (!below_one(beta1) || !below_one(beta2)) {
      throw input_error{"the optimizer's betas must lie in [0, 1)"};
    }
    if (!(epsilon > 0)) { throw input_error{"the optimizer's epsilon must be positive"}; }
    if (!(weight_decay >= 0)) { throw input_error{"weight decay must not be negative"}; }
  }

  friend bool operator==(optimizer_settings const&, optimizer_settings const&) = default;
};

/// Sums of squares over a tensor, or a part of one, of which LAMB makes its trust ratio.
struct update_norms {
  double parameters = 0;
  double updates    = 0;
};

[[nodiscard]] inline optimizer_settings lamb_settings() {
  auto result    = optimizer_settings{};
  result.rule    = update_rule::lamb;
  result.epsilon = 1e-6;
  return result;
}

}  // namespace bert

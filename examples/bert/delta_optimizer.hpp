// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "optimizer_settings.hpp"  // for optimizer_settings
#include "parameters.hpp"          // for parameter_list

#include <gradlane/clip/report.hpp>  // for step_status

#include <array>    // for array
#include <cstddef>  // for size_t
#include <cstdint>  // for uint64_t
#include <span>     // for span
#include <vector>   // for vector

namespace bert {

/// The rules of optimizer.hpp for steps that are joined over ranks before they are made: it says
/// what a step would add to the parameters, tensor by tensor, and leaves them alone.
///
/// Moments have two places, of which the count of steps says which one holds, so that a step that
/// is skipped leaves no trace (gradlane's bucket_update).
class delta_optimizer {
 public:
  /// @throws input_error as optimizer_settings::check() does.
  delta_optimizer(parameter_list const& list, optimizer_settings const& settings);

  /// Writes what one step adds to a tensor, and moments in the place that does not hold; on the
  /// thread that calls, other tensors may be on other threads.
  /// @param parameters   the flat vector.
  /// @param delta        may be the gradient's memory.
  /// @param coefficient  of the gradient.
  /// @param counted      steps since restore(), or since it was made, that were not skipped.
  void propose(std::size_t tensor,
               std::span<float const> parameters,
               std::span<float const> gradient,
               std::span<float> delta,
               double learning_rate,
               float coefficient,
               std::uint64_t counted);

  /// Adds joined deltas, unless the step is skipped; on OpenMP's threads.
  void apply(std::span<float> parameters,
             std::span<std::span<float> const> deltas,
             gradlane::step_status const& status);

  /// Steps in all that were not skipped.
  [[nodiscard]] std::uint64_t steps() const { return restored_ + counted_; }
  /// m and v as they hold now, laid out as the parameters.
  [[nodiscard]] std::span<float const> first_moment() const { return first_[counted_ % 2]; }
  [[nodiscard]] std::span<float const> second_moment() const { return second_[counted_ % 2]; }

  /// Takes over the state of another run, before the first step.
  /// @throws gradlane::contract_error if sizes do not fit the list, gradlane::state_error later.
  void restore(std::uint64_t steps, std::span<float const> first, std::span<float const> second);

 private:
  optimizer_settings settings_;
  parameter_list list_;
  std::array<std::vector<float>, 2> first_;
  std::array<std::vector<float>, 2> second_;
  std::uint64_t restored_ = 0;
  std::uint64_t counted_  = 0;
};

}  // namespace bert

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/concepts.hpp>  // for non_finite_location

#include <cstddef>  // for size_t
#include <cstdint>  // for uint32_t, uint64_t
#include <string>   // for string
#include <vector>   // for vector

namespace gradlane {

/// What the optimizer reads on the device, in stream order after finish().
struct step_status {
  float coefficient{1.0F};  ///< multiply the gradients by this; 1 unless clip::after left it so
  std::uint32_t skip{0};    ///< not 0: leave parameters and optimizer state alone
};

/// A bucket's numbers of one step, in device memory.
struct bucket_record {
  double sum_of_squares{};   ///< what the clip policy measures, in units of the stored gradient
  double reduced_squares{};  ///< of what was read back after the reduction; not finite: skip
  double norm{};             ///< sqrt(sum_of_squares) / loss scale
  double threshold{};        ///< the bound that held in the step
  double average{};          ///< threshold::adaptive: running average; 0 before the first norm
  float coefficient{1.0F};   ///< clip factor · share of the average / loss scale
  std::uint32_t clipped{};
  std::uint32_t non_finite{};
  float gate{1.0F};  ///< 1, or NaN where the coefficient is
  std::uint64_t clipped_steps{};
  non_finite_location where{};
};

/// The numbers of one step, in device memory.
struct step_record {
  step_status status{};
  double weight[2]{};        ///< this rank's weight and 1, or 0 and 0 once it has joined
  double total_weight[2]{};  ///< the same over all ranks
  double share{1.0};         ///< of this rank in the average, before the reduction
  float used{1.0F};          ///< 0 where share is 0, so that what the buckets hold must not count
  double norm{};             ///< of all that the policy measured / loss scale
  float post{1.0F};          ///< factor after the reduction
  float coefficient{1.0F};   ///< clip::after: clip factor / loss scale
  std::uint32_t clipped{};   ///< the whole gradient was clipped (before, after)
  std::uint64_t steps{};     ///< that were not skipped
  std::uint64_t skipped_steps{};
  std::uint64_t updates{};        ///< as steps, but not reset where the order is learned
  std::uint64_t clipped_units{};  ///< buckets, or whole gradients, that were clipped so far
  double orthogonality[2]{};      ///< Adasum: its sum over parameters, and how many they are
};

/// step_report::orthogonality.
[[nodiscard]] inline double mean_orthogonality(step_record const& step) noexcept {
  return step.orthogonality[0] / step.orthogonality[1];
}

/// A bucket in a step_report.
struct bucket_report {
  double norm{};       ///< as bucket_record; of the reduced bucket for clip::after
  double threshold{};  ///< infinity where buckets have no bound of their own
  float coefficient{1.0F};
  bool clipped{};
  bool finite{true};
  double clipped_fraction{};  ///< of the steps so far
  std::string parameter{};    ///< the first that held Inf or NaN; empty where it is not known
  std::size_t offset{};       ///< the element of that parameter
};

/// One step as clip_allreduce::sync_report() tells it, on this rank.
struct step_report {
  std::uint64_t step{};     ///< from 0, skipped ones included
  double norm{};            ///< of the local gradient; of the reduced one for clip::after
  float coefficient{1.0F};  ///< step_record::coefficient
  bool clipped{};           ///< some bucket, or the whole gradient, was
  bool skipped{};
  double clipped_fraction{};  ///< of the buckets (bucketwise) or steps (after, before) so far
  std::uint64_t skipped_steps{};
  std::vector<bucket_report> buckets{};
  /// reduce::adasum: ‖Adasum‖² / Σ_r ‖g_r‖² (of nodes' means or sums where hierarchical), the mean
  /// over the parameters whose gradients are not all 0; 1 where the ranks' gradients are
  /// orthogonal, 1 / W where they are equal; NaN for other reductions.
  double orthogonality{};
  /// reduce::adasum: the same by parameter; NaN where its gradients are all 0, and where it has no
  /// slot of its own in the plan.
  std::vector<double> parameter_orthogonality{};
};

}  // namespace gradlane

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../model_state.hpp"  // for model_state
#include "../parameters.hpp"   // for parameter_list
#include "../step_value.hpp"   // for step_value
#include "pipelines.hpp"       // for plan_gradients
#include "settings.hpp"        // for training_settings

#include <gradlane/clip/report.hpp>         // for step_record
#include <gradlane/gradient_buckets.hpp>    // for gradient_buckets
#include <gradlane/reduction_pipeline.hpp>  // for reduction_pipeline

#include <chrono>   // for seconds
#include <cstddef>  // for size_t
#include <span>     // for span
#include <string>   // for string, to_string
#include <vector>   // for vector

namespace bert {

/// Turns the gradients of a step on all ranks into new weights: buckets, gradlane's pipeline and
/// the optimizer, in one of the ways that bert_train offers by --reduce.
///
///     begin ▶ ready(i) … ready(j) ▶ finish ▶ apply ▶ wait(i) ▶ forward of the next step
template <class Place>
class weight_update {
 public:
  using stream   = typename Place::stream;
  using pipeline = gradlane::reduction_pipeline<typename Place::lane, typename Place::communicator>;

  weight_update(weight_update const&)            = delete;
  weight_update& operator=(weight_update const&) = delete;
  virtual ~weight_update()                       = default;

  /// Where backward writes, by parameter.
  [[nodiscard]] std::span<std::span<float> const> gradients() const { return gradients_; }

  /// Opens a step whose gradients are written on `compute`.
  void begin(stream& compute, step_value<double> learning_rate) {
    learning_rate_ = learning_rate;
    reduction().begin(compute);
  }

  /// The work on `compute` so far completes a gradient.
  void ready(std::size_t parameter, stream& compute) { reduction().ready(parameter, compute); }

  /// `compute` waits for the gradients as all ranks have them.
  void finish(stream& compute) {
    if constexpr (Place::on_host) {
      reduction().finish(compute, patience_);
    } else {
      reduction().finish(compute);
    }
  }

  /// Has the optimizer change the weights, in the order of `compute`.
  virtual void apply(stream& compute) = 0;

  /// What is put on `compute` from now on may read parameters [first, last).
  virtual void wait(std::size_t /*first*/, std::size_t /*last*/, stream& /*compute*/) {}

  /// The numbers of the latest step, in the memory of the place, in the order of `compute`.
  [[nodiscard]] gradlane::step_record const* record() { return reduction().record(); }
  [[nodiscard]] std::size_t bucket_count() { return reduction().plan().buckets().size(); }

  /// Weights and optimizer as a checkpoint holds them. Collective; on rank 0, and good until the
  /// next step.
  [[nodiscard]] virtual model_state sync_state(stream& compute)   = 0;
  virtual void restore(model_state const& state, stream& compute) = 0;

  /// Ranks whose moments differ, so that a checkpoint keeps them of each: 1 or all.
  [[nodiscard]] virtual std::size_t ranks_with_moments() const { return 1; }
  /// Those of another such rank, on rank 0; to be called on both at the same point.
  [[nodiscard]] virtual model_state sync_moments_of(std::size_t /*rank*/, stream& /*compute*/) {
    return {};
  }

  /// Bytes of the optimizer's moments on this rank.
  [[nodiscard]] virtual std::size_t state_bytes() const = 0;

  [[nodiscard]] std::string describe() {
    return reduction().describe() + "optimizer state of a rank: " + std::to_string(state_bytes()) +
           " B\n";
  }

 protected:
  weight_update(Place& place, parameter_list const& list, training_settings const& settings)
      : patience_{settings.patience},
        buckets_{place.gradients, plan_gradients(list, settings, place.ranks.size())} {
    for (auto i = std::size_t{0}; i < list.size(); ++i) {
      gradients_.push_back(buckets_.template gradient<float>(i));
    }
  }

  [[nodiscard]] virtual pipeline& reduction() = 0;
  [[nodiscard]] step_value<double> learning_rate() const { return learning_rate_; }
  [[nodiscard]] std::chrono::seconds patience() const { return patience_; }

  /// Calls `action`; where it throws, peers hear of it instead of waiting.
  template <class Action>
  static void telling_peers(typename Place::communicator& ranks, Action action) {
    try {
      action();
    } catch (...) {
      ranks.abort();
      throw;
    }
  }

  [[nodiscard]] auto& buckets() { return buckets_; }

 private:
  std::chrono::seconds patience_;
  step_value<double> learning_rate_{0};
  gradlane::gradient_buckets<typename Place::lane> buckets_;
  std::vector<std::span<float>> gradients_;  // by parameter, in the buckets
};

}  // namespace bert

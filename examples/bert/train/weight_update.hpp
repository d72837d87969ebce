// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../model.hpp"        // for model
#include "../model_state.hpp"  // for model_state
#include "../parameters.hpp"   // for parameter_list
#include "../step_value.hpp"   // for step_value
#include "pipelines.hpp"       // for make_pipeline, plan_gradients
#include "settings.hpp"        // for training_settings

#include <gradlane/clip/policy.hpp>         // for average
#include <gradlane/clip/report.hpp>         // for step_record, step_report
#include <gradlane/gradient_buckets.hpp>    // for gradient_buckets
#include <gradlane/reduction_pipeline.hpp>  // for reduction_pipeline

#include <array>    // for array
#include <chrono>   // for seconds
#include <cstddef>  // for size_t
#include <memory>   // for make_unique, unique_ptr
#include <span>     // for span
#include <string>   // for string
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

  /// The same in full.
  [[nodiscard]] gradlane::step_report const& sync_report() { return reduction().sync_report(); }

  /// Weights and optimizer as a checkpoint holds them. Collective; on rank 0, and good until the
  /// next step.
  [[nodiscard]] virtual model_state sync_state(stream& compute)   = 0;
  virtual void restore(model_state const& state, stream& compute) = 0;

  [[nodiscard]] std::string describe() { return reduction().describe(); }

 protected:
  weight_update(Place& place, parameter_list const& list, training_settings const& settings)
      : patience_{settings.patience},
        buckets_{place.gradients, plan_gradients(list, settings.bucket_bytes)} {
    for (auto i = std::size_t{0}; i < list.size(); ++i) {
      gradients_.push_back(buckets_.template gradient<float>(i));
    }
  }

  [[nodiscard]] virtual pipeline& reduction() = 0;
  [[nodiscard]] step_value<double> learning_rate() const { return learning_rate_; }
  [[nodiscard]] auto& buckets() { return buckets_; }

 private:
  std::chrono::seconds patience_;
  step_value<double> learning_rate_{0};
  gradlane::gradient_buckets<typename Place::lane> buckets_;
  std::vector<std::span<float>> gradients_;  // by parameter, in the buckets
};

/// Every rank has the whole gradient, and makes the whole step: by average.
template <class Place>
class whole_update final : public weight_update<Place> {
 public:
  using base = weight_update<Place>;
  using typename base::stream;
  using user = model<typename Place::model_device>;

  whole_update(Place& place,
               parameter_list const& list,
               training_settings const& settings,
               std::span<float> weights,
               user& reader,
               float const* loss_scale,
               stream& compute)
      : base{place, list, settings},
        place_{place},
        weights_{weights},
        reader_{reader},
        optimizer_{place.make_optimizer(list, settings.update, base::gradients(), compute)},
        reduction_{make_pipeline(base::buckets(),
                                 place.ranks,
                                 settings,
                                 gradlane::average::ranks{},
                                 {.loss_scale = loss_scale})} {}

  void apply(stream& /*compute*/) override {
    place_.step(optimizer_,
                weights_,
                base::gradients(),
                base::learning_rate(),
                reduction_->status(),
                reader_);
  }

  [[nodiscard]] model_state sync_state(stream& compute) override {
    auto& [parameters, first, second] = copies_;
    return {.steps      = place_.sync_steps(optimizer_),
            .parameters = place_.sync_view(weights_, parameters, compute),
            .first      = place_.sync_view(optimizer_.first_moment(), first, compute),
            .second     = place_.sync_view(optimizer_.second_moment(), second, compute)};
  }

  void restore(model_state const& state, stream& compute) override {
    place_.restore(state, weights_, optimizer_, compute);
    reader_.refresh();
  }

 private:
  [[nodiscard]] typename base::pipeline& reduction() override { return *reduction_; }

  Place& place_;
  std::span<float> weights_;
  user& reader_;
  typename Place::optimizer optimizer_;
  std::unique_ptr<typename base::pipeline> reduction_;
  std::array<std::vector<float>, 3> copies_;
};

/// The way that settings ask for. Collective. Place, weights, model and stream must outlive it.
/// @param weights     flat, in the place's memory.
/// @param loss_scale  that gradients hold, in the place's memory; null: 1.
template <class Place>
[[nodiscard]] std::unique_ptr<weight_update<Place>> make_weight_update(
    Place& place,
    parameter_list const& list,
    training_settings const& settings,
    std::span<float> weights,
    model<typename Place::model_device>& reader,
    float const* loss_scale,
    typename Place::stream& compute) {
  return std::make_unique<whole_update<Place>>(
      place, list, settings, weights, reader, loss_scale, compute);
}

}  // namespace bert

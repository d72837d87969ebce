// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../model.hpp"        // for model
#include "../model_state.hpp"  // for model_state
#include "../parameters.hpp"   // for parameter_list
#include "pipelines.hpp"       // for make_pipeline
#include "settings.hpp"        // for reduce_mode, training_settings
#include "weight_update.hpp"   // for weight_update

#include <gradlane/clip/policy.hpp>  // for adasum, ranks
#include <gradlane/clip/rules.hpp>   // for pipeline_options

#include <array>    // for array
#include <cstddef>  // for size_t
#include <memory>   // for unique_ptr
#include <span>     // for span
#include <vector>   // for vector

namespace bert {

/// Every rank gets the whole joined gradient, by average or Adasum, and makes the whole step.
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
        reduction_{make_reduction(settings, {.loss_scale = loss_scale})} {}

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

  [[nodiscard]] std::size_t state_bytes() const override {
    return 2 * sizeof(float) * weights_.size();
  }

 private:
  [[nodiscard]] std::unique_ptr<typename base::pipeline> make_reduction(
      training_settings const& settings, gradlane::pipeline_options const& options) {
    if (settings.reduce == reduce_mode::adasum) {
      return make_pipeline(
          base::buckets(), place_.ranks, settings, gradlane::reduce::adasum{}, options);
    }
    return make_pipeline(
        base::buckets(), place_.ranks, settings, gradlane::average::ranks{}, options);
  }

  [[nodiscard]] typename base::pipeline& reduction() override { return *reduction_; }

  Place& place_;
  std::span<float> weights_;
  user& reader_;
  typename Place::optimizer optimizer_;
  std::unique_ptr<typename base::pipeline> reduction_;
  std::array<std::vector<float>, 3> copies_;
};

}  // namespace bert

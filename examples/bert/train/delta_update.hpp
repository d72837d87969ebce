// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../model.hpp"        // for model
#include "../model_state.hpp"  // for model_state
#include "../parameters.hpp"   // for parameter_list
#include "pipelines.hpp"       // for make_pipeline
#include "rank_messages.hpp"   // for rank_messages
#include "settings.hpp"        // for training_settings
#include "weight_update.hpp"   // for weight_update

#include <gradlane/bucket_update.hpp>  // for bucket_update
#include <gradlane/clip/policy.hpp>    // for adasum, deltas

#include <array>       // for array
#include <cstddef>     // for size_t
#include <functional>  // for function
#include <memory>      // for unique_ptr
#include <span>        // for span
#include <vector>      // for vector

namespace bert {

/// Every rank's optimizer makes a step of its own gradient, bucket by bucket beside backward;
/// Adasum joins the steps. Moments differ between ranks.
template <class Place>
class delta_update final : public weight_update<Place> {
 public:
  using base = weight_update<Place>;
  using typename base::stream;
  using user = model<typename Place::model_device>;

  delta_update(Place& place,
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
        messages_{
            place.host, place.host_ranks.split(0, place.host_ranks.rank()), settings.patience},
        optimizer_{place.make_delta_optimizer(list, settings.update, compute)},
        reduction_{make_pipeline(base::buckets(),
                                 place.ranks,
                                 settings,
                                 gradlane::reduce::deltas{gradlane::reduce::adasum{}, hook()},
                                 {.loss_scale = loss_scale})} {}

  void apply(stream& /*compute*/) override {
    place_.apply_deltas(optimizer_, weights_, base::gradients(), reduction_->status(), reader_);
  }

  [[nodiscard]] model_state sync_state(stream& compute) override {
    auto result       = own_moments(compute);
    result.parameters = place_.sync_view(weights_, copies_[0], compute);
    return result;
  }

  [[nodiscard]] std::size_t ranks_with_moments() const override { return messages_.size(); }

  [[nodiscard]] model_state sync_moments_of(std::size_t rank, stream& compute) override {
    auto result = own_moments(compute);
    if (rank == messages_.rank()) {
      messages_.sync_send(result.first);
      messages_.sync_send(result.second);
      return result;
    }
    for (auto& moments : others_) {
      moments.resize(weights_.size());
      messages_.sync_receive(rank, moments);
    }
    return {.steps = result.steps, .parameters = {}, .first = others_[0], .second = others_[1]};
  }

  void restore(model_state const& state, stream& compute) override {
    place_.restore(state, weights_, optimizer_, compute);
    reader_.refresh();
  }

  [[nodiscard]] std::size_t state_bytes() const override {
    return 4 * sizeof(float) * weights_.size();
  }

 private:
  using lane   = typename Place::lane;
  using update = gradlane::bucket_update<lane>;

  [[nodiscard]] std::function<void(update const&)> hook() {
    return [this](update const& of) {
      place_.propose(optimizer_, of, weights_, base::learning_rate());
    };
  }

  [[nodiscard]] typename base::pipeline& reduction() override { return *reduction_; }

  [[nodiscard]] model_state own_moments(stream& compute) {
    return {.steps      = place_.sync_steps(optimizer_),
            .parameters = {},
            .first      = place_.sync_own(optimizer_.first_moment(), copies_[1], compute),
            .second     = place_.sync_own(optimizer_.second_moment(), copies_[2], compute)};
  }

  Place& place_;
  std::span<float> weights_;
  user& reader_;
  rank_messages<typename Place::host_communicator> messages_;
  typename Place::delta_optimizer optimizer_;
  std::unique_ptr<typename base::pipeline> reduction_;
  std::array<std::vector<float>, 3> copies_;
  std::array<std::vector<float>, 2> others_;  // another rank's moments, for checkpoints
};

}  // namespace bert

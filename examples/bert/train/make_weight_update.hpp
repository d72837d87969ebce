// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../errors.hpp"      // for input_error
#include "../model.hpp"       // for model
#include "../parameters.hpp"  // for parameter_list
#include "delta_update.hpp"   // for delta_update
#include "settings.hpp"       // for reduce_mode, training_settings
#include "shard_update.hpp"   // for shard_update
#include "weight_update.hpp"  // for weight_update
#include "whole_update.hpp"   // for whole_update

#include <memory>       // for make_unique, unique_ptr
#include <span>         // for span
#include <type_traits>  // for type_identity

namespace bert {

/// The way that settings ask for. Collective. Place, weights, model and stream must outlive it.
/// @throws input_error for a mode that the place does not offer.
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
  auto const make =
      [&]<class Update>(std::type_identity<Update>) -> std::unique_ptr<weight_update<Place>> {
    return std::make_unique<Update>(place, list, settings, weights, reader, loss_scale, compute);
  };
  switch (settings.reduce) {
    case reduce_mode::sharded:
      if constexpr (Place::shards) { return make(std::type_identity<shard_update<Place>>{}); }
      break;
    case reduce_mode::adasum_delta:
      if constexpr (Place::deltas) { return make(std::type_identity<delta_update<Place>>{}); }
      break;
    case reduce_mode::adasum:
    case reduce_mode::average:
      return make(std::type_identity<whole_update<Place>>{});
  }
  throw input_error{"--reduce: this program joins its ranks by average, adasum or sharded"};
}

}  // namespace bert

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../model.hpp"        // for model
#include "../model_state.hpp"  // for model_state
#include "../parameters.hpp"   // for parameter_list
#include "../tensor_part.hpp"  // for tensor_part
#include "pipelines.hpp"       // for make_pipeline
#include "rank_messages.hpp"   // for rank_messages
#include "settings.hpp"        // for shards_of, training_settings
#include "shard_parts.hpp"     // for count_of, parts_in, scatter
#include "weight_update.hpp"   // for weight_update

#include <gradlane/buckets/parts.hpp>     // for bucket_parts
#include <gradlane/buffer_view.hpp>       // for buffer_view
#include <gradlane/clip/policy.hpp>       // for ranks, sharded
#include <gradlane/parameter_shards.hpp>  // for parameter_shards

#include <cstddef>   // for size_t
#include <memory>    // for unique_ptr
#include <optional>  // for optional
#include <span>      // for span
#include <vector>    // for vector

namespace bert {

/// Every rank gets its part of the average, makes that part of the step, and has moments for no
/// more; the new weights go to all ranks while the next forward is under way, layer by layer.
///
///     compute  optimizer ▶ own part into shards ──●gather ──wait▶ unpack ▶ layer ──wait▶ ...
///     gather                                       wait ▶ all-gather, in the order of forward
///
/// The flat weights, which the model reads, are whole on every rank. New ones travel in the memory
/// of the gradients, which the optimizer has read by then.
template <class Place>
class shard_update final : public weight_update<Place> {
 public:
  using base = weight_update<Place>;
  using typename base::stream;
  using user = model<typename Place::model_device>;
  using lane = typename Place::lane;

  shard_update(Place& place,
               parameter_list const& list,
               training_settings const& settings,
               std::span<float> weights,
               user& reader,
               float const* loss_scale,
               stream& compute)
      : base{place, list, settings},
        place_{place},
        list_{list},
        weights_{weights},
        reader_{reader},
        reduction_{make_pipeline(
            base::buckets(),
            place.ranks,
            settings,
            gradlane::reduce::sharded{gradlane::average::ranks{}, shards_of(settings)},
            {.loss_scale = loss_scale})},
        messages_{
            place.host, place.host_ranks.split(0, place.host_ranks.rank()), settings.patience},
        split_{reduction_->plan(), place.ranks.size(), shards_of(settings)},
        parts_{parts_of(messages_.rank())},
        optimizer_{
            place.make_part_optimizer(list, settings.update, base::gradients(), parts_, compute)},
        shards_{base::buckets(), place.ranks, shards_of(settings)} {
    own_.emplace(make_copies(parts_));
    groups_ = make_groups();
  }

  void apply(stream& compute) override {
    auto& device = place_.gradients;
    place_.step_parts(
        optimizer_, weights_, base::gradients(), base::learning_rate(), reduction_->status());
    device.pack(compute, own_->weights, own_->shards, nullptr);
    shards_.gather(compute);
    first_  = {};
    second_ = {};
    for (auto& each : groups_) { each.on_its_way = true; }
    if (!place_.waits_across_steps()) { wait(0, list_.size(), compute); }
  }

  void wait(std::size_t first, std::size_t last, stream& compute) override {
    for (auto& each : groups_) {
      if (!each.on_its_way || each.first < first || each.last > last) { continue; }
      base::telling_peers(place_.ranks, [&] {
        place_.ranks.poll();
        for (auto i = each.first; i < each.last; ++i) { shards_.wait(i, compute); }
        place_.gradients.pack(compute, each.copies.shards, each.copies.weights, nullptr);
        if constexpr (Place::on_host) { place_.gradients.sync(compute, base::patience()); }
      });
      reader_.refresh(each.first, each.last);
      each.on_its_way = false;
    }
  }

  [[nodiscard]] model_state sync_state(stream& compute) override {
    wait(0, list_.size(), compute);
    auto const first  = sync_gather(optimizer_.first_moment(), first_, compute);
    auto const second = sync_gather(optimizer_.second_moment(), second_, compute);
    return {.steps      = place_.sync_steps(optimizer_),
            .parameters = place_.sync_view(weights_, copy_, compute),
            .first      = first,
            .second     = second};
  }

  void restore(model_state const& state, stream& compute) override {
    for (auto& each : groups_) { each.on_its_way = false; }
    place_.restore(state, weights_, optimizer_, compute);
    reader_.refresh();
  }

  [[nodiscard]] std::size_t state_bytes() const override {
    return 2 * sizeof(float) * count_of(parts_);
  }

 private:
  /// The same elements in both places.
  struct list_pair {
    typename lane::tensor_list weights;
    typename lane::tensor_list shards;
  };
  /// Parameters that the model begins to use together.
  struct group {
    std::size_t first;
    std::size_t last;
    list_pair copies;
    bool on_its_way = false;
  };

  [[nodiscard]] typename base::pipeline& reduction() override { return *reduction_; }

  [[nodiscard]] std::vector<tensor_part> parts_of(std::size_t rank) const {
    return parts_in(reduction_->plan(), [&](std::size_t bucket) {
      return split_.part(bucket, static_cast<int>(rank));
    });
  }

  [[nodiscard]] list_pair make_copies(std::span<tensor_part const> parts) {
    auto weights = std::vector<gradlane::buffer_view>{};
    auto shards  = std::vector<gradlane::buffer_view>{};
    for (auto const& [tensor, begin, size] : parts) {
      weights.emplace_back(list_.slice(weights_, tensor).subspan(begin, size));
      shards.push_back(shards_.parameter(tensor).subview(begin, size));
    }
    return {place_.gradients.make_tensor_list(weights), place_.gradients.make_tensor_list(shards)};
  }

  [[nodiscard]] std::vector<group> make_groups() {
    auto result = std::vector<group>{};
    auto first  = std::size_t{0};
    auto add    = [&](std::size_t last) {
      auto parts = std::vector<tensor_part>{};
      for (auto i = first; i < last; ++i) { parts.push_back({i, 0, list_[i].size}); }
      result.push_back({first, last, make_copies(parts)});
      first = last;
    };
    add(list_.first_layer);
    while (first < list_.heads()) { add(first + list_.per_layer); }
    add(list_.size());
    return result;
  }

  /// The moments of all ranks' parts in one flat vector, on rank 0.
  [[nodiscard]] std::span<float const> sync_gather(std::span<float const> own,
                                                   std::vector<float>& flat,
                                                   stream& compute) {
    auto memory       = std::vector<float>{};
    auto const values = place_.sync_own(own, memory, compute);
    if (messages_.rank() != 0) {
      messages_.sync_send(values);
      return {};
    }
    flat.resize(list_.total());
    scatter(list_, parts_, values, flat);
    for (auto rank = std::size_t{1}; rank < messages_.size(); ++rank) {
      auto const parts = parts_of(rank);
      auto received    = std::vector<float>(count_of(parts));
      messages_.sync_receive(rank, received);
      scatter(list_, parts, received, flat);
    }
    return flat;
  }

  Place& place_;
  parameter_list const& list_;
  std::span<float> weights_;
  user& reader_;
  std::unique_ptr<typename base::pipeline> reduction_;
  rank_messages<typename Place::host_communicator> messages_;
  gradlane::bucket_parts split_;
  std::vector<tensor_part> parts_;  // of this rank
  typename Place::optimizer optimizer_;
  std::optional<list_pair> own_;
  std::vector<group> groups_;
  std::vector<float> first_;  // of all ranks, for checkpoints
  std::vector<float> second_;
  std::vector<float> copy_;
  gradlane::parameter_shards<lane, typename Place::communicator> shards_;  // last: it drains first
};

}  // namespace bert

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../config.hpp"              // for model_config
#include "../errors.hpp"              // for input_error
#include "../loss_scale.hpp"          // for loss_scale_settings
#include "../optimizer_settings.hpp"  // for optimizer_settings
#include "../schedule.hpp"            // for schedule

#include <gradlane/balance/deal.hpp>   // for dealing
#include <gradlane/buckets/parts.hpp>  // for shard_by

#include <chrono>    // for seconds
#include <cstddef>   // for size_t
#include <cstdint>   // for uint32_t
#include <optional>  // for optional

namespace bert {

enum class clip_mode { none, after, before, bucketwise };

/// How what the ranks computed becomes one step of the weights.
enum class reduce_mode {
  average,       // of gradients; every rank makes the whole step
  adasum,        // of gradients
  adasum_delta,  // of the steps that each rank would make by its own gradients and moments
  sharded        // average; every rank makes its part of the step, and has state for that alone
};

/// Whether a rank's gradient is that of the mean loss of its own batch, not of all ranks' batches.
[[nodiscard]] constexpr bool by_own_batch(reduce_mode mode) {
  return mode == reduce_mode::adasum || mode == reduce_mode::adasum_delta;
}

/// What a training run computes; nothing of it knows how many ranks there are.
struct training_settings {
  model_config model;
  std::size_t batch_size  = 16;  // sequences of a step, over all ranks and micro-steps
  std::size_t micro_steps = 1;
  gradlane::balance::dealing deal{gradlane::balance::dealing::lpt};
  std::size_t window = 8;  // steps whose samples are dealt at once
  std::uint32_t seed = 1;
  optimizer_settings update;
  std::optional<loss_scale_settings> loss_scale;  // where values are in fp16
  schedule rate;
  reduce_mode reduce       = reduce_mode::average;
  clip_mode clip           = clip_mode::bucketwise;
  double clip_norm         = 1.0;
  std::size_t bucket_bytes = std::size_t{4} << 20U;
  std::chrono::seconds patience{120};  // with other ranks in a step

  /// @throws input_error for what does not go together.
  void check() const {
    rate.check();
    update.check();
    if (reduce == reduce_mode::adasum_delta && clip == clip_mode::after) {
      throw input_error{
          "--reduce adasum-delta joins the ranks' updates, so that no joined gradient is left for "
          "--clip after; choose --clip none, before or bucketwise"};
    }
  }
};

/// What a rank owns of a sharded step: LAMB needs the norms of whole tensors.
[[nodiscard]] inline gradlane::shard_by shards_of(training_settings const& settings) {
  return settings.update.rule == update_rule::lamb ? gradlane::shard_by::parameters
                                                   : gradlane::shard_by::elements;
}

}  // namespace bert

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../config.hpp"      // for model_config
#include "../loss_scale.hpp"  // for loss_scale_settings
#include "../optimizer.hpp"   // for optimizer_settings
#include "../schedule.hpp"    // for schedule

#include <gradlane/balance/deal.hpp>  // for dealing

#include <chrono>    // for seconds
#include <cstddef>   // for size_t
#include <cstdint>   // for uint32_t
#include <optional>  // for optional

namespace bert {

enum class clip_mode { none, after, before, bucketwise };

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
  clip_mode clip           = clip_mode::bucketwise;
  double clip_norm         = 1.0;
  std::size_t bucket_bytes = std::size_t{4} << 20U;
  std::chrono::seconds patience{120};  // with other ranks in a step
};

}  // namespace bert

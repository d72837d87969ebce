// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../errors.hpp"      // for input_error
#include "../parameters.hpp"  // for parameter_list
#include "settings.hpp"       // for training_settings, clip_mode

#include <gradlane/buckets/parameter.hpp>   // for parameter
#include <gradlane/buckets/parts.hpp>       // for shard_by
#include <gradlane/buckets/plan.hpp>        // for bucket_options, bucket_plan
#include <gradlane/clip/policy.hpp>         // for after, before, bucketwise, none, automatic, skip
#include <gradlane/clip/rules.hpp>          // for pipeline_options
#include <gradlane/clip/threshold.hpp>      // for equal
#include <gradlane/clip_allreduce.hpp>      // for clip_allreduce
#include <gradlane/gradient_buckets.hpp>    // for gradient_buckets
#include <gradlane/reduction_pipeline.hpp>  // for reduction_pipeline

#include <algorithm>  // for min
#include <cstddef>    // for size_t
#include <memory>     // for make_unique, unique_ptr
#include <utility>    // for move
#include <vector>     // for vector

namespace bert {

/// The plan of a model's gradients: fp32, in buckets of about the size wanted.
[[nodiscard]] inline gradlane::bucket_plan plan_gradients(parameter_list const& list,
                                                          training_settings const& settings,
                                                          int ranks) {
  auto parameters = std::vector<gradlane::parameter>{};
  for (auto const& p : list) { parameters.push_back({.name = p.name, .count = p.size}); }
  auto options            = gradlane::bucket_options{};
  options.cap_bytes       = settings.bucket_bytes;
  options.first_cap_bytes = std::min(settings.bucket_bytes, std::size_t{1} << 20U);
  if (settings.reduce == reduce_mode::sharded &&
      shards_of(settings) == gradlane::shard_by::elements) {
    options.pad_to = static_cast<std::size_t>(ranks);
  }
  return gradlane::bucket_plan{std::move(parameters), options};
}

template <class Reduction>
inline constexpr bool joins_deltas = false;
template <class Join, class Update>
inline constexpr bool joins_deltas<gradlane::reduce::deltas<Join, Update>> = true;

/// The pipeline for the clip mode wanted; a step in which a gradient is not finite is skipped.
/// @param reduction  of gradlane::average or gradlane::reduce.
template <class Lane, class Comm, class Reduction>
[[nodiscard]] std::unique_ptr<gradlane::reduction_pipeline<Lane, Comm>> make_pipeline(
    gradlane::gradient_buckets<Lane>& buckets,
    Comm& comm,
    training_settings const& settings,
    Reduction reduction,
    gradlane::pipeline_options const& options = {}) {
  using pipeline  = gradlane::reduction_pipeline<Lane, Comm>;
  namespace clip  = gradlane::clip;
  auto const make = [&](auto policy) -> std::unique_ptr<pipeline> {
    using skip = gradlane::non_finite::skip;
    using made = gradlane::clip_allreduce<Lane, Comm, decltype(policy), Reduction, skip>;
    return std::make_unique<made>(
        buckets, comm, policy, reduction, skip{}, gradlane::scaling::automatic{}, options);
  };
  auto const bound = settings.clip_norm;
  switch (settings.clip) {
    case clip_mode::none:
      return make(clip::none{});
    case clip_mode::after:
      if constexpr (!joins_deltas<Reduction>) {
        return make(clip::after{.max_norm = bound, .in_place = false});
      }
      throw input_error{"updates cannot be clipped after they were joined"};
    case clip_mode::before:
      return make(clip::before{bound});
    case clip_mode::bucketwise:
      break;
  }
  return make(clip::bucketwise{gradlane::threshold::equal{bound}});
}

}  // namespace bert

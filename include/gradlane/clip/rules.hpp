// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/clip/coefficient.hpp>  // for loss_scaling
#include <gradlane/clip/policy.hpp>  // for average, clip_scope, divide, non_finite, reduce, scaling
#include <gradlane/clip/threshold.hpp>  // for adaptive
#include <gradlane/concepts.hpp>        // for timeout
#include <gradlane/error.hpp>           // for expects
#include <gradlane/types.hpp>           // for reduction

#include <chrono>       // for minutes
#include <cmath>        // for sqrt
#include <type_traits>  // for is_same_v

namespace gradlane {

/// What a pipeline is told beyond its policies. All ranks give the same values.
struct pipeline_options {
  /// S, in device memory, or null: gradients hold S·g. Read during a step; change it between. One
  /// that is not positive and finite is as Inf in the gradients.
  float const* loss_scale{nullptr};
  /// Divide by S: before the reduction, and for clip::after together with its coefficient. Without,
  /// results stay multiplied by S, as 16-bit reductions of small gradients need.
  bool unscale{true};
  /// For the checks across ranks when the pipeline is made and when the order is learned.
  timeout construction_deadline{std::chrono::minutes{5}};
};

namespace detail {

/// What the policies of a pipeline come to, as plain numbers: the machinery branches on these, so
/// that it is compiled once for a device and a communicator, whatever the policies.
struct pipeline_rules {
  clip_scope scope{clip_scope::none};
  bool applies_late{false};     ///< clip::after multiplies in a last pass
  double adaptive_factor{0.0};  ///< threshold::adaptive; 0: the bounds are fixed
  double adaptive_decay{-1.0};
  bool agrees_on_averages{false};
  bool weighted{false};
  double share{1.0};           ///< this rank's part in the average before the reduction
  double weight_divisor{0.0};  ///< of average::weighted; 0: the sum of the weights
  float post{1.0F};            ///< factor after the reduction
  bool scales{false};          ///< buckets are multiplied by a coefficient before the reduction
  bool in_reduction{false};    ///< ... by the communicator
  reduction operation{reduction::sum};
  bool sharded{false};  ///< each rank has a part of the results only
  bool deltas{false};   ///< the trainer's update stands between coefficient and reduction
  bool detects{false};  ///< Inf and NaN skip the step
  loss_scaling loss{};
  loss_scaling loss_before{};  ///< as coefficients before the reduction see it

  [[nodiscard]] bool measures_locally() const noexcept {
    return deltas || gradlane::measures_locally(scope);
  }
  [[nodiscard]] bool reads_back() const noexcept {
    return scope == clip_scope::reduced_total || detects;
  }
};

inline void apply_reduction(pipeline_rules& /*rules*/, average::none /*policy*/, double /*ranks*/) {
}

inline void apply_reduction(pipeline_rules& rules, average::ranks policy, double ranks) {
  switch (policy.placement) {
    case divide::before:
      rules.share = 1.0 / ranks;
      break;
    case divide::after:
      rules.post = static_cast<float>(1.0 / ranks);
      break;
    case divide::split:
      rules.share  = 1.0 / std::sqrt(ranks);
      rules.post   = static_cast<float>(1.0 / std::sqrt(ranks));
      rules.scales = true;
      break;
  }
  auto const plain = policy.placement == divide::before && !rules.scales;
  if (plain) { rules.operation = reduction::average; }
}

inline void apply_reduction(pipeline_rules& rules, average::weighted policy, double ranks) {
  rules.weighted       = true;
  rules.scales         = true;
  rules.weight_divisor = policy.by_ranks ? ranks : 0.0;
}

template <class Average>
void apply_reduction(pipeline_rules& rules, reduce::sharded<Average> policy, double ranks) {
  apply_reduction(rules, policy.average, ranks);
  rules.in_reduction = false;
  rules.sharded      = true;
}

inline void apply_reduction(pipeline_rules& rules, reduce::adasum /*policy*/, double /*ranks*/) {
  rules.in_reduction = false;
}

inline void apply_reduction(pipeline_rules& rules,
                            reduce::adasum_hierarchical policy,
                            double /*ranks*/) {
  expects(policy.in_node != reduction::max,
          "reduce::adasum_hierarchical: in_node must be reduction::average or sum");
  rules.in_reduction = false;
}

/// The coefficients are the update's, so that nothing is multiplied before the reduction.
template <class Join, class Update>
void apply_reduction(pipeline_rules& rules,
                     reduce::deltas<Join, Update> const& policy,
                     double ranks) {
  rules.scales = false;
  apply_reduction(rules, policy.join, ranks);
  expects(!rules.scales,
          "reduce::deltas: divide::split would multiply before the reduction; use divide::before "
          "or divide::after");
  rules.share        = 1.0;
  rules.in_reduction = false;
  rules.deltas       = true;
}

template <class Clip>
void apply_clip(pipeline_rules& rules, Clip const& clip) {
  rules.scope = Clip::scope;
  if constexpr (Clip::scope == clip_scope::reduced_total) { rules.applies_late = clip.in_place; }
  if constexpr (std::is_same_v<Clip, clip::bucketwise<threshold::adaptive>>) {
    rules.adaptive_factor    = clip.threshold.factor;
    rules.adaptive_decay     = clip.threshold.decay;
    rules.agrees_on_averages = clip.threshold.agreed;
  }
}

/// @param can_scale  the communicator has capabilities.premultiplied_sum.
template <clip_policy Clip, class Reduction, class NonFinite, class Scaling>
[[nodiscard]] pipeline_rules make_rules(Clip const& clip,
                                        Reduction const& reduction,
                                        pipeline_options const& options,
                                        int ranks,
                                        bool can_scale) {
  auto rules = pipeline_rules{};
  apply_clip(rules, clip);
  auto const after   = rules.scope == clip_scope::reduced_total;
  rules.loss         = {.scale = options.loss_scale, .unscale = options.unscale};
  rules.loss_before  = {.scale = options.loss_scale, .unscale = options.unscale && !after};
  rules.scales       = rules.measures_locally() || (rules.scope == clip_scope::none &&
                                              options.loss_scale != nullptr && options.unscale);
  rules.detects      = NonFinite::detects;
  rules.in_reduction = can_scale && !std::is_same_v<Scaling, scaling::in_place>;
  apply_reduction(rules, reduction, static_cast<double>(ranks));
  expects(!rules.deltas || options.loss_scale == nullptr || options.unscale,
          "reduce::deltas: an optimizer needs gradients without their loss scale; leave "
          "pipeline_options::unscale set");
  return rules;
}

}  // namespace detail
}  // namespace gradlane

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/adasum/device.hpp>          // for adasum_device
#include <gradlane/buckets/plan.hpp>           // for bucket_plan
#include <gradlane/clip/policy.hpp>            // for average, clip_policy, non_finite, reduce, ...
#include <gradlane/clip/rules.hpp>             // for make_rules, pipeline_options
#include <gradlane/clip/threshold.hpp>         // for adaptive
#include <gradlane/concepts.hpp>               // for communicator_for, device
#include <gradlane/detail/adasum_reducer.hpp>  // for make_reducer
#include <gradlane/detail/bucket_reducer.hpp>  // for make_reducer
#include <gradlane/detail/hierarchical_reducer.hpp>  // for make_reducer
#include <gradlane/detail/local_update.hpp>          // for local_update
#include <gradlane/detail/shard_reducer.hpp>         // for make_reducer
#include <gradlane/gradient_buckets.hpp>             // for gradient_buckets
#include <gradlane/reduction_pipeline.hpp>           // for reduction_pipeline
#include <gradlane/types.hpp>                        // for dtype, reduction

#include <string>       // for string
#include <type_traits>  // for is_same_v
#include <utility>      // for declval, move

namespace gradlane {

/// Clips and all-reduces gradients bucket by bucket while backward goes on.
///
/// `Clip`, `Reduction` (of `average` or `reduce`) and `NonFinite` say what is computed (formulas in
/// clip/policy.hpp; describe() prints them), `Scaling` how; reduction_pipeline says how steps are
/// made.
///
/// Source: Kim et al. 2024, arXiv 2402.02447.
template <device Device,
          communicator_for<Device> Comm,
          clip_policy Clip,
          class Reduction = average::ranks,
          class NonFinite = non_finite::propagate,
          class Scaling   = scaling::automatic>
class clip_allreduce : public reduction_pipeline<Device, Comm> {
  using base = reduction_pipeline<Device, Comm>;

  using join = decltype(detail::joined_by(std::declval<Reduction const&>()));

  static constexpr auto weighted = detail::weighs<Reduction>;
  static constexpr auto deltas   = detail::is_deltas<Reduction>;
  static constexpr auto adasum =
      std::is_same_v<join, reduce::adasum> || std::is_same_v<join, reduce::adasum_hierarchical>;
  static constexpr auto adaptive = std::is_same_v<Clip, clip::bucketwise<threshold::adaptive>>;
  static constexpr auto sums     = Comm::supports(reduction::sum, dtype::fp64);

  static_assert(!std::is_same_v<Scaling, scaling::premultiplied> ||
                    scaling_communicator_for<Comm, Device>,
                "clip_allreduce: scaling::premultiplied needs a communicator with "
                "capabilities.premultiplied_sum; use scaling::automatic");
  static_assert(!adasum || adasum_device<Device>,
                "clip_allreduce: reduce::adasum needs a device with dot_products and combine; see "
                "adasum_device");
  static_assert(!adasum || !std::is_same_v<Scaling, scaling::premultiplied>,
                "clip_allreduce: reduce::adasum cannot multiply on the way; use "
                "scaling::automatic");
  static_assert(
      !deltas || Clip::scope != clip_scope::reduced_total,
      "clip_allreduce: clip::after needs the reduced gradient, which reduce::deltas never "
      "forms; use clip::bucketwise or clip::before");
  static_assert(!detail::is_deltas<join>,
                "clip_allreduce: reduce::deltas takes one update; join its deltas by an average, "
                "or by another policy of reduce");
  static_assert(!deltas || !detail::weighs<join>,
                "clip_allreduce: reduce::deltas has no weights per rank; use another average");
  static_assert(!deltas || !std::is_same_v<Scaling, scaling::premultiplied>,
                "clip_allreduce: reduce::deltas gives coefficients to the update, so that nothing "
                "is multiplied on the way; use scaling::automatic");
  static_assert(!weighted || sums,
                "clip_allreduce: average::weighted needs a communicator that supports "
                "reduction::sum of fp64");
  static_assert(!adaptive || sums,
                "clip_allreduce: threshold::adaptive needs a communicator that supports "
                "reduction::sum of fp64");

 public:
  using typename base::stream;

  /// Collective; blocks until all ranks have made theirs.
  /// @throws contract_error for bad bounds and for dtypes that the communicator cannot sum,
  ///   plan_mismatch_error where ranks differ in plan or policies, timeout_error where one is
  ///   missing.
  clip_allreduce(gradient_buckets<Device>& buckets,
                 Comm& comm,
                 Clip clip,
                 Reduction reduction      = {},
                 NonFinite /*non_finite*/ = {},
                 Scaling /*scaling*/      = {},
                 pipeline_options options = {})
      : base{buckets,
             comm,
             make_rules(clip, reduction, comm, options),
             detail::make_reducer(buckets,
                                  comm,
                                  make_rules(clip, reduction, comm, options),
                                  detail::joined_by(reduction)),
             make_update(reduction),
             describe_policies(clip, reduction, options),
             std::is_same_v<NonFinite, non_finite::fail>,
             clip.bounds(buckets.plan()),
             options.construction_deadline},
        clip_{std::move(clip)},
        deadline_{options.construction_deadline} {}

  /// Takes part, with weight 0, in the steps of ranks that still have data, until none has.
  ///
  /// For data that ends earlier on some ranks: every rank calls it at its end, in place of begin.
  /// After each such step `on_step()` runs, with results as after finish(compute), so that this
  /// rank may update its parameters, or its part of them, as the others do. Blocks.
  /// @throws state_error while a step is open, or after micro-steps without a last one.
  template <class OnStep>
  void sync_join(stream& compute, OnStep&& on_step)
    requires weighted
  {
    base::join(compute, on_step);
  }

  /// Rebuilds the plan in the order in which rank 0's gradients became ready in the last step.
  ///
  /// Collective, between steps; blocks. Contents of the buckets, reports, counters and running
  /// averages are lost, and spans of bound gradients must be fetched anew. Under reduce::sharded
  /// ranks own other parts afterwards: learn the order before there are parameter_shards.
  /// @throws state_error before the first step; contract_error where the new buckets do not fall
  ///   into the equal parts that a reduction needs; timeout_error where a rank is missing. But for
  ///   the first, the communicator is then aborted.
  void sync_learn_order() {
    base::learn_order([&](bucket_plan const& plan) { return clip_.bounds(plan); }, deadline_);
  }

 private:
  [[nodiscard]] static detail::pipeline_rules make_rules(Clip const& clip,
                                                         Reduction const& reduction,
                                                         Comm const& comm,
                                                         pipeline_options const& options) {
    return detail::make_rules<Clip, Reduction, NonFinite, Scaling>(
        clip, reduction, options, comm.size(), scaling_communicator_for<Comm, Device>);
  }

  [[nodiscard]] static detail::local_update<Device> make_update(Reduction const& reduction) {
    if constexpr (deltas) {
      return detail::local_update<Device>{reduction.update};
    } else {
      return {};
    }
  }

  [[nodiscard]] static std::string describe_policies(Clip const& clip,
                                                     Reduction const& reduction,
                                                     pipeline_options const& options) {
    auto text = "  clip: " + clip.describe() + "\n  over ranks: " + reduction.describe() +
                "\n  non-finite: " + NonFinite::describe() + "\n";
    if (options.loss_scale != nullptr) {
      text += "  loss scale: multiplies the bounds";
      text += options.unscale ? ", is divided out\n" : ", stays in the result\n";
    }
    return text;
  }

  Clip clip_;
  timeout deadline_;
};

}  // namespace gradlane

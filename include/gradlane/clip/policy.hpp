// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/buckets/parts.hpp>       // for shard_by
#include <gradlane/buckets/plan.hpp>        // for bucket_plan
#include <gradlane/clip/threshold.hpp>      // for threshold_policy, equal, adaptive, check_bound
#include <gradlane/detail/host_device.hpp>  // for GRADLANE_HOST_DEVICE
#include <gradlane/detail/to_text.hpp>      // for to_text
#include <gradlane/types.hpp>               // for name_of, reduction

#include <concepts>     // for same_as
#include <cstdint>      // for uint8_t
#include <limits>       // for numeric_limits
#include <string>       // for string
#include <type_traits>  // for is_same_v
#include <vector>       // for vector

namespace gradlane {

/// What a clip policy measures, and so when it can act.
enum class clip_scope : std::uint8_t {
  none,          ///< nothing
  local_bucket,  ///< this rank's norm of each bucket, before its reduction
  local_total,   ///< this rank's norm of the whole gradient, before any reduction
  reduced_total  ///< the norm of the whole reduced gradient
};

[[nodiscard]] GRADLANE_HOST_DEVICE constexpr bool measures_locally(clip_scope scope) noexcept {
  return scope == clip_scope::local_bucket || scope == clip_scope::local_total;
}

/// W ranks, gradient g_r on rank r, buckets b = 1..B; clip(x, t) = x · min(1, t / ‖x‖₂).
///
/// `scope` fixes the algorithm; `bounds(plan)` gives one bound per bucket for local_bucket and one
/// bound otherwise; `describe()` states the formula.
template <class C>
concept clip_policy = requires(C const& c, bucket_plan const& plan) {
  { C::scope } -> std::same_as<clip_scope const&>;
  { c.bounds(plan) } -> std::same_as<std::vector<double>>;
  { c.describe() } -> std::same_as<std::string>;
};

namespace clip {

/// mean_r g_r. Overlaps fully.
struct none {
  static constexpr auto scope = clip_scope::none;
  [[nodiscard]] static std::vector<double> bounds(bucket_plan const& /*plan*/) {
    return {std::numeric_limits<double>::infinity()};
  }
  [[nodiscard]] static std::string describe() { return "none: mean_r g_r"; }
};

/// clip(mean_r g_r, c): the usual "clip by global norm". Overlaps fully.
///
/// The norm is accumulated bucket by bucket as reductions finish. With `in_place` the gradients are
/// multiplied in one pass at the end; without, the factor is left in step_status::coefficient for
/// the optimizer to fold in.
struct after {
  double max_norm;  ///< c
  bool in_place{true};

  static constexpr auto scope = clip_scope::reduced_total;
  [[nodiscard]] std::vector<double> bounds(bucket_plan const& /*plan*/) const {
    detail::check_bound(max_norm, "clip::after");
    return {max_norm};
  }
  [[nodiscard]] std::string describe() const {
    return "after: clip(mean_r g_r, c), c = " + detail::to_text(max_norm) +
           (in_place ? "" : ", coefficient left to the optimizer");
  }
};

/// mean_r clip(g_r, c). No overlap: it needs the whole local gradient first.
struct before {
  double max_norm;  ///< c

  static constexpr auto scope = clip_scope::local_total;
  [[nodiscard]] std::vector<double> bounds(bucket_plan const& /*plan*/) const {
    detail::check_bound(max_norm, "clip::before");
    return {max_norm};
  }
  [[nodiscard]] std::string describe() const {
    return "before: mean_r clip(g_r, c), c = " + detail::to_text(max_norm);
  }
};

/// For each bucket b: mean_r clip(g_{r,b}, t_b). Overlaps fully.
///
/// The number of buckets and the plan are part of the algorithm.
/// Source: Kim et al. 2024, arXiv 2402.02447 ("bucket-wise gradient clipping before all-reduce").
template <threshold_policy Threshold>
struct bucketwise {
  Threshold threshold;

  static constexpr auto scope = clip_scope::local_bucket;
  [[nodiscard]] std::vector<double> bounds(bucket_plan const& plan) const {
    return threshold.values(plan);
  }
  [[nodiscard]] std::string describe() const {
    return "bucketwise: for each b mean_r clip(g_{r,b}, t_b), " + threshold.describe();
  }
};

template <class Threshold>
bucketwise(Threshold) -> bucketwise<Threshold>;

}  // namespace clip

/// Where the division by the number of ranks happens; it matters to 16-bit gradients.
///
/// Factors are floats, so that fp64 gradients are divided to 6e-8 by `after` and `split`. With W
/// ranks of fp16: `before` underflows below W · 6e-8, `after` overflows above 65504 / W,
/// `split` (1/√W on each side) keeps the middle. For `none` and `after` clipping, `before` is the
/// communicator's own average, which reduces with more than 16 bits where it can.
enum class divide : std::uint8_t { before, after, split };

namespace average {

/// Σ_r x_r.
struct none {
  [[nodiscard]] static std::string describe() { return "none: sum over ranks"; }
};

/// Σ_r x_r / W.
struct ranks {
  divide placement{divide::before};
  [[nodiscard]] std::string describe() const {
    switch (placement) {
      case divide::before:
        return "ranks: 1/W with the sum";
      case divide::after:
        return "ranks: 1/W after the sum";
      case divide::split:
        return "ranks: 1/sqrt(W) before and after the sum";
    }
    return "";
  }
};

/// Σ_r w_r x_r / Σ_r w_r, w_r ≥ 0 given to begin() each step, such as the tokens of the rank.
///
/// A rank of weight 0 contributes nothing, whatever its buffers hold; if all weights are 0 the
/// result is 0. With `by_ranks` the divisor is W. One all-reduce of 16 bytes a step.
struct weighted {
  bool by_ranks{false};
  [[nodiscard]] std::string describe() const {
    return by_ranks ? "weighted: sum_r w_r x_r / W" : "weighted: sum_r w_r x_r / sum_r w_r";
  }
};

}  // namespace average

namespace detail {

template <class Policy>
inline constexpr bool is_average =
    std::is_same_v<Policy, average::none> || std::is_same_v<Policy, average::ranks> ||
    std::is_same_v<Policy, average::weighted>;

}  // namespace detail

/// Ways to join the gradients of the ranks that are no averages; they stand in the place of one.
namespace reduce {

/// Adasum: parameter by parameter the tree over all ranks of
///
///     adasum(a, b) = (1 - a·b / (2‖a‖²)) a + (1 - a·b / (2‖b‖²)) b
///
/// which adds what is orthogonal and averages what is parallel, so that more ranks do not ask for
/// another learning rate. Clipping comes first where it is local, last for clip::after; each rank's
/// gradient is that of its own batch, so that its losses are to be averaged over that alone. See
/// adasum_all_reduce for the tree, precision and cost, step_report::orthogonality for a measure.
///
/// Source: Maleki et al. 2020, arXiv 2006.02924.
struct adasum {
  [[nodiscard]] static std::string describe() {
    return "adasum: for mean_r read, parameter by parameter, the tree over the ranks of "
           "adasum(a, b) = (1 - a.b / (2|a|^2)) a + (1 - a.b / (2|b|^2)) b, neighbours first, "
           "surplus ranks before all";
  }
};

/// Inside each node the mean or sum of its ranks' gradients, and Adasum over the nodes: with
/// x_n = mean_r g_r over the ranks r of node n, parameter by parameter the tree over x_0, x_1, …
/// of adasum(a, b) as above, nodes in the order of their lowest ranks.
///
/// Each rank takes one part of every bucket over to the other nodes (reduce-scatter inside the
/// node, Adasum across nodes, all-gather inside the node), so that links between nodes carry as
/// much as for one rank a node. Unlike adasum's, results depend on which ranks share a node. A sum
/// gives the results of the mean, times the ranks of a node. Clipping as for adasum;
/// step_report::orthogonality is that of the x_n.
///
/// All nodes must have equally many ranks, into as many equal parts of which buckets fall
/// (bucket_options::pad_to): else the pipeline throws contract_error on all ranks when it is made.
///
/// A rank that is lost fails the step of all others where the device skips what follows a failure,
/// as the host does. Over NCCL, streams go on: ranks that share neither node nor place in it with
/// the lost one may then end that step with wrong results and without an error, and learn of it in
/// the next: write no checkpoint before that.
struct adasum_hierarchical {
  reduction in_node{reduction::average};  ///< or sum
  /// The node that this rank is on: any number >= 0, equal on the ranks that share one. Negative on
  /// all ranks: as the communicator's node_group() says.
  int node{-1};

  [[nodiscard]] std::string describe() const {
    auto text = std::string{"adasum_hierarchical: for mean_r read, parameter by parameter, the "};
    text +=
        "tree over the nodes of adasum(a, b) = (1 - a.b / (2|a|^2)) a + (1 - a.b / (2|b|^2)) b, "
        "neighbours first, surplus nodes before all, of the ";
    text.append(name_of(in_node)).append(" over each node's ranks; nodes ");
    return text.append(node < 0 ? "as the communicator says" : "as given");
  }
};

/// The sum or average that `Average` says, of which each rank keeps its part of each bucket: half
/// of an all-reduce. The other half, parameter_shards, brings the updated parameters to all ranks.
///
/// By elements, rank r of W keeps part r of W equal parts, into which buckets must fall
/// (bucket_options::pad_to). By parameters it keeps whole ones, as bucket_parts deals them: for
/// optimizers by layer such as LAMB, at the price of summing outside of the communicator's own
/// reduction, in rank order, in fp32 (fp64 for fp64). What lies outside of a rank's part is
/// undefined after the step. Where a policy looks at results (clip::after, non_finite::skip
/// and fail), their squares are summed over the parts by one small all-reduce a step, so that every
/// rank uses the same bits.
template <class Average = average::ranks>
struct sharded {
  static_assert(detail::is_average<Average>,
                "reduce::sharded keeps parts of a sum or an average: give average::none, ranks or "
                "weighted");

  Average average{};
  shard_by by{shard_by::elements};

  [[nodiscard]] std::string describe() const {
    return average.describe() + (by == shard_by::elements
                                     ? "; sharded: rank r keeps part r of W of each bucket"
                                     : "; sharded: each rank keeps whole parameters");
  }
};

template <class Average>
sharded(Average) -> sharded<Average>;
template <class Average>
sharded(Average, shard_by) -> sharded<Average>;

/// Joins not the ranks' gradients but what the optimizer of each rank makes of its own,
///
///     d_r = update(clip(g_r), state_r, weights)
///
/// by `Join`: a policy of this namespace or an average. The optimizer works bucket by bucket beside
/// backward, as bucket_update says, and the results are the joined deltas, which the trainer adds
/// to its weights unless step_status::skip tells not to. Every rank has optimizer state of its own.
///
/// Clipping is that of the gradient, so before the update: clip::after does not serve, and
/// clip::before leaves nothing to overlap. Averages divide deltas, never gradients; weights per
/// rank and divide::split, which multiply before the reduction, are refused. Takes one pass over
/// the gradients for their norms, and one over the results where Inf and NaN are looked for.
///
/// Source: Maleki et al. 2020, arXiv 2006.02924, on optimizers with state.
template <class Join, class Update>
struct deltas {
  Join join;
  /// Copyable, and callable as void(bucket_update<Device> const&). A copy is kept; what it refers
  /// to must outlive the pipeline.
  Update update;

  [[nodiscard]] std::string describe() const {
    return "deltas: for clip(g_r) read what the optimizer of rank r makes of it; joined by " +
           join.describe();
  }
};

template <class Join, class Update>
deltas(Join, Update) -> deltas<Join, Update>;

}  // namespace reduce

namespace detail {

/// What joins the buckets under a reduction policy: the policy itself but for reduce::deltas.
template <class Reduction>
[[nodiscard]] constexpr Reduction joined_by(Reduction const& policy) {
  return policy;
}
template <class Join, class Update>
[[nodiscard]] constexpr Join joined_by(reduce::deltas<Join, Update> const& policy) {
  return policy.join;
}

template <class Reduction>
inline constexpr bool is_deltas = false;
template <class Join, class Update>
inline constexpr bool is_deltas<reduce::deltas<Join, Update>> = true;

/// Whether a reduction policy takes a weight per rank.
template <class Reduction>
inline constexpr bool weighs = std::is_same_v<Reduction, average::weighted>;
template <class Average>
inline constexpr bool weighs<reduce::sharded<Average>> = weighs<Average>;

}  // namespace detail

/// What to do about Inf and NaN in a gradient. They reach every rank through the reduction itself:
/// a bucket whose local norm is not finite gets the coefficient NaN, which makes all of it NaN.
namespace non_finite {

/// They stay in the result.
struct propagate {
  static constexpr bool detects = false;
  [[nodiscard]] static std::string describe() { return "propagate"; }
};

/// All ranks agree to skip the step: step_status::skip, on the device, tells the optimizer.
struct skip {
  static constexpr bool detects = true;
  [[nodiscard]] static std::string describe() { return "skip"; }
};

/// As skip, and sync_report() throws non_finite_error naming bucket, parameter and offset.
struct fail {
  static constexpr bool detects = true;
  [[nodiscard]] static std::string describe() { return "fail"; }
};

}  // namespace non_finite

/// How a bucket is multiplied by its coefficient.
namespace scaling {

/// In the reduction where the communicator can (capabilities.premultiplied_sum), else in place.
struct automatic {};

/// In the reduction: the bucket is never rewritten. Needs capabilities.premultiplied_sum; in place
/// for dtypes that the communicator does not scale (supports_scaled).
struct premultiplied {};

/// By one pass over the bucket before the reduction.
struct in_place {};

}  // namespace scaling

}  // namespace gradlane

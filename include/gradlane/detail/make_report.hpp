// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/buckets/plan.hpp>   // for bucket_plan
#include <gradlane/clip/policy.hpp>    // for clip_scope
#include <gradlane/clip/report.hpp>    // for bucket_record, mean_orthogonality, step_record, ...
#include <gradlane/clip/rules.hpp>     // for pipeline_rules
#include <gradlane/concepts.hpp>       // for non_finite_location
#include <gradlane/element_range.hpp>  // for element_range
#include <gradlane/error.hpp>          // for non_finite_error

#include <cstddef>  // for size_t
#include <cstdint>  // for uint64_t
#include <limits>   // for numeric_limits
#include <span>     // for span
#include <string>   // for string, to_string

namespace gradlane::detail {

[[nodiscard]] inline double fraction(std::uint64_t part, double whole) noexcept {
  return whole > 0 ? static_cast<double>(part) / whole : 0.0;
}

/// @param first_of  the first element that was looked at, of a parameter.
template <class FirstOf>
void fill_bucket(bucket_report& to,
                 bucket_plan const& plan,
                 std::size_t bucket,
                 bucket_record const& from,
                 bool has_bound,
                 std::uint64_t steps,
                 FirstOf first_of) {
  to.norm             = from.norm;
  to.threshold        = has_bound ? from.threshold : std::numeric_limits<double>::infinity();
  to.coefficient      = from.coefficient;
  to.clipped          = from.clipped != 0;
  to.finite           = from.non_finite == 0;
  to.clipped_fraction = fraction(from.clipped_steps, static_cast<double>(steps));
  to.parameter.clear();
  to.offset = 0;
  if (to.finite || from.where.tensor == non_finite_location::none) { return; }
  auto const owner =
      plan.buckets()[bucket].parameters.at(static_cast<std::size_t>(from.where.tensor));
  to.parameter = plan.parameters()[owner].name;
  to.offset    = first_of(owner) + static_cast<std::size_t>(from.where.offset);
}

/// Turns the numbers of a step into what people read. `to.buckets` has one element per bucket.
/// @param own_parts  by bucket: the elements whose results were looked at.
inline void fill_report(step_report& to,
                        bucket_plan const& plan,
                        pipeline_rules const& rules,
                        std::span<bucket_record const> records,
                        step_record const& step,
                        std::span<element_range const> own_parts) {
  auto const by_bucket = rules.scope == clip_scope::local_bucket;
  auto const units     = by_bucket ? static_cast<double>(records.size()) : 1.0;
  to.step              = step.steps + step.skipped_steps - 1;
  to.norm              = step.norm;
  to.coefficient       = step.coefficient;
  to.skipped           = step.status.skip != 0;
  to.skipped_steps     = step.skipped_steps;
  to.clipped           = step.clipped != 0;
  to.orthogonality     = mean_orthogonality(step);
  to.clipped_fraction  = fraction(step.clipped_units, static_cast<double>(step.steps) * units);
  for (auto b = std::size_t{0}; b < records.size(); ++b) {
    auto const first_of = [&](std::size_t owner) {  // own gradients were looked at as a whole
      auto const offset = plan.slot(owner)->offset;
      auto const begin  = rules.measures_locally() ? 0 : own_parts[b].begin;
      return begin > offset ? begin - offset : 0;
    };
    fill_bucket(to.buckets[b], plan, b, records[b], by_bucket, step.steps, first_of);
    to.clipped = to.clipped || to.buckets[b].clipped;
  }
}

/// @throws non_finite_error where a step was skipped, naming the bucket, parameter and offset that
///   this rank knows, else the first bucket that a value of another rank reached, or that
///   overflowed in an update or in the reduction; bucket 0 where all gradients were finite, but not
///   the loss scale.
inline void throw_if_skipped(step_report const& report, int rank) {
  if (!report.skipped) { return; }
  auto found = report.buckets.size();
  for (auto b = report.buckets.size(); b-- > 0;) {
    auto const& bucket = report.buckets[b];
    auto const known   = found < report.buckets.size() && !report.buckets[found].parameter.empty();
    if (!bucket.finite && (!bucket.parameter.empty() || !known)) { found = b; }
  }
  if (found == report.buckets.size()) {
    throw non_finite_error{"clip_allreduce: rank " + std::to_string(rank) +
                               ": the gradient is finite, but the loss scale is not, or not "
                               "positive",
                           0,
                           {},
                           0};
  }
  auto const& bucket = report.buckets[found];
  auto const where =
      bucket.parameter.empty()
          ? std::string{", because of another rank, or once it was joined"}
          : ": parameter '" + bucket.parameter + "', element " + std::to_string(bucket.offset);
  throw non_finite_error{"clip_allreduce: rank " + std::to_string(rank) +
                             ": the gradient is not finite in bucket " + std::to_string(found) +
                             where,
                         found,
                         bucket.parameter,
                         bucket.offset};
}

}  // namespace gradlane::detail

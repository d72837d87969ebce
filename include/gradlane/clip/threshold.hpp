// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/buckets/plan.hpp>    // for bucket_plan
#include <gradlane/detail/to_text.hpp>  // for to_text
#include <gradlane/error.hpp>           // for contract_error, expects

#include <cmath>     // for sqrt
#include <concepts>  // for same_as
#include <cstddef>   // for size_t
#include <limits>    // for numeric_limits
#include <string>    // for string, to_string
#include <vector>    // for vector

namespace gradlane {

/// Gives the bound t_b of every bucket for bucket-wise clipping.
///
/// `values(plan)` checks itself and gives one bound per bucket, the same on all ranks;
/// `describe()` states the formula.
template <class T>
concept threshold_policy = requires(T const& t, bucket_plan const& plan) {
  { t.values(plan) } -> std::same_as<std::vector<double>>;
  { t.describe() } -> std::same_as<std::string>;
};

namespace detail {

/// @throws contract_error unless bound > 0 (infinity, which never clips, is legal).
inline void check_bound(double bound, std::string const& what) {
  if (!(bound > 0)) {
    throw contract_error{what + ": the bound must be positive, not " + to_text(bound)};
  }
}

}  // namespace detail

namespace threshold {

/// t_b = c / sqrt(B): the squares of all bounds add up to c².
///
/// Tighter than global clipping: a gradient of norm below c that sits in one bucket is cut.
/// Source: Kim et al. 2024, arXiv 2402.02447, section on bucket-wise clipping.
struct equal {
  double max_norm;  ///< c, an L2 norm in units of the gradient

  [[nodiscard]] std::vector<double> values(bucket_plan const& plan) const {
    detail::check_bound(max_norm, "threshold::equal");
    auto const buckets = plan.buckets().size();
    return std::vector<double>(buckets, max_norm / std::sqrt(static_cast<double>(buckets)));
  }
  [[nodiscard]] std::string describe() const {
    return "t_b = c / sqrt(B), c = " + detail::to_text(max_norm);
  }
};

/// t_b = c · sqrt(n_b / N), n_b the elements of bucket b and N those of all: squares add up to c².
struct by_size {
  double max_norm;  ///< c

  [[nodiscard]] std::vector<double> values(bucket_plan const& plan) const {
    detail::check_bound(max_norm, "threshold::by_size");
    auto result      = std::vector<double>{};
    auto const total = static_cast<double>(plan.payload());
    for (auto const& bucket : plan.buckets()) {
      result.push_back(max_norm * std::sqrt(static_cast<double>(bucket.payload) / total));
    }
    return result;
  }
  [[nodiscard]] std::string describe() const {
    return "t_b = c * sqrt(n_b / N), c = " + detail::to_text(max_norm);
  }
};

/// t_b = c for every bucket; the whole gradient is bounded by c · sqrt(B).
struct each {
  double max_norm;  ///< c

  [[nodiscard]] std::vector<double> values(bucket_plan const& plan) const {
    detail::check_bound(max_norm, "threshold::each");
    return std::vector<double>(plan.buckets().size(), max_norm);
  }
  [[nodiscard]] std::string describe() const { return "t_b = c, c = " + detail::to_text(max_norm); }
};

/// One bound per bucket of the plan, given.
struct list {
  std::vector<double> bounds;

  [[nodiscard]] std::vector<double> values(bucket_plan const& plan) const {
    if (bounds.size() != plan.buckets().size()) {
      throw contract_error{"threshold::list: " + std::to_string(bounds.size()) + " bounds for " +
                           std::to_string(plan.buckets().size()) + " buckets"};
    }
    for (auto b = std::size_t{0}; b < bounds.size(); ++b) {
      detail::check_bound(bounds[b], "threshold::list, bucket " + std::to_string(b));
    }
    return bounds;
  }
  [[nodiscard]] std::string describe() const {
    auto text = std::string{"t_b ="};
    for (auto const bound : bounds) { text += " " + detail::to_text(bound); }
    return text;
  }
};

/// t_b = factor · a_b, a_b a running average of the bucket's own norm.
///
/// After each step that is not skipped, a_b = decay · a_b + (1 − decay) · min(norm, t_b); the first
/// finite norm starts it, and until then nothing is clipped. Each rank keeps its own averages,
/// unless `agreed`: then they are averaged over the ranks by one small collective a step.
struct adaptive {
  double factor{2.0};  ///< > 1, else the average could only fall
  double decay{0.99};  ///< in [0, 1)
  bool agreed{false};  ///< the same bounds on all ranks

  [[nodiscard]] std::vector<double> values(bucket_plan const& plan) const {
    expects(factor > 1 && factor <= std::numeric_limits<double>::max(),
            "threshold::adaptive: factor must be finite and above 1");
    expects(decay >= 0 && decay < 1, "threshold::adaptive: decay must lie in [0, 1)");
    return std::vector<double>(plan.buckets().size(), std::numeric_limits<double>::infinity());
  }
  [[nodiscard]] std::string describe() const {
    return "t_b = " + detail::to_text(factor) + " * running average of the bucket's norm, decay " +
           detail::to_text(decay) + (agreed ? ", averaged over ranks" : ", per rank");
  }
};

}  // namespace threshold
}  // namespace gradlane

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/clip/policy.hpp>         // for clip_scope
#include <gradlane/clip/report.hpp>         // for bucket_record, step_record
#include <gradlane/detail/host_device.hpp>  // for GRADLANE_HOST_DEVICE

#include <cmath>    // for sqrt
#include <cstddef>  // for size_t
#include <cstdint>  // for uint32_t
#include <limits>   // for numeric_limits

/// The scalar logic of clipping: pure functions that run on the host and inside kernels, and the
/// small function objects that a device invokes with them (trivially copyable, at most 64 bytes).
namespace gradlane {

namespace detail {

// Kernels may read these, but not call numeric_limits.
inline constexpr double largest_double = std::numeric_limits<double>::max();
inline constexpr double not_a_number   = std::numeric_limits<double>::quiet_NaN();

}  // namespace detail

[[nodiscard]] GRADLANE_HOST_DEVICE constexpr bool is_finite(double value) noexcept {
  return value <= detail::largest_double && value >= -detail::largest_double;
}

/// min(1, threshold / norm): 1 for a norm of 0, NaN where the norm is not finite or the threshold
/// is NaN.
///
/// Source: Pascanu et al. 2013, arXiv 1211.5063, algorithm 1.
[[nodiscard]] GRADLANE_HOST_DEVICE constexpr double clip_factor(double norm,
                                                                double threshold) noexcept {
  if (!is_finite(norm) || threshold != threshold) { return detail::not_a_number; }
  return norm > threshold ? threshold / norm : 1.0;
}

namespace detail {

/// How a loss scale S takes part: norms are of S·g, bounds are multiplied by S, and with `unscale`
/// the coefficient is divided by it.
struct loss_scaling {
  float const* scale{nullptr};  // on the device; null is 1
  bool unscale{true};

  /// S; NaN, which makes all results NaN, where it is not positive and finite.
  [[nodiscard]] GRADLANE_HOST_DEVICE double value() const noexcept {
    if (scale == nullptr) { return 1.0; }
    auto const given = static_cast<double>(*scale);
    return given > 0 && is_finite(given) ? given : not_a_number;
  }
  [[nodiscard]] GRADLANE_HOST_DEVICE double divisor() const noexcept {
    return unscale ? value() : 1.0;
  }
};

/// What makes a product NaN where a coefficient is, and else leaves it alone.
[[nodiscard]] GRADLANE_HOST_DEVICE inline float gate_of(float coefficient) noexcept {
  return coefficient != coefficient ? coefficient : 1.0F;
}

/// share = w_r / Σ w_r, or w_r / W; 0 where nobody has weight. used = 1, or 0 where share is 0.
struct share_of_weights {
  step_record* step;
  double ranks;  // the divisor instead of the sum where not 0

  GRADLANE_HOST_DEVICE void operator()() const {
    auto const total = ranks > 0 ? ranks : step->total_weight[0];
    step->share      = total > 0 ? step->weight[0] / total : 0.0;
    step->used       = step->share > 0 ? 1.0F : 0.0F;
  }
};

/// Fills a bucket's norm and coefficient = clip factor · share / S from its sum of squares.
///
/// A share of 0 gives 0 whatever the norm. `clips` false leaves the factor at 1. `adaptive` is the
/// factor of threshold::adaptive, or 0.
struct bucket_coefficient {
  bucket_record* record;
  step_record const* step;
  loss_scaling loss;
  double adaptive;
  bool clips;

  GRADLANE_HOST_DEVICE void operator()() const {
    if (adaptive > 0 && record->average > 0) { record->threshold = adaptive * record->average; }
    auto const scale    = loss.value();
    auto const norm     = clips ? std::sqrt(record->sum_of_squares) : 0.0;
    auto const factor   = clip_factor(norm, scale * record->threshold);
    auto const used     = step->share > 0;
    record->norm        = used ? norm / scale : 0.0;
    record->clipped     = static_cast<std::uint32_t>(used && factor < 1);
    record->coefficient = used ? static_cast<float>(factor * (step->share / loss.divisor())) : 0.0F;
    record->non_finite  = static_cast<std::uint32_t>(used && !is_finite(norm));
    record->gate        = gate_of(record->coefficient);
    if (!used) { record->where = {}; }  // what this rank's buffers hold is nobody's concern
  }
};

/// As bucket_coefficient, for all buckets by the norm of the whole local gradient.
struct total_coefficient {
  bucket_record* records;
  std::size_t buckets;
  step_record* step;
  loss_scaling loss;

  GRADLANE_HOST_DEVICE void operator()() const {
    auto const scale = loss.value();
    auto sum         = 0.0;
    for (auto b = std::size_t{0}; b < buckets; ++b) { sum += records[b].sum_of_squares; }
    auto const norm   = std::sqrt(sum);
    auto const used   = step->share > 0;
    auto const factor = clip_factor(norm, buckets > 0 ? scale * records[0].threshold : 0.0);
    step->clipped     = static_cast<std::uint32_t>(used && factor < 1);
    for (auto b = std::size_t{0}; b < buckets; ++b) {
      auto& record = records[b];
      auto const q = record.sum_of_squares;
      record.norm  = used ? std::sqrt(q) / scale : 0.0;
      record.coefficient =
          used ? static_cast<float>(factor * (step->share / loss.divisor())) : 0.0F;
      record.non_finite = static_cast<std::uint32_t>(used && !is_finite(q));
      record.gate       = gate_of(record.coefficient);
      if (!used) { record.where = {}; }
    }
  }
};

/// Ends a step: totals, the coefficient of clip::after, the skip flag, counters, averages.
struct close_step {
  bucket_record* records;
  std::size_t buckets;
  step_record* step;
  loss_scaling loss;
  double decay;  // of threshold::adaptive; negative otherwise
  clip_scope scope;
  bool local;     // norms were taken before the reduction
  bool detects;   // non-finite values skip the step
  bool in_place;  // the pipeline applies the coefficient itself

  GRADLANE_HOST_DEVICE void operator()() const {
    auto finite = add_up();
    if (scope == clip_scope::reduced_total) {
      auto const clip   = clip_factor(step->norm, buckets > 0 ? records[0].threshold : 0.0);
      step->clipped     = static_cast<std::uint32_t>(clip < 1);
      step->coefficient = static_cast<float>(clip / loss.divisor());
      finite            = finite && is_finite(clip);  // not so where the loss scale is no scale
    }
    step->status.coefficient = in_place ? 1.0F : step->coefficient;
    step->status.skip        = static_cast<std::uint32_t>(detects && !finite);
    if (step->status.skip != 0) {
      ++step->skipped_steps;
      return;
    }
    ++step->steps;
    ++step->updates;
    if (scope == clip_scope::local_bucket) {
      count_buckets();
    } else {
      step->clipped_units += step->clipped;
    }
  }

  /// Norms of the step; false where the reduction brought Inf or NaN.
  [[nodiscard]] GRADLANE_HOST_DEVICE bool add_up() const {
    auto sum    = 0.0;
    auto finite = true;
    for (auto b = std::size_t{0}; b < buckets; ++b) {
      auto& record = records[b];
      if (scope == clip_scope::reduced_total) {
        record.norm = std::sqrt(record.reduced_squares) / loss.value();
      }
      auto const reduced_finite = is_finite(record.reduced_squares);
      auto const own            = local ? record.non_finite : 0U;
      record.non_finite         = reduced_finite ? own : 1U;
      finite                    = finite && reduced_finite;
      sum += record.norm * record.norm;
    }
    step->norm = std::sqrt(sum);
    return finite;
  }

  GRADLANE_HOST_DEVICE void count_buckets() const {
    for (auto b = std::size_t{0}; b < buckets; ++b) {
      auto& record = records[b];
      record.clipped_steps += record.clipped;
      step->clipped_units += record.clipped;
      if (decay < 0 || !(step->share > 0) || !is_finite(record.norm)) { continue; }
      auto const seen = record.norm < record.threshold ? record.norm : record.threshold;
      record.average  = record.average > 0 ? decay * record.average + (1.0 - decay) * seen : seen;
    }
  }
};

/// Lays the running averages out for one sum over ranks: averages[b], and at [buckets + b] a 1
/// where there is one.
struct gather_averages {
  bucket_record const* records;
  double* averages;  // (2, buckets)
  std::size_t buckets;

  GRADLANE_HOST_DEVICE void operator()() const {
    for (auto b = std::size_t{0}; b < buckets; ++b) {
      averages[b]           = records[b].average;
      averages[buckets + b] = records[b].average > 0 ? 1.0 : 0.0;
    }
  }
};

/// The reverse of gather_averages after the sum: every record gets the mean over the ranks.
struct scatter_averages {
  bucket_record* records;
  double const* averages;  // (2, buckets)
  std::size_t buckets;

  GRADLANE_HOST_DEVICE void operator()() const {
    for (auto b = std::size_t{0}; b < buckets; ++b) {
      if (averages[buckets + b] > 0) { records[b].average = averages[b] / averages[buckets + b]; }
    }
  }
};

/// Lays what was read back of the ranks' parts of all buckets out for one sum over ranks.
struct gather_squares {
  bucket_record const* records;
  double* squares;  // (buckets)
  std::size_t buckets;

  GRADLANE_HOST_DEVICE void operator()() const {
    for (auto b = std::size_t{0}; b < buckets; ++b) { squares[b] = records[b].reduced_squares; }
  }
};

/// The reverse of gather_squares after the sum.
struct scatter_squares {
  bucket_record* records;
  double const* squares;  // (buckets)
  std::size_t buckets;

  GRADLANE_HOST_DEVICE void operator()() const {
    for (auto b = std::size_t{0}; b < buckets; ++b) { records[b].reduced_squares = squares[b]; }
  }
};

}  // namespace detail
}  // namespace gradlane

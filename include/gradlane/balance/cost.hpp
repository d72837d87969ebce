// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/detail/to_text.hpp>  // for to_text
#include <gradlane/error.hpp>           // for contract_error, expects

#include <cmath>    // for isfinite, sqrt
#include <cstddef>  // for size_t
#include <cstdint>  // for uint32_t
#include <limits>   // for numeric_limits
#include <span>     // for span
#include <string>   // for string, to_string

namespace gradlane::balance {

/// What a sequence of n tokens costs to train on, in tokens: n·(1 + n/n0).
///
/// n0 is the length at which attention, which grows with n², costs as much as all the rest, which
/// grows with n: 6·hidden/r for a transformer whose attention runs r times less efficiently than
/// its matrix products. Infinite n0 counts tokens.
struct cost_model {
  double n0{std::numeric_limits<double>::infinity()};

  /// Sums, a product and a quotient that no compiler fuses: the same bits on every machine.
  [[nodiscard]] double operator()(std::uint32_t length) const noexcept {
    auto const n = static_cast<double>(length);
    return n + n * n / n0;
  }

  /// @throws contract_error unless n0 is positive.
  void check() const {
    if (!(n0 > 0)) {
      throw contract_error{"cost_model: n0 must be positive or infinite, not " +
                           gradlane::detail::to_text(n0)};
    }
  }

  [[nodiscard]] std::string describe() const {
    if (!std::isfinite(n0)) { return "n"; }
    return "n * (1 + n / " + gradlane::detail::to_text(n0) + ")";
  }
};

/// A cost model in seconds: a step takes fixed_seconds + seconds_per_token · Σ cost(n).
struct cost_fit {
  cost_model model{};
  double seconds_per_token{};
  double fixed_seconds{};
  double residual_seconds{};  ///< root mean square of what the fit leaves unexplained
};

/// Timed steps, from which a cost model is fitted by least squares. Of constant size.
///
/// Add the steps of one rank, or of several that run at the same speed. The fit needs steps whose
/// lengths are mixed differently: at equal lengths n and n² cannot be told apart.
class step_timings {
 public:
  /// @param lengths  of the sequences that the step computed, in tokens.
  /// @param seconds  that it took, without waiting for others; positive.
  /// @throws contract_error for a time that is not positive and finite.
  void add(std::span<std::uint32_t const> lengths, double seconds) {
    if (!(seconds > 0) || !std::isfinite(seconds)) {
      throw contract_error{"step_timings: a step takes a positive time, not " +
                           gradlane::detail::to_text(seconds) + " s"};
    }
    auto tokens  = 0.0;
    auto squares = 0.0;
    for (auto const length : lengths) {
      auto const n = static_cast<double>(length);
      tokens += n;
      squares += n * n;
    }
    accumulate(tokens, squares, seconds);
  }

  [[nodiscard]] std::size_t size() const noexcept { return count_; }

  /// A quadratic part that comes out negative, as it may where timing noise exceeds it, is left
  /// out: n0 is then infinite.
  /// @throws contract_error for fewer than three steps, for steps that do not tell n from n² or are
  ///   all alike, and where time does not grow with tokens.
  [[nodiscard]] cost_fit fit() const {
    if (count_ < 3) {
      throw contract_error{"step_timings: a fit needs three steps, there are " +
                           std::to_string(count_)};
    }
    auto const steps = static_cast<double>(count_);
    expects(xx_ > negligible * steps * mean_x_ * mean_x_,
            "step_timings: all steps have the same number of tokens; time steps of other sizes");
    auto const rest_yy = yy_ - xy_ * xy_ / xx_;
    expects(rest_yy > negligible * yy_,
            "step_timings: tokens and squared lengths grow together in these steps; time steps "
            "whose lengths are mixed differently");
    auto squares = (yt_ - xy_ * xt_ / xx_) / rest_yy;  // seconds per squared token
    if (squares < 0) { squares = 0; }
    auto const tokens = (xt_ - squares * xy_) / xx_;
    expects(tokens > 0, "step_timings: time does not grow with tokens in these steps");
    auto const unexplained = tt_ - tokens * xt_ - squares * yt_;
    return {
        .model             = {squares > 0 ? tokens / squares : cost_model{}.n0},
        .seconds_per_token = tokens,
        .fixed_seconds     = mean_t_ - tokens * mean_x_ - squares * mean_y_,
        .residual_seconds  = unexplained > 0 ? std::sqrt(unexplained / steps) : 0.0,
    };
  }

 private:
  static constexpr double negligible = 1e-12;

  /// Means and sums of products of deviations: no cancellation between large sums.
  /// Source: Welford, "Note on a method for calculating corrected sums of squares", 1962.
  void accumulate(double x, double y, double t) {
    ++count_;
    auto const part = 1.0 / static_cast<double>(count_);
    auto const dx   = x - mean_x_;
    auto const dy   = y - mean_y_;
    auto const dt   = t - mean_t_;
    mean_x_ += dx * part;
    mean_y_ += dy * part;
    mean_t_ += dt * part;
    xx_ += dx * (x - mean_x_);
    xy_ += dx * (y - mean_y_);
    yy_ += dy * (y - mean_y_);
    xt_ += dx * (t - mean_t_);
    yt_ += dy * (t - mean_t_);
    tt_ += dt * (t - mean_t_);
  }

  std::size_t count_{};
  double mean_x_{};  // tokens
  double mean_y_{};  // squared lengths
  double mean_t_{};  // seconds
  double xx_{};
  double xy_{};
  double yy_{};
  double xt_{};
  double yt_{};
  double tt_{};
};

}  // namespace gradlane::balance

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "log.hpp"  // for step_entry, evaluation_entry

#include <array>    // for array
#include <cmath>    // for isfinite
#include <cstdint>  // for uint64_t
#include <cstdio>   // for snprintf
#include <string>   // for string

namespace bert {

/// Running mean of the time that a step takes; steps long past count less and less.
class step_pace {
 public:
  void add(double seconds) {
    weight_  = memory * weight_ + 1;
    seconds_ = memory * seconds_ + seconds;
  }
  /// 0 before the first step.
  [[nodiscard]] double seconds() const { return weight_ > 0 ? seconds_ / weight_ : 0; }

 private:
  static constexpr double memory = 0.95;

  double weight_  = 0;
  double seconds_ = 0;
};

/// "12.3k", "4.56M", "950": three digits, and no fraction without a unit.
[[nodiscard]] inline std::string short_number(double value) {
  auto const* unit = "";
  if (value >= 999.5e3) {
    value /= 1e6;
    unit = "M";
  } else if (value >= 999.5) {
    value /= 1e3;
    unit = "k";
  }
  auto text         = std::array<char, 32>{};
  auto const places = *unit == '\0' || value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
  std::snprintf(text.data(), text.size(), "%.*f%s", places, value, unit);
  return text.data();
}

/// "0:07", "12:34", "3:02:01"; "?" for what is no time.
[[nodiscard]] inline std::string clock_time(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0 || seconds > 1e9) { return "?"; }
  auto const whole = static_cast<long>(seconds + 0.5);
  auto text        = std::array<char, 32>{};
  if (whole >= 3600) {
    std::snprintf(
        text.data(), text.size(), "%ld:%02ld:%02ld", whole / 3600, whole / 60 % 60, whole % 60);
  } else {
    std::snprintf(text.data(), text.size(), "%ld:%02ld", whole / 60, whole % 60);
  }
  return text.data();
}

/// What a person sees of a step, without an end of line.
/// @param steps  of the whole run.
[[nodiscard]] inline std::string progress_line(step_entry const& entry,
                                               std::uint64_t steps,
                                               step_pace const& pace) {
  auto const left    = static_cast<double>(steps - entry.step) * pace.seconds();
  auto text          = std::array<char, 256>{};
  auto orthogonality = std::array<char, 32>{};
  if (entry.orthogonality) {
    std::snprintf(
        orthogonality.data(), orthogonality.size(), "  orthogonality %.3f", *entry.orthogonality);
  }
  std::snprintf(text.data(),
                text.size(),
                "step %*llu/%llu  loss %.4f  masked-LM %.4f  %s tokens/s  clipped %3.0f %%  "
                "max/mean %.3f  balancing %.1f %%%s  left %s%s",
                static_cast<int>(std::to_string(steps).size()),
                static_cast<unsigned long long>(entry.step),
                static_cast<unsigned long long>(steps),
                entry.loss,
                entry.masked_lm,
                short_number(entry.tokens_per_second).c_str(),
                100 * entry.clipped,
                entry.largest_over_mean,
                100 * entry.balancing,
                orthogonality.data(),
                clock_time(left).c_str(),
                entry.skipped ? "  skipped" : "");
  return text.data();
}

[[nodiscard]] inline std::string evaluation_line(evaluation_entry const& entry) {
  auto text = std::array<char, 256>{};
  std::snprintf(text.data(),
                text.size(),
                "held-out text after step %llu: masked-LM loss %.4f, accuracy %.1f %%, next "
                "sentence %.1f %%",
                static_cast<unsigned long long>(entry.step),
                entry.masked_lm,
                100 * entry.accuracy,
                100 * entry.next_sentence_accuracy);
  return text.data();
}

}  // namespace bert

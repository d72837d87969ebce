// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "log.hpp"  // for training_log

#include <optional>  // for optional
#include <string>    // for string
#include <vector>    // for vector

namespace bert {

/// Places of round numbers (1, 2 or 5 times a power of ten apart) in [low, high].
/// @param most  how many at most; at least 2.
[[nodiscard]] std::vector<double> axis_ticks(double low, double high, std::size_t most);

/// A drawing in SVG of loss, learning rate and clipped fraction by step, one below the other.
///
/// The loss is drawn as it was and smoothed, with evaluations as dots. What is no number leaves a
/// gap. An empty log gives empty axes.
/// @param unigram_entropy  a line to compare the loss with, where given.
[[nodiscard]] std::string plot_svg(training_log const& log,
                                   std::string const& title,
                                   std::optional<double> unigram_entropy = std::nullopt);

}  // namespace bert

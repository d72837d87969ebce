// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "simulation.hpp"  // for finding, method

#include <algorithm>    // for max, min
#include <array>        // for array
#include <cmath>        // for ceil, floor, log10, pow
#include <cstddef>      // for size_t
#include <cstdio>       // for snprintf
#include <limits>       // for numeric_limits
#include <string>       // for string, to_string
#include <string_view>  // for string_view
#include <vector>       // for vector

namespace simulation {

/// "1234.5", the same in every locale that programs begin in.
[[nodiscard]] inline std::string fixed(double value, int digits) {
  auto text = std::array<char, 64>{};
  std::snprintf(text.data(), text.size(), "%.*f", digits, value);
  return text.data();
}

/// The bars of some methods: one group for each number of GPUs, one bar for each method, from the
/// mean of the smallest to the mean of the largest number of tokens that a GPU has in a step.
class panel {
 public:
  static constexpr auto width  = 1160.0;
  static constexpr auto height = 430.0;

  panel(std::vector<method> const& methods,
        std::vector<std::vector<finding>> const& findings,
        bool of_figure)
      : methods_{methods}, findings_{findings} {
    for (std::size_t m = 0; m < methods.size(); ++m) {
      if (methods[m].in_figure == of_figure) { shown_.push_back(m); }
    }
    for (auto const m : shown_) {
      for (auto const& f : findings[m]) {
        low_  = std::min(low_, f.least);
        high_ = std::max(high_, f.most);
      }
    }
    low_  = std::floor(low_ / step_) * step_;
    high_ = std::ceil(high_ / step_) * step_;
  }

  /// As SVG elements, from `top` down.
  [[nodiscard]] std::string drawn(std::string_view title, double top) const {
    auto svg = text(left, top + 24, "start", title, "font-weight=\"bold\"");
    for (auto y = low_; y <= high_ + step_ / 2; y += step_) {
      svg += line(left, down(top, y), right, down(top, y), "#e0e0e0");
      svg += text(left - 8, down(top, y) + 4, "end", fixed(y, 0));
    }
    auto const groups = findings_[shown_.front()].size();
    auto const group  = (right - left) / static_cast<double>(groups);
    auto const bar    = group * 0.84 / static_cast<double>(shown_.size());
    for (std::size_t g = 0; g < groups; ++g) {
      auto const begin = left + (static_cast<double>(g) + 0.08) * group;
      for (std::size_t i = 0; i < shown_.size(); ++i) {
        auto const& f = findings_[shown_[i]][g];
        auto const x  = begin + static_cast<double>(i) * bar;
        auto const y  = down(top, f.most);
        svg += "<rect x=\"" + fixed(x, 1) + "\" y=\"" + fixed(y, 1) + "\" width=\"" +
               fixed(bar * 0.86, 1) + "\" height=\"" +
               fixed(std::max(1.0, down(top, f.least) - y), 1) + "\" fill=\"" + colour(i) +
               "\"><title>" + methods_[shown_[i]].name + ", " + std::to_string(f.gpus) +
               " GPUs: " + fixed(f.least, 0) + " to " + fixed(f.most, 0) + "</title></rect>\n";
      }
      svg += text(begin + group * 0.42,
                  top + bottom + 18,
                  "middle",
                  std::to_string(findings_[shown_.front()][g].gpus) + " GPUs");
    }
    return svg + legend(top);
  }

 private:
  static constexpr auto left   = 60.0;
  static constexpr auto right  = 1140.0;
  static constexpr auto upper  = 44.0;
  static constexpr auto bottom = 340.0;
  static constexpr auto step_  = 500.0;

  [[nodiscard]] double down(double top, double tokens) const {
    return top + bottom - (bottom - upper) * (tokens - low_) / (high_ - low_);
  }

  [[nodiscard]] static std::string colour(std::size_t i) {
    constexpr auto colours = std::array<std::string_view, 9>{"#8c8c8c",
                                                             "#d9a441",
                                                             "#b5722a",
                                                             "#c44e52",
                                                             "#1f5fa8",
                                                             "#2a9d8f",
                                                             "#7a5ea8",
                                                             "#4f8f3a",
                                                             "#222222"};
    return std::string{colours[i % colours.size()]};
  }

  [[nodiscard]] std::string legend(double top) const {
    auto svg = std::string{};
    for (std::size_t i = 0; i < shown_.size(); ++i) {
      auto const x = left + static_cast<double>(i % 5) * 216;
      auto const y = top + bottom + 34 + static_cast<double>(i / 5) * 20;
      svg += "<rect x=\"" + fixed(x, 1) + "\" y=\"" + fixed(y, 1) +
             "\" width=\"12\" height=\"12\" fill=\"" + colour(i) + "\"/>\n" +
             text(x + 18, y + 11, "start", methods_[shown_[i]].name);
    }
    return svg;
  }

  [[nodiscard]] static std::string line(
      double x1, double y1, double x2, double y2, std::string_view stroke) {
    return "<line x1=\"" + fixed(x1, 1) + "\" y1=\"" + fixed(y1, 1) + "\" x2=\"" + fixed(x2, 1) +
           "\" y2=\"" + fixed(y2, 1) + "\" stroke=\"" + std::string{stroke} + "\"/>\n";
  }

  [[nodiscard]] static std::string text(double x,
                                        double y,
                                        std::string_view anchor,
                                        std::string_view content,
                                        std::string_view more = {}) {
    return "<text x=\"" + fixed(x, 1) + "\" y=\"" + fixed(y, 1) + "\" text-anchor=\"" +
           std::string{anchor} + "\" " + std::string{more} + ">" + std::string{content} +
           "</text>\n";
  }

  std::vector<method> const& methods_;
  std::vector<std::vector<finding>> const& findings_;
  std::vector<std::size_t> shown_;
  double low_{std::numeric_limits<double>::max()};
  double high_{0.0};
};

/// The whole picture: the paper's Figure 6 above, its ablation below.
[[nodiscard]] inline std::string figure_svg(std::vector<method> const& methods,
                                            std::vector<std::vector<finding>> const& findings) {
  auto const size =
      "width=\"" + fixed(panel::width, 0) + "\" height=\"" + fixed(2 * panel::height, 0) + "\"";
  return "<svg xmlns=\"http://www.w3.org/2000/svg\" " + size +
         " font-family=\"sans-serif\" font-size=\"12\" fill=\"#222222\">\n<rect " + size +
         " fill=\"#ffffff\"/>\n" +
         panel{methods, findings, true}.drawn(
             "Tokens a GPU and step, from the mean smallest to the mean largest", 0) +
         panel{methods, findings, false}.drawn("The parts one by one", panel::height) + "</svg>\n";
}

}  // namespace simulation

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>  // for max, min
#include <cmath>      // for log2
#include <cstddef>    // for size_t
#include <cstdio>     // for snprintf
#include <span>       // for span
#include <string>     // for string, to_string
#include <vector>     // for vector

namespace gradlane::bench {

struct measured {
  double ranks;
  double mean;
  double spread;  ///< standard deviation over seeds
};

struct curve {
  std::string name;
  std::string colour;
  std::vector<measured> points;
};

/// Accuracies in [0, 1] over the number of ranks, as an SVG; bars are standard deviations.
[[nodiscard]] inline std::string plot_svg(std::string const& title,
                                          std::span<curve const> curves,
                                          double lowest) {
  auto const x    = [](double ranks) { return 70.0 + 96.0 * std::log2(ranks); };
  auto const y    = [&](double value) { return 320.0 - 270.0 * (value - lowest) / (1.0 - lowest); };
  auto const text = [](double value, char const* format = "%.1f") {
    char digits[32];
    std::snprintf(digits, sizeof digits, format, value);
    return std::string{digits};
  };
  auto const line = [&](double x0, double y0, double x1, double y1, std::string const& colour) {
    return "<line x1=\"" + text(x0) + "\" y1=\"" + text(y0) + "\" x2=\"" + text(x1) + "\" y2=\"" +
           text(y1) + "\" stroke=\"" + colour + "\"/>\n";
  };
  auto const label = [&](double at_x, double at_y, char const* anchor, std::string const& what) {
    return "<text x=\"" + text(at_x) + "\" y=\"" + text(at_y) + "\" text-anchor=\"" + anchor +
           "\">" + what + "</text>\n";
  };
  auto svg = std::string{
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"720\" height=\"380\" "
      "font-family=\"sans-serif\" font-size=\"13\">\n<rect width=\"720\" height=\"380\" "
      "fill=\"white\"/>\n"};
  svg += label(360, 25, "middle", title);
  for (auto i = 0; i <= 5; ++i) {
    auto const value = lowest + (1.0 - lowest) * i / 5;
    svg += line(70, y(value), 550, y(value), "#ddd") +
           label(62, y(value) + 4, "end", text(100 * value, "%.0f %%"));
    svg += label(x(1 << i), 340, "middle", std::to_string(1 << i));
  }
  svg += label(310, 365, "middle", "ranks, 32 samples each a step");
  auto place = 90.0;
  for (auto const& c : curves) {
    auto path = std::string{};
    for (auto const& p : c.points) {
      path += text(x(p.ranks)) + "," + text(y(p.mean)) + " ";
      svg += line(x(p.ranks),
                  y(std::max(p.mean - p.spread, lowest)),
                  x(p.ranks),
                  y(std::min(p.mean + p.spread, 1.0)),
                  c.colour);
    }
    svg += "<polyline points=\"" + path + "\" fill=\"none\" stroke-width=\"2\" stroke=\"" +
           c.colour + "\"/>\n";
    svg += line(565, place - 4, 590, place - 4, c.colour) + label(596, place, "start", c.name);
    place += 22;
  }
  return svg + "</svg>\n";
}

}  // namespace gradlane::bench

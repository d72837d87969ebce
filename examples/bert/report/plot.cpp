// SPDX-License-Identifier: Apache-2.0
#include "plot.hpp"

#include <algorithm>    // for min, max
#include <array>        // for array
#include <cmath>        // for floor, ceil, log10, pow, isfinite
#include <cstdio>       // for snprintf
#include <string_view>  // for string_view

namespace bert {

namespace {

constexpr auto width       = 860.0;
constexpr auto left        = 76.0;
constexpr auto right       = 830.0;
constexpr auto most_places = std::size_t{1500};  // points of a line; more are averaged

struct point {
  double x;
  double y;
};
using line = std::vector<point>;

struct range {
  double low;
  double high;
};

/// As short as it can be: "0.5", "12", "1e-04".
[[nodiscard]] std::string number(double value) {
  auto text = std::array<char, 32>{};
  std::snprintf(text.data(), text.size(), "%.4g", value);
  return text.data();
}

[[nodiscard]] std::string coordinate(double value) {
  auto text = std::array<char, 32>{};
  std::snprintf(text.data(), text.size(), "%.1f", value);
  return text.data();
}

[[nodiscard]] std::string escaped(std::string_view text) {
  auto result = std::string{};
  for (auto const c : text) {
    switch (c) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      default:
        result += c;
    }
  }
  return result;
}

/// One of the drawings: its place on the page, and what its axes mean.
class panel {
 public:
  panel(std::string& out, double top, double bottom, range x, range y)
      : out_{out}, top_{top}, bottom_{bottom}, x_{x}, y_{y} {}

  void axes(std::string const& name, bool label_steps) {
    for (auto const tick : axis_ticks(y_.low, y_.high, 6)) {
      stroke({{x_.low, tick}, {x_.high, tick}}, "#e4e4e4", 1);
      text(left - 8, down(tick) + 4, "end", number(tick));
    }
    for (auto const tick : axis_ticks(x_.low, x_.high, 9)) {
      stroke({{tick, y_.low}, {tick, y_.high}}, "#e4e4e4", 1);
      if (label_steps) { text(across(tick), bottom_ + 18, "middle", number(tick)); }
    }
    stroke({{x_.low, y_.high}, {x_.low, y_.low}, {x_.high, y_.low}}, "#444444", 1);
    text(left, top_ - 8, "start", name);
  }

  /// Breaks where a number is none.
  void stroke(line const& points, std::string const& colour, double thickness) {
    auto part        = std::string{};
    auto const flush = [&] {
      if (!part.empty()) {
        out_ += "<polyline fill=\"none\" stroke=\"" + colour + "\" stroke-width=\"" +
                number(thickness) + "\" stroke-linejoin=\"round\" points=\"" + part + "\"/>\n";
      }
      part.clear();
    };
    for (auto const& p : points) {
      if (std::isfinite(p.y)) {
        part += (part.empty() ? "" : " ") + place(p);
      } else {
        flush();
      }
    }
    flush();
  }

  void dashed(double y, std::string const& label) {
    out_ += "<line x1=\"" + coordinate(left) + "\" x2=\"" + coordinate(right) + "\" y1=\"" +
            coordinate(down(y)) + "\" y2=\"" + coordinate(down(y)) +
            "\" stroke=\"#777777\" stroke-dasharray=\"6 4\"/>\n";
    text(right - 4, down(y) - 5, "end", label);
  }

  void dots(line const& points, std::string const& colour) {
    for (auto const& p : points) {
      if (!std::isfinite(p.y)) { continue; }
      out_ += "<circle cx=\"" + coordinate(across(p.x)) + "\" cy=\"" + coordinate(down(p.y)) +
              "\" r=\"4\" fill=\"" + colour + "\"/>\n";
    }
  }

  void text(double x, double y, char const* anchor, std::string const& content) {
    out_ += "<text x=\"" + coordinate(x) + "\" y=\"" + coordinate(y) + "\" text-anchor=\"" +
            anchor + "\">" + escaped(content) + "</text>\n";
  }

 private:
  [[nodiscard]] double across(double x) const {
    return left + (right - left) * (x - x_.low) / (x_.high - x_.low);
  }
  [[nodiscard]] double down(double y) const {
    return bottom_ - (bottom_ - top_) * (y - y_.low) / (y_.high - y_.low);
  }
  [[nodiscard]] std::string place(point const& p) const {
    return coordinate(across(p.x)) + "," + coordinate(down(p.y));
  }

  std::string& out_;
  double top_;
  double bottom_;
  range x_;
  range y_;
};

template <class Entries, class Value>
[[nodiscard]] line line_of(Entries const& entries, Value const& value) {
  auto const group = entries.size() / most_places + 1;
  auto result      = line{};
  for (auto begin = std::size_t{0}; begin < entries.size(); begin += group) {
    auto const end = std::min(begin + group, entries.size());
    auto sum       = 0.0;
    for (auto i = begin; i < end; ++i) { sum += value(entries[i]); }
    result.push_back(
        {static_cast<double>(entries[end - 1].step), sum / static_cast<double>(end - begin)});
  }
  return result;
}

/// A running mean over about `memory` points.
[[nodiscard]] line smoothed(line points, double memory) {
  auto sum        = 0.0;
  auto weight     = 0.0;
  auto const keep = 1 - 1 / memory;
  for (auto& p : points) {
    if (!std::isfinite(p.y)) { continue; }
    sum    = keep * sum + p.y;
    weight = keep * weight + 1;
    p.y    = sum / weight;
  }
  return points;
}

/// Of all finite values, widened so that it is no point.
[[nodiscard]] range range_of(std::initializer_list<line> lines, range at_least) {
  auto result = at_least;
  for (auto const& points : lines) {
    for (auto const& p : points) {
      if (!std::isfinite(p.y)) { continue; }
      result = {std::min(result.low, p.y), std::max(result.high, p.y)};
    }
  }
  if (!(result.low < result.high)) { result.high = result.low + 1; }
  return result;
}

}  // namespace

std::vector<double> axis_ticks(double low, double high, std::size_t most) {
  auto const raw   = (high - low) / static_cast<double>(most - 1);
  auto const power = std::pow(10.0, std::floor(std::log10(raw)));
  auto step        = 10 * power;
  for (auto const factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= raw * (1 - 1e-9)) {
      step = factor * power;
      break;
    }
  }
  auto result      = std::vector<double>{};
  auto const first = std::ceil(low / step - 1e-9);
  auto const last  = std::floor(high / step + 1e-9);
  for (auto i = first; i <= last; ++i) { result.push_back(i * step + 0.0); }  // no -0
  return result;
}

std::string plot_svg(training_log const& log,
                     std::string const& title,
                     std::optional<double> unigram_entropy) {
  auto const loss    = line_of(log.steps, [](step_entry const& e) { return e.masked_lm; });
  auto const rate    = line_of(log.steps, [](step_entry const& e) { return e.learning_rate; });
  auto const clipped = line_of(log.steps, [](step_entry const& e) { return e.clipped; });
  auto held_out      = line{};
  for (auto const& e : log.evaluations) {
    held_out.push_back({static_cast<double>(e.step), e.masked_lm});
  }
  auto last = 1.0;
  for (auto const& points : {loss, held_out}) {
    if (!points.empty()) { last = std::max(last, points.back().x); }
  }
  auto const steps = range{0, last};

  auto out = std::string{
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"860\" height=\"720\" "
      "viewBox=\"0 0 860 720\" font-family=\"sans-serif\" font-size=\"12\" fill=\"#222222\">\n"
      "<rect width=\"860\" height=\"720\" fill=\"#ffffff\"/>\n"};
  auto upper = panel{
      out, 66, 386, steps, range_of({loss, held_out}, {0, unigram_entropy.value_or(0) * 1.1})};
  out += "<g font-size=\"15\" font-weight=\"bold\">\n";
  upper.text(width / 2, 26, "middle", title);
  out += "</g>\n";
  upper.axes("masked-LM loss, nats: training (line), held-out text (dots)", false);
  if (unigram_entropy) {
    upper.dashed(*unigram_entropy, "unigram entropy " + number(*unigram_entropy));
  }
  upper.stroke(loss, "#a8c8ec", 1);
  upper.stroke(smoothed(loss, 20), "#1f5fa8", 2);
  upper.dots(held_out, "#d1495b");

  auto middle = panel{out, 426, 526, steps, range_of({rate}, {0, 0})};
  middle.axes("learning rate", false);
  middle.stroke(rate, "#2a7f4f", 2);

  auto lower = panel{out, 566, 666, steps, {0, 1}};
  lower.axes("clipped fraction", true);
  lower.stroke(clipped, "#ecc79a", 1);
  lower.stroke(smoothed(clipped, 20), "#c0712a", 2);
  lower.text((left + right) / 2, 706, "middle", "step");
  out += "</svg>\n";
  return out;
}

}  // namespace bert

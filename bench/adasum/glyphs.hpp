// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>  // for clamp, min
#include <array>      // for array
#include <cmath>      // for cos, exp, sin, sqrt
#include <cstddef>    // for size_t
#include <cstdint>    // for uint64_t
#include <random>     // for mt19937_64
#include <span>       // for span
#include <vector>     // for vector

namespace gradlane::bench {

/// Numbers in [low, high), the same on every machine.
class uniform {
 public:
  explicit uniform(std::uint64_t seed) : engine_{seed} {}
  double operator()(double low, double high) {
    return low + (high - low) * static_cast<double>(engine_() >> 11U) * 0x1p-53;
  }
  std::size_t below(std::size_t n) { return static_cast<std::size_t>(engine_() % n); }

 private:
  std::mt19937_64 engine_;
};

/// Pictures of the ten digits as a seven-segment display shows them: turned, slanted, shifted and
/// scaled at random, of strokes of random strength, one other stroke faintly across, under noise.
struct glyph_set {
  static constexpr std::size_t side   = 16;
  static constexpr std::size_t pixels = side * side;

  std::vector<float> images;        // (samples, pixels)
  std::vector<std::size_t> labels;  // (samples)

  [[nodiscard]] std::span<float const> image(std::size_t i) const {
    return std::span{images}.subspan(i * pixels, pixels);
  }
};

namespace detail {

struct stroke {
  double x0, y0, x1, y1;
};

//                                        top          upper left   upper right  middle
inline constexpr auto strokes = std::array<stroke, 7>{{{-1, -2, 1, -2},
                                                       {-1, -2, -1, 0},
                                                       {1, -2, 1, 0},
                                                       {-1, 0, 1, 0},
                                                       // lower left, lower right, bottom
                                                       {-1, 0, -1, 2},
                                                       {1, 0, 1, 2},
                                                       {-1, 2, 1, 2}}};
// bit s of digits[d]: digit d has stroke s
inline constexpr auto digits =
    std::array<unsigned, 10>{0x77, 0x24, 0x5D, 0x6D, 0x2E, 0x6B, 0x7B, 0x25, 0x7F, 0x6F};

[[nodiscard]] inline double squared_distance(stroke const& s, double x, double y) {
  auto const dx = s.x1 - s.x0;
  auto const dy = s.y1 - s.y0;
  auto const t  = std::clamp(((x - s.x0) * dx + (y - s.y0) * dy) / (dx * dx + dy * dy), 0.0, 1.0);
  auto const ex = s.x0 + t * dx - x;
  auto const ey = s.y0 + t * dy - y;
  return ex * ex + ey * ey;
}

}  // namespace detail

[[nodiscard]] inline glyph_set make_glyphs(std::size_t samples, std::uint64_t seed) {
  auto draw   = uniform{seed};
  auto result = glyph_set{};
  result.images.reserve(samples * glyph_set::pixels);
  for (auto n = std::size_t{0}; n < samples; ++n) {
    auto const digit = draw.below(10);
    auto const angle = draw(-0.35, 0.35);
    auto const slant = draw(-0.3, 0.3);
    auto const scale = draw(2.2, 3.2);  // pixels a unit
    auto const x0    = 7.5 + draw(-2.0, 2.0);
    auto const y0    = 7.5 + draw(-1.5, 1.5);
    auto strengths   = std::array<double, 7>{};
    for (auto s = std::size_t{0}; s < 7; ++s) {
      strengths[s] = (detail::digits[digit] >> s & 1U) != 0 ? draw(0.5, 1.0) : 0.0;
    }
    auto& across = strengths[draw.below(7)];
    across       = across > 0 ? across : 0.3;
    result.labels.push_back(digit);
    for (auto p = std::size_t{0}; p < glyph_set::pixels; ++p) {
      auto const u = (static_cast<double>(p % glyph_set::side) - x0) / scale;
      auto const v = (static_cast<double>(p / glyph_set::side) - y0) / scale;
      auto const y = std::cos(angle) * v - std::sin(angle) * u;
      auto const x = std::cos(angle) * u + std::sin(angle) * v + slant * y;
      auto ink     = 0.0;
      for (auto s = std::size_t{0}; s < 7; ++s) {
        if (strengths[s] == 0) { continue; }
        auto const d = detail::squared_distance(detail::strokes[s], x, y);
        ink          = std::max(ink, strengths[s] * std::exp(-d / 0.08));
      }
      result.images.push_back(static_cast<float>(ink + draw(-0.25, 0.25)));
    }
  }
  return result;
}

}  // namespace gradlane::bench

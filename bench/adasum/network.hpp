// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "glyphs.hpp"  // for glyph_set, uniform

#include <algorithm>  // for fill, max, max_element
#include <array>      // for array
#include <cmath>      // for exp, log, sqrt
#include <cstddef>    // for size_t
#include <cstdint>    // for uint64_t
#include <span>       // for span
#include <vector>     // for vector

namespace gradlane::bench {

/// A classifier of three dense layers with ReLU between them.
class network {
 public:
  static constexpr auto widths        = std::array<std::size_t, 4>{glyph_set::pixels, 64, 32, 10};
  static constexpr std::size_t layers = 3;

  /// By parameter: weights (in, out) and bias (out) of each layer.
  [[nodiscard]] static std::vector<std::size_t> sizes() {
    auto result = std::vector<std::size_t>{};
    for (auto l = std::size_t{0}; l < layers; ++l) {
      result.push_back(widths[l] * widths[l + 1]);
      result.push_back(widths[l + 1]);
    }
    return result;
  }

  explicit network(std::uint64_t seed) {
    auto draw = uniform{seed};
    for (auto l = std::size_t{0}; l < layers; ++l) {
      auto const bound = std::sqrt(6.0 / static_cast<double>(widths[l]));
      auto& w          = parameters.emplace_back(widths[l] * widths[l + 1]);
      for (auto& x : w) { x = static_cast<float>(draw(-bound, bound)); }
      parameters.emplace_back(widths[l + 1]);
    }
  }

  /// The mean loss over a batch; `gradients` becomes its gradient by the parameters.
  double backward(glyph_set const& set,
                  std::span<std::size_t const> batch,
                  std::span<std::span<float> const> gradients) {
    forward(set, batch);
    auto loss        = 0.0;
    auto const n     = batch.size();
    auto const share = 1.0F / static_cast<float>(n);
    auto& logits     = values_[layers];
    for (auto i = std::size_t{0}; i < n; ++i) {  // logits become their gradient
      auto const z = std::span{logits}.subspan(i * 10, 10);
      loss += softmax(z, set.labels[batch[i]]);
      z[set.labels[batch[i]]] -= 1.0F;
      for (auto& x : z) { x *= share; }
    }
    for (auto l = layers; l-- > 0;) { backward_layer(l, n, gradients); }
    return loss / static_cast<double>(n);
  }

  /// The fraction of a set that is classified rightly.
  [[nodiscard]] double accuracy(glyph_set const& set) {
    auto right = std::size_t{0};
    for (auto i = std::size_t{0}; i < set.labels.size(); ++i) {
      forward(set, std::span{&i, 1});
      auto const& z   = values_[layers];
      auto const best = static_cast<std::size_t>(std::max_element(z.begin(), z.end()) - z.begin());
      right += best == set.labels[i] ? 1U : 0U;
    }
    return static_cast<double>(right) / static_cast<double>(set.labels.size());
  }

  std::vector<std::vector<float>> parameters;

 private:
  void forward(glyph_set const& set, std::span<std::size_t const> batch) {
    auto const n = batch.size();
    values_[0].resize(n * glyph_set::pixels);
    for (auto i = std::size_t{0}; i < n; ++i) {
      auto const image = set.image(batch[i]);
      std::copy(image.begin(), image.end(), &values_[0][i * glyph_set::pixels]);
    }
    for (auto l = std::size_t{0}; l < layers; ++l) {
      auto const in  = widths[l];
      auto const out = widths[l + 1];
      values_[l + 1].resize(n * out);
      for (auto i = std::size_t{0}; i < n; ++i) {
        auto* const y = &values_[l + 1][i * out];
        std::copy(parameters[2 * l + 1].begin(), parameters[2 * l + 1].end(), y);
        for (auto k = std::size_t{0}; k < in; ++k) {
          auto const x        = values_[l][i * in + k];
          auto const* const w = &parameters[2 * l][k * out];
          for (auto o = std::size_t{0}; o < out; ++o) { y[o] += x * w[o]; }
        }
        if (l + 1 < layers) {
          for (auto o = std::size_t{0}; o < out; ++o) { y[o] = std::max(y[o], 0.0F); }
        }
      }
    }
  }

  /// z becomes its softmax; returns the loss.
  [[nodiscard]] static double softmax(std::span<float> z, std::size_t label) {
    auto const top = *std::max_element(z.begin(), z.end());
    auto sum       = 0.0F;
    for (auto& x : z) { sum += x = std::exp(x - top); }
    for (auto& x : z) { x /= sum; }
    return -std::log(std::max(static_cast<double>(z[label]), 1e-30));
  }

  /// values_[l + 1] holds the gradient by the layer's output; values_[l] its input, and then the
  /// gradient by that.
  void backward_layer(std::size_t l, std::size_t n, std::span<std::span<float> const> gradients) {
    auto const in  = widths[l];
    auto const out = widths[l + 1];
    auto const gw  = gradients[2 * l];
    auto const gb  = gradients[2 * l + 1];
    std::fill(gw.begin(), gw.end(), 0.0F);
    std::fill(gb.begin(), gb.end(), 0.0F);
    for (auto i = std::size_t{0}; i < n; ++i) {
      auto const* const dy = &values_[l + 1][i * out];
      for (auto o = std::size_t{0}; o < out; ++o) { gb[o] += dy[o]; }
      for (auto k = std::size_t{0}; k < in; ++k) {
        auto& x             = values_[l][i * in + k];
        auto* const g       = &gw[k * out];
        auto const* const w = &parameters[2 * l][k * out];
        for (auto o = std::size_t{0}; o < out; ++o) { g[o] += x * dy[o]; }
        if (l == 0) { continue; }
        auto dx = 0.0F;
        for (auto o = std::size_t{0}; o < out; ++o) { dx += w[o] * dy[o]; }
        x = x > 0 ? dx : 0.0F;
      }
    }
  }

  std::array<std::vector<float>, layers + 1> values_;  // (batch, widths[l])
};

}  // namespace gradlane::bench

// SPDX-License-Identifier: Apache-2.0
// Optimizers that keep moments, and Adasum: each rank's own Adam runs on a bucket as soon as
// backward has completed it, and what the optimizers want to add to the weights is joined.
//
// Four ranks fit y = 3 x0 - 2 x1 + 1 to points of their own. In step 50 one of them meets a NaN: no
// rank applies that step, and since moments have two places, none remembers it.
#include <gradlane/gradlane.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <iostream>
#include <limits>
#include <span>

namespace {

struct moments {
  float mean{};
  float square{};
};
using weights    = std::array<std::array<float, 2>, 2>;    // of weight (2) and bias (1)
using adam_state = std::array<std::array<moments, 2>, 2>;  // the same

/// deltas of one bucket = -0.05 m / (√v + ε), with m and v unbiased.
void adam(gradlane::bucket_update<gradlane::host::device> const& u,
          std::array<adam_state, 2>& state) {
  auto const& before  = state[*u.steps % 2];
  auto& after         = state[(*u.steps + 1) % 2];
  auto const t        = static_cast<float>(*u.steps + 1);
  auto const unbiased = [t](float x, float decay) { return x / (1.0F - std::pow(decay, t)); };
  for (auto i = std::size_t{0}; i < u.parameters.size(); ++i) {
    auto const p         = u.parameters[i];
    auto const gradients = u.gradients[i].as<float>();
    for (auto k = std::size_t{0}; k < gradients.size(); ++k) {
      auto const g = gradients[k] * *u.coefficient;
      auto& now    = after[p][k];
      now          = {.mean   = 0.9F * before[p][k].mean + 0.1F * g,
                      .square = 0.99F * before[p][k].square + 0.01F * g * g};
      u.deltas[i].as<float>()[k] =
          -0.05F * unbiased(now.mean, 0.9F) / (std::sqrt(unbiased(now.square, 0.99F)) + 1e-6F);
    }
  }
}

/// The gradient of the mean squared error over 16 points of a rank.
void backward(weights const& w, std::span<float> weight, std::span<float> bias, int seed) {
  for (auto const g : {weight, bias}) { std::fill(g.begin(), g.end(), 0.0F); }
  for (auto i = 0; i < 16; ++i) {
    auto const angle = static_cast<float>(seed * 29 + i * 7);
    auto const x     = std::array{std::sin(angle), std::cos(1.7F * angle)};
    auto const error = (w[0][0] - 3.0F) * x[0] + (w[0][1] + 2.0F) * x[1] + (w[1][0] - 1.0F);
    weight[0] += error * x[0] / 8.0F;
    weight[1] += error * x[1] / 8.0F;
    bias[0] += error / 8.0F;
  }
}

}  // namespace

int main() {
  using namespace std::chrono_literals;
  auto wrong = std::atomic<int>{0};
  gradlane::local::run(4, [&](auto& comm, auto& device) {
    auto w            = weights{};
    auto state        = std::array<adam_state, 2>{};
    auto const update = [&](gradlane::bucket_update<gradlane::host::device> const& u) {
      device.enqueue(u.stream, [&state, u] { adam(u, state); });
    };
    auto buckets =
        gradlane::gradient_buckets{device, gradlane::bucket_plan{{{"weight", 2}, {"bias", 1}}}};
    auto reduce =
        gradlane::clip_allreduce{buckets,
                                 comm,
                                 gradlane::clip::none{},
                                 gradlane::reduce::deltas{gradlane::reduce::adasum{}, update},
                                 gradlane::non_finite::skip{}};
    auto compute = device.make_stream();
    auto const g =
        std::array{buckets.template gradient<float>(0), buckets.template gradient<float>(1)};

    for (auto step = 0; step < 400; ++step) {
      reduce.begin(compute);
      backward(w, g[0], g[1], step * comm.size() + comm.rank());
      if (step == 50 && comm.rank() == 2) { g[0][1] = std::numeric_limits<float>::quiet_NaN(); }
      reduce.ready(1, compute);
      reduce.ready(0, compute);
      reduce.finish(compute, 30s);
      for (auto p = std::size_t{0}; p < 2 && reduce.status()->skip == 0; ++p) {
        for (auto k = std::size_t{0}; k < g[p].size(); ++k) { w[p][k] += g[p][k]; }  // deltas now
      }
    }
    auto const& report = reduce.sync_report();
    if (comm.rank() == 0) {
      std::cout << "weights " << w[0][0] << ' ' << w[0][1] << ", bias " << w[1][0] << "; "
                << report.skipped_steps << " step skipped\n";
    }
    auto const error =
        std::abs(w[0][0] - 3.0F) + std::abs(w[0][1] + 2.0F) + std::abs(w[1][0] - 1.0F);
    if (!(error < 0.01F) || report.skipped_steps != 1) { ++wrong; }
  });
  return wrong == 0 ? 0 : 1;
}

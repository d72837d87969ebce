// SPDX-License-Identifier: Apache-2.0
// A trainer that owns its gradients: gradlane packs them into buckets, and unpacks the result.
//
// Two ranks fit y = 3 x0 - 2 x1 + 1 to points of their own by gradient descent; the gradients are
// members of the trainer, and the library never asks it to move them.
#include <gradlane/gradlane.hpp>

#include <array>
#include <cmath>
#include <iostream>
#include <span>
#include <vector>

namespace {

/// y = weight · x + bias, with gradients where the trainer wants them.
struct linear_model {
  std::array<float, 2> weight{};
  std::array<float, 1> bias{};
  std::array<float, 2> weight_gradient{};
  std::array<float, 1> bias_gradient{};
};

/// The mean gradient of the squared error over 64 points of this rank; gives the mean error.
float backward(linear_model& model, int rank, int step) {
  model.weight_gradient = {};
  model.bias_gradient   = {};
  auto loss             = 0.0F;
  constexpr auto points = 64;
  for (auto i = 0; i < points; ++i) {
    auto const angle = static_cast<float>(i * 7 + rank * 13 + step * 29);
    auto const x     = std::array{std::sin(angle), std::cos(1.7F * angle)};
    auto const y     = 3.0F * x[0] - 2.0F * x[1] + 1.0F;
    auto const error = model.weight[0] * x[0] + model.weight[1] * x[1] + model.bias[0] - y;
    loss += error * error / points;
    model.weight_gradient[0] += 2.0F * error * x[0] / points;
    model.weight_gradient[1] += 2.0F * error * x[1] / points;
    model.bias_gradient[0] += 2.0F * error / points;
  }
  return loss;
}

void descend(std::span<float> parameter, std::span<float const> gradient) {
  for (auto i = std::size_t{0}; i < parameter.size(); ++i) { parameter[i] -= 0.3F * gradient[i]; }
}

}  // namespace

int main() {
  gradlane::local::run(2, [](auto& comm, auto& device) {
    auto model      = linear_model{};
    auto parameters = std::vector<gradlane::parameter>{{"weight", 2}, {"bias", 1}};
    auto tensors    = std::vector<gradlane::buffer_view>{std::span{model.weight_gradient},
                                                         std::span{model.bias_gradient}};
    gradlane::detect_ties(parameters, tensors);  // none here: shared memory would be reduced once

    auto buckets = gradlane::gradient_buckets{device, gradlane::bucket_plan{parameters}, tensors};
    auto reduce  = gradlane::clip_allreduce{buckets, comm, gradlane::clip::after{1.0}};
    auto compute = device.make_stream();

    for (auto step = 0; step <= 60; ++step) {
      reduce.begin(compute);
      auto const loss = backward(model, comm.rank(), step);
      reduce.ready(1, compute);
      reduce.ready(0, compute);
      reduce.finish(compute);
      device.sync(compute);
      descend(model.weight, model.weight_gradient);
      descend(model.bias, model.bias_gradient);
      if (comm.rank() == 0 && step % 20 == 0) {
        auto const& report = reduce.sync_report();
        std::cout << "step " << step << ": loss " << loss << ", gradient norm " << report.norm
                  << (report.clipped ? " (clipped)" : "") << '\n';
      }
    }
    if (comm.rank() == 0) {
      std::cout << "y = " << model.weight[0] << " x0 + " << model.weight[1] << " x1 + "
                << model.bias[0] << '\n';
    }
  });
}

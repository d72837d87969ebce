// SPDX-License-Identifier: Apache-2.0
// A small data-parallel trainer over MPI: mpiexec -n 2 ./mpi_trainer
//
// A network of 32 tanh units learns sin(3 x). Each rank draws points of its own; gradients live in
// gradlane's buckets, are marked ready in backward, layer by layer, and the plan is kept beside the
// checkpoint, since the number of buckets is part of what bucket-wise clipping computes.
#include <gradlane/gradlane.hpp>
#include <gradlane/mpi/communicator.hpp>
#include <gradlane/mpi/environment.hpp>

#include <mpi.h>

#include <array>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <exception>
#include <fstream>
#include <iostream>
#include <span>
#include <string>
#include <vector>

namespace {

constexpr auto hidden = std::size_t{32};
constexpr auto points = std::size_t{64};  // of a rank and step

// Forward order; backward completes the gradients in the reverse.
enum parameter_index : std::size_t { w1, b1, w2, b2 };

[[nodiscard]] std::vector<gradlane::parameter> describe_parameters() {
  return {{"w1", hidden}, {"b1", hidden}, {"w2", hidden}, {"b2", 1}};
}

/// A number in [-1, 1) that depends on its arguments alone.
[[nodiscard]] float draw(std::size_t a, std::size_t b) {
  auto const x = std::sin(static_cast<double>(a) * 12.9898 + static_cast<double>(b) * 78.233);
  return static_cast<float>(std::fmod(std::abs(x) * 43758.5453, 2.0) - 1.0);
}

/// The order of the plan of an earlier run, if there is one.
[[nodiscard]] gradlane::bucket_plan load_plan(std::string const& path) {
  auto plan =
      gradlane::bucket_plan{describe_parameters(), {.cap_bytes = 512, .first_cap_bytes = 512}};
  auto file  = std::ifstream{path};
  auto order = std::vector<std::size_t>{};
  for (auto index = std::size_t{0}; file >> index;) { order.push_back(index); }
  return order.empty() ? plan : plan.reordered(order);
}

void save_plan(std::string const& path, gradlane::bucket_plan const& plan) {
  auto file = std::ofstream{path};
  for (auto const index : plan.completion_order()) { file << index << ' '; }
}

/// Adds the gradient of one half of the squared error, one point after the other; gives the error.
/// `done(i)` is called as soon as the gradient of parameter i is complete.
template <class Done>
float backward(std::array<std::vector<float>, 4> const& parameter,
               std::array<std::span<float>, 4> const& gradient,
               std::size_t seed,
               Done done) {
  for (auto const g : gradient) { std::fill(g.begin(), g.end(), 0.0F); }
  auto error = std::array<float, points>{};                      // of the output, per point
  auto unit  = std::array<std::array<float, hidden>, points>{};  // (points, hidden)
  auto loss  = 0.0F;
  for (auto p = std::size_t{0}; p < points; ++p) {
    auto const x = draw(seed, p);
    auto y       = parameter[b2][0];
    for (auto h = std::size_t{0}; h < hidden; ++h) {
      unit[p][h] = std::tanh(parameter[w1][h] * x + parameter[b1][h]);
      y += parameter[w2][h] * unit[p][h];
    }
    error[p] = (y - std::sin(3.0F * x)) / points;
    loss += error[p] * error[p] * points;
  }
  for (auto p = std::size_t{0}; p < points; ++p) { gradient[b2][0] += error[p]; }
  done(b2);
  for (auto p = std::size_t{0}; p < points; ++p) {
    for (auto h = std::size_t{0}; h < hidden; ++h) { gradient[w2][h] += error[p] * unit[p][h]; }
  }
  done(w2);
  for (auto p = std::size_t{0}; p < points; ++p) {
    for (auto h = std::size_t{0}; h < hidden; ++h) {
      auto const inner = error[p] * parameter[w2][h] * (1.0F - unit[p][h] * unit[p][h]);
      gradient[b1][h] += inner;
      gradient[w1][h] += inner * draw(seed, p);
    }
  }
  done(b1);
  done(w1);
  return loss;
}

void train(gradlane::mpi::environment const& environment) {
  using namespace std::chrono_literals;
  auto device     = gradlane::host::device{};
  auto comm       = gradlane::mpi::from_mpi(device, MPI_COMM_WORLD, {.owner = &environment});
  auto const rank = static_cast<std::size_t>(comm.rank());
  auto const path = std::string{"mpi_trainer.plan"};

  auto buckets = gradlane::gradient_buckets{device, load_plan(path)};
  auto clip    = gradlane::clip::bucketwise{gradlane::threshold::by_size{0.5}};
  auto reduce  = gradlane::clip_allreduce{buckets, comm, clip};
  auto compute = device.make_stream();
  if (rank == 0) { std::cout << comm.describe() << '\n' << reduce.describe(); }

  auto parameter = std::array<std::vector<float>, 4>{};
  for (auto const& p : buckets.plan().parameters()) {
    auto const i = buckets.plan().index_of(p.name);
    for (auto k = std::size_t{0}; k < p.count; ++k) {
      parameter[i].push_back(i == b2 ? 0.0F : 0.5F * draw(100 + i, k));
    }
  }
  for (auto step = std::size_t{0}; step <= 1000; ++step) {
    auto gradient = std::array<std::span<float>, 4>{};  // anew, since the plan may have changed
    for (auto const i : {w1, b1, w2, b2}) { gradient[i] = buckets.gradient<float>(i); }

    reduce.begin(compute);
    auto const loss = backward(parameter, gradient, step * 1000 + rank, [&](std::size_t i) {
      reduce.ready(i, compute);  // its bucket is reduced while the loops above go on
    });
    reduce.finish(compute, 30s);  // an error, not a hang, where the other rank has died

    for (auto const i : {w1, b1, w2, b2}) {
      for (auto k = std::size_t{0}; k < parameter[i].size(); ++k) {
        parameter[i][k] -= 0.2F * gradient[i][k];
      }
    }
    if (step % 250 == 0) {
      auto const& report = reduce.sync_report();
      if (rank == 0) {
        std::cout << "step " << step << ": loss " << loss << ", gradient norm " << report.norm
                  << ", buckets clipped so far " << 100.0 * report.clipped_fraction << " %\n";
      }
    }
    if (step == 0) { reduce.sync_learn_order(); }
  }
  if (rank == 0) { save_plan(path, buckets.plan()); }
}

}  // namespace

int main() {
  auto const environment = gradlane::mpi::environment{};
  try {
    train(environment);
  } catch (std::exception const& e) {
    std::cerr << e.what() << '\n';
    return 1;
  }
}

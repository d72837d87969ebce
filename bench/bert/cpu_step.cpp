// SPDX-License-Identifier: Apache-2.0
// A training step of BERT on CPUs: tokens/s, and where the time goes.
//
//   OMP_NUM_THREADS=1 bert_cpu_step --model base --workload natural --sequences 8
//   OMP_NUM_THREADS=1 mpiexec -n 2 bert_cpu_step --model mini --workload full --sequences 16
//   bert_cpu_step --help
//
// The peer is torch_bert.py beside this file; last results are in bench/RESULTS.md.
#include "step_options.hpp"  // for parse_step_options
#include "step_rig.hpp"      // for sync_time
#include "step_table.hpp"    // for measure_all

#include <gradlane/host/device.hpp>       // for device
#include <gradlane/mpi/communicator.hpp>  // for from_mpi
#include <gradlane/mpi/environment.hpp>   // for environment

#include <mpi.h>

#include <bert/cpu/device.hpp>
#include <bert/optimizer.hpp>
#include <omp.h>  // for omp_get_max_threads

#include <algorithm>  // for copy
#include <chrono>     // for duration, steady_clock
#include <cstdio>     // for fprintf
#include <exception>  // for exception
#include <optional>   // for nullopt, optional
#include <span>       // for span
#include <string>     // for string, to_string
#include <utility>    // for move
#include <vector>     // for vector

namespace bert::bench {

namespace {

struct host_clock {
  using point = std::chrono::steady_clock::time_point;

  explicit host_clock(gradlane::host::device::stream&) {}

  [[nodiscard]] static point now() { return std::chrono::steady_clock::now(); }
  [[nodiscard]] static double seconds(point begin, point end) {
    return std::chrono::duration<double>{end - begin}.count();
  }
  void reuse() {}
};

/// The CPU, as step_rig wants to know it.
struct cpu_place {
  using stream = gradlane::host::device::stream;
  template <class Value>
  using device    = bert::cpu::device<Value>;
  using optimizer = bert::optimizer;
  using clock     = host_clock;

  static constexpr auto takes_fp16 = false;

  gradlane::host::device& lane;

  template <class Timed>
  [[nodiscard]] static Timed make_device(part_times<clock>& times, stream&) {
    return Timed{times};
  }
  [[nodiscard]] static optimizer make_optimizer(parameter_list const& list,
                                                optimizer_settings const& settings,
                                                std::span<std::span<float> const>,
                                                stream&) {
    return {list, settings};
  }
  template <class Buffer>
  static void sync_fill(Buffer& buffer, std::vector<float> const& values) {
    std::copy(values.begin(), values.end(), buffer.begin());
  }
  void settle(stream& on) const { lane.sync(on); }
  template <class Model, class Device>
  static void update(optimizer& by,
                     std::span<float> weights,
                     std::span<std::span<float> const> gradients,
                     gradlane::step_status const* status,
                     Model& of,
                     Device&) {
    by.step(weights, gradients, 1e-5, status == nullptr ? gradlane::step_status{} : *status);
    of.refresh();
  }
};

void run(step_options const& wanted, gradlane::mpi::environment const& environment) {
  auto on   = gradlane::host::device{};
  auto comm = gradlane::mpi::from_mpi(on, MPI_COMM_WORLD, {.owner = &environment});
  measure_all(
      on,
      comm,
      wanted,
      "CPU, " + std::to_string(omp_get_max_threads()) + " thread(s) a rank, MPI",
      [&](step_case of,
          std::string const& precision,
          step_options const& how,
          cpu_place::stream& compute,
          reduction_calls const& calls) {
        return sync_time(cpu_place{on}, std::move(of), precision, how, compute, calls);
      },
      [](std::string const&) { return std::optional<double>{}; });
}

}  // namespace

}  // namespace bert::bench

int main(int argc, char** argv) {
  auto exit_code    = 0;
  auto const wanted = bert::bench::parse_step_options(argc, argv, false, exit_code);
  if (!wanted) { return exit_code; }
  auto const environment = gradlane::mpi::environment{};
  try {
    bert::bench::run(*wanted, environment);
  } catch (std::exception const& problem) {
    std::fprintf(stderr, "bert_cpu_step: %s\n", problem.what());
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
}

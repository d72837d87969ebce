// SPDX-License-Identifier: Apache-2.0
// A training step of BERT on GPUs: tokens/s, model-FLOPs utilisation, and where the time goes.
//
//   bert_step --model base large --sequences 32 --lengths wikipedia_lengths.csv
//   mpiexec -n 8 bert_step --nccl --model large --workload natural     one GPU a rank
//   bert_step --help
//
// The peer is torch_bert.py beside this file; commands are in bench/RESULTS.md.
#include "cuda_time.hpp"     // for cuda_device_name, peak_of, sync_time_on_cuda
#include "step_options.hpp"  // for parse_step_options, step_options
#include "step_table.hpp"    // for measure_all

#include <gradlane/cuda/device.cuh>      // for device
#include <gradlane/cuda/error.hpp>       // for check
#include <gradlane/mpi/environment.hpp>  // for environment
#include <gradlane/nccl/from_mpi.hpp>    // for from_mpi

#include <cuda/modelled_link.hpp>  // for link_speed, modelled_link
#include <cuda_runtime_api.h>
#include <mpi.h>

#include <cstdio>     // for fprintf
#include <exception>  // for exception
#include <limits>     // for numeric_limits
#include <string>     // for string, to_string

namespace bert::bench {

namespace {

template <class Comm>
void measure_on(gradlane::cuda::device& on,
                Comm& comm,
                step_options const& wanted,
                std::string const& wire) {
  auto const name = cuda_device_name(on.index());
  measure_all(
      on, comm, wanted, name + ", " + wire, sync_time_on_cuda, [&](std::string const& precision) {
        return peak_of(name, precision);
      });
}

void run(step_options const& wanted) {
  if (!wanted.nccl) {
    auto on    = gradlane::cuda::device{0};
    auto wire  = std::string{"no wire"};
    auto speed = gradlane::bench::link_speed{0, std::numeric_limits<double>::infinity()};
    if (wanted.link_gigabytes > 0) {
      speed = {wanted.link_latency_us, wanted.link_gigabytes};
      wire  = "wire MODELLED: " + std::to_string(wanted.link_latency_us) + " us and " +
             std::to_string(wanted.link_gigabytes) + " GB/s a call";
    }
    auto link = gradlane::bench::modelled_link{speed};
    measure_on(on, link, wanted, wire);
    return;
  }
  auto const environment = gradlane::mpi::environment{};
  auto rank              = 0;
  auto devices           = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  gradlane::cuda::check(cudaGetDeviceCount(&devices));
  auto on   = gradlane::cuda::device{rank % devices};
  auto comm = gradlane::nccl::from_mpi(on, MPI_COMM_WORLD);
  measure_on(on, comm, wanted, "NCCL");
}

}  // namespace

}  // namespace bert::bench

int main(int argc, char** argv) {
  auto exit_code    = 0;
  auto const wanted = bert::bench::parse_step_options(argc, argv, true, exit_code);
  if (!wanted) { return exit_code; }
  try {
    bert::bench::run(*wanted);
  } catch (std::exception const& problem) {
    std::fprintf(stderr, "bert_step: %s\n", problem.what());
    return 1;
  }
}

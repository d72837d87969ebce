// SPDX-License-Identifier: Apache-2.0
// BERT pretraining on GPUs, one a rank: mpiexec -n 2 ./bert_train_cuda [--help]
#include "train/command_line.hpp"  // for command_line, precision, program
#include "train/corpus.hpp"        // for corpus
#include "train/cuda_place.cuh"    // for cuda_place
#include "train/gpu_of.hpp"        // for gpu_of
#include "train/program.hpp"       // for prepare, run_program
#include "train/run.hpp"           // for training_run

#include <gradlane/cuda/device.cuh>        // for device
#include <gradlane/cuda/error.hpp>         // for check
#include <gradlane/host/device.hpp>        // for device
#include <gradlane/mpi/communicator.hpp>   // for communicator, from_mpi
#include <gradlane/mpi/environment.hpp>    // for environment
#include <gradlane/nccl/communicator.hpp>  // for communicator
#include <gradlane/nccl/from_mpi.hpp>      // for from_mpi
#include <gradlane/types.hpp>              // for bf16, fp16

#include <cuda_runtime_api.h>
#include <mpi.h>

namespace {

auto const self = bert::program{.name = "bert_train_cuda", .on_gpus = true};

[[nodiscard]] int count_gpus() {
  auto count      = 0;
  auto const code = cudaGetDeviceCount(&count);
  if (code == cudaErrorNoDevice || code == cudaErrorInsufficientDriver) { return 0; }
  gradlane::cuda::check(code);
  return count;
}

/// The ranks of this program, as hosts and as GPUs.
struct ranks {
  gradlane::host::device host;
  gradlane::mpi::communicator hosts;
  gradlane::cuda::device gpu;
  gradlane::nccl::communicator gpus;

  explicit ranks(gradlane::mpi::environment const& environment)
      : hosts{gradlane::mpi::from_mpi(host, MPI_COMM_WORLD, {.owner = &environment})},
        gpu{own_gpu()},
        gpus{gradlane::nccl::from_mpi(gpu, MPI_COMM_WORLD)} {}

 private:
  [[nodiscard]] int own_gpu() {
    auto const node  = hosts.node_group();
    auto const index = bert::gpu_of(node.rank(), node.size(), count_gpus());
    gradlane::cuda::check(cudaSetDevice(index));
    return index;
  }
};

template <class Value>
void run(bert::assignment const& job, ranks& on) {
  using place  = bert::cuda_place<Value, gradlane::nccl::communicator, gradlane::mpi::communicator>;
  auto session = bert::training_run<place>{
      job.wanted, {on.gpu, on.gpus, on.host, on.hosts, job.wanted.graphs}, job.text};
  session.train();
}

int train(int argc, char** argv, gradlane::mpi::environment const& environment) {
  auto exit_code = 0;
  auto const job = bert::prepare(self, argc, argv, exit_code);
  if (!job) { return exit_code; }
  auto on = ranks{environment};
  switch (job->wanted.compute) {
    case bert::precision::fp32:
      run<float>(*job, on);
      break;
    case bert::precision::bf16:
      run<gradlane::bf16>(*job, on);
      break;
    case bert::precision::fp16:
      run<gradlane::fp16>(*job, on);
      break;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return bert::run_program(self,
                           [&](auto const& environment) { return train(argc, argv, environment); });
}

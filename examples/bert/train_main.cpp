// SPDX-License-Identifier: Apache-2.0
// BERT pretraining on MPI ranks: mpiexec -n 2 ./bert_train [--help]
#include "train/command_line.hpp"  // for command_line, precision, program
#include "train/corpus.hpp"        // for corpus
#include "train/cpu_place.hpp"     // for cpu_place
#include "train/program.hpp"       // for prepare, run_program
#include "train/run.hpp"           // for training_run

#include <gradlane/host/device.hpp>       // for device
#include <gradlane/mpi/communicator.hpp>  // for communicator, from_mpi
#include <gradlane/mpi/environment.hpp>   // for environment
#include <gradlane/types.hpp>             // for bf16

#include <mpi.h>

#include <omp.h>

#include <algorithm>  // for max
#include <cstdlib>    // for getenv

namespace {

auto const self = bert::program{.name = "bert_train", .on_gpus = false};

/// The threads wanted, else those that OMP_NUM_THREADS says, else a fair share of the node's.
void set_threads(int wanted, int ranks_on_node) {
  auto const* const said = std::getenv("OMP_NUM_THREADS");  // NOLINT(concurrency-mt-unsafe)
  if (wanted > 0) {
    omp_set_num_threads(wanted);
  } else if (said == nullptr) {
    omp_set_num_threads(std::max(1, omp_get_num_procs() / ranks_on_node));
  }
}

template <class Value>
void run(bert::command_line const& wanted,
         gradlane::host::device& lane,
         gradlane::mpi::communicator& comm,
         bert::corpus const& text) {
  using place  = bert::cpu_place<Value, gradlane::mpi::communicator>;
  auto session = bert::training_run<place>{wanted, {lane, comm}, text};
  session.train();
}

int train(int argc, char** argv, gradlane::mpi::environment const& environment) {
  auto exit_code = 0;
  auto const job = bert::prepare(self, argc, argv, exit_code);
  if (!job) { return exit_code; }
  auto lane = gradlane::host::device{};
  auto comm = gradlane::mpi::from_mpi(lane, MPI_COMM_WORLD, {.owner = &environment});
  set_threads(job->wanted.threads, comm.node_group().size());
  if (job->wanted.compute == bert::precision::bf16) {
    run<gradlane::bf16>(job->wanted, lane, comm, job->text);
  } else {
    run<float>(job->wanted, lane, comm, job->text);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return bert::run_program(self,
                           [&](auto const& environment) { return train(argc, argv, environment); });
}

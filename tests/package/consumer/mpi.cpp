// SPDX-License-Identifier: Apache-2.0
#include <gradlane/gradlane.hpp>          // for expects, host::device
#include <gradlane/mpi/communicator.hpp>  // for from_mpi, options
#include <gradlane/mpi/environment.hpp>   // for environment

#include <mpi.h>

int main() {
  auto const mpi = gradlane::mpi::environment{};
  auto device    = gradlane::host::device{};
  auto const all = gradlane::mpi::from_mpi(device, MPI_COMM_WORLD, {.owner = &mpi});
  gradlane::expects(all.size() == 2, "this program runs on two ranks");
}

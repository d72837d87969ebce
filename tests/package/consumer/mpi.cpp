// SPDX-License-Identifier: Apache-2.0
#include <gradlane/gradlane.hpp>  // for expects

#include <mpi.h>

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  auto size = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  gradlane::expects(size == 2, "this program runs on two ranks");
  MPI_Finalize();
  return 0;
}

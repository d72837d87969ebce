// SPDX-License-Identifier: Apache-2.0
// main() of every test that runs on MPI ranks: all ranks run all cases, and all fail if one does.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <mpi.h>

int main(int argc, char** argv) {
  auto provided = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
  auto const here = doctest::Context{argc, argv}.run();
  auto worst      = 0;
  MPI_Allreduce(&here, &worst, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
  MPI_Finalize();
  return worst;
}

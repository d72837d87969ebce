// SPDX-License-Identifier: Apache-2.0
// main() of every test that runs on MPI ranks: all ranks run all cases, and all fail if one does.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <mpi.h>

#include <cstdio>   // for fprintf, stderr
#include <cstdlib>  // for getenv
#include <string>   // for to_string

int main(int argc, char** argv) {
  auto provided = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
  auto size = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  auto const* const wanted = std::getenv("GRADLANE_TEST_RANKS");
  if (wanted != nullptr && std::to_string(size) != wanted) {
    std::fprintf(stderr, "mpiexec started %d ranks in one world, not %s\n", size, wanted);
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  auto const here = doctest::Context{argc, argv}.run();
  auto worst      = 0;
  MPI_Allreduce(&here, &worst, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
  MPI_Finalize();
  return worst;
}

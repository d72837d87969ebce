// SPDX-License-Identifier: Apache-2.0
// main() of every test that runs on MPI ranks: all ranks run all cases, and all fail if one does.
// The environment variable GRADLANE_MPI_LEVEL (single, funneled, serialized, multiple) sets the
// thread level; multiple is the default.
#include <support/watchdog.hpp>  // for watchdog, watchdog_listener

#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <mpi.h>

#include <cstdio>       // for fflush, fprintf, printf
#include <cstdlib>      // for getenv
#include <sstream>      // for ostringstream
#include <string>       // for string, to_string
#include <string_view>  // for string_view

REGISTER_LISTENER("watchdog", 0, gradlane::test::watchdog_listener);

namespace {

[[nodiscard]] int wanted_level() {
  auto const* const wish = std::getenv("GRADLANE_MPI_LEVEL");  // NOLINT(concurrency-mt-unsafe)
  auto const level       = std::string_view{wish == nullptr ? "multiple" : wish};
  if (level == "single") { return MPI_THREAD_SINGLE; }
  if (level == "funneled") { return MPI_THREAD_FUNNELED; }
  if (level == "serialized") { return MPI_THREAD_SERIALIZED; }
  return MPI_THREAD_MULTIPLE;
}

}  // namespace

int main(int argc, char** argv) {
  auto provided = 0;
  MPI_Init_thread(&argc, &argv, wanted_level(), &provided);
  auto rank = 0;
  auto size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  auto const* const wanted = std::getenv("GRADLANE_TEST_RANKS");  // NOLINT(concurrency-mt-unsafe)
  if (wanted != nullptr && std::to_string(size) != wanted) {
    std::fprintf(stderr, "mpiexec started %d ranks in one world, not %s\n", size, wanted);
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  auto worst = 0;
  {
    auto guard =
        gradlane::test::watchdog{"rank " + std::to_string(rank) + " of " + std::to_string(size)};
    gradlane::test::current_watchdog = &guard;
    auto context                     = doctest::Context{argc, argv};
    auto text                        = std::ostringstream{};
    context.setCout(&text);
    auto const here = context.run();
    if (rank == 0 || here != 0) {  // the others speak up when they fail, each in one piece
      std::printf("rank %d\n%s", rank, text.str().c_str());
      std::fflush(stdout);
    }
    guard.begin("(waiting for the other ranks to finish)");
    MPI_Allreduce(&here, &worst, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
  }
  MPI_Finalize();
  return worst;
}

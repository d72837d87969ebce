// SPDX-License-Identifier: Apache-2.0
// Rank 1 is killed in the middle of an all-reduce; the others must get a timeout_error within their
// deadline, say so, and end. peer_killed_test.sh runs it. Argument: the thread level.
#include <gradlane/error.hpp>             // for timeout_error
#include <gradlane/host/device.hpp>       // for device
#include <gradlane/mpi/communicator.hpp>  // for from_mpi
#include <gradlane/mpi/environment.hpp>   // for environment, thread_support

#include <mpi.h>

#include <chrono>       // for milliseconds, seconds, steady_clock
#include <csignal>      // for raise, SIGKILL
#include <cstddef>      // for size_t
#include <cstdio>       // for fflush, printf
#include <span>         // for span
#include <string_view>  // for string_view
#include <thread>       // for sleep_for
#include <vector>       // for vector

int main(int argc, char** argv) {
  using namespace std::chrono_literals;
  using gradlane::mpi::thread_support;
  auto const funneled = argc == 2 && std::string_view{argv[1]} == "funneled";
  auto const environment =
      gradlane::mpi::environment{funneled ? thread_support::funneled : thread_support::multiple};
  auto d = gradlane::host::device{};
  auto c = gradlane::mpi::from_mpi(d, MPI_COMM_WORLD, {.owner = &environment});
  auto x = std::vector<float>(std::size_t{1} << 22U);
  auto s = d.make_stream(gradlane::stream_priority::normal);
  c.set_deadline(2s);
  c.all_reduce(s, std::span{x}, std::span{x}, gradlane::reduction::sum);
  d.sync(s);
  auto const begin = std::chrono::steady_clock::now();
  for (int step = 0;; ++step) {
    c.all_reduce(s, std::span{x}, std::span{x}, gradlane::reduction::sum);
    if (c.rank() == 1 && step == 3) {
      std::this_thread::sleep_for(2ms);
      std::raise(SIGKILL);
    }
    try {
      d.sync(s);
    } catch (gradlane::timeout_error const& e) {
      auto const late = std::chrono::steady_clock::now() - begin > 20s;
      c.abort();
      std::printf(
          "survivor %d of %d%s: %s\n", c.rank(), c.size(), late ? ", too late" : "", e.what());
      std::fflush(stdout);
      return late ? 1 : 0;  // without MPI_Finalize, which would wait for rank 1
    }
  }
}

// SPDX-License-Identifier: Apache-2.0
// Rank 1 is killed between all-reduces; the others must get a typed error, say so, free both of
// their communicators, and end. mpi/peer_killed_test.sh runs it. Argument: which one ends first.
#include <gradlane/cuda/device.cuh>        // for device
#include <gradlane/error.hpp>              // for communication_error
#include <gradlane/mpi/environment.hpp>    // for environment
#include <gradlane/nccl/communicator.hpp>  // for communicator
#include <gradlane/nccl/from_mpi.hpp>      // for from_mpi

#include <mpi.h>
#include <nccl/support.cuh>  // for own_device

#include <chrono>       // for seconds
#include <csignal>      // for raise, SIGKILL
#include <cstdio>       // for fflush, printf
#include <memory>       // for make_unique
#include <string_view>  // for string_view

int main(int argc, char** argv) {
  using namespace std::chrono_literals;
  auto const child_first = argc == 2 && std::string_view{argv[1]} == "child_first";
  auto environment       = gradlane::mpi::environment{};
  auto d                 = gradlane::cuda::device{gradlane::test::own_device()};
  auto c =
      std::make_unique<gradlane::nccl::communicator>(gradlane::nccl::from_mpi(d, MPI_COMM_WORLD));
  auto child   = std::make_unique<gradlane::nccl::communicator>(c->split(0, c->rank()));
  auto memory  = d.allocate(1 << 20);
  auto const x = gradlane::buffer_view{memory.data(), 1 << 18, gradlane::dtype::fp32};
  auto s       = d.make_stream(gradlane::stream_priority::high);
  d.zero(s, x);
  c->set_deadline(20s);  // where NCCL does not see that a process has died
  for (int step = 0;; ++step) {
    if (c->rank() == 1 && step == 3) { std::raise(SIGKILL); }
    try {
      c->all_reduce(s, x, x, gradlane::reduction::sum);
      d.sync(s);
    } catch (gradlane::communication_error const& e) {
      std::printf("survivor %d of %d: %s\n", c->rank(), c->size(), e.what());
      std::fflush(stdout);
      environment.abandon();
      child->abort();
      if (child_first) { child.reset(); }
      c.reset();
      return 0;  // without MPI_Finalize, which would wait for rank 1
    }
  }
}

// SPDX-License-Identifier: Apache-2.0
// Rank 1 is killed between two buckets of a step; the others must learn within their deadline which
// bucket and parameter that leaves, and end. ../mpi/peer_killed_test.sh runs it. Argument: the
// thread level.
#include <gradlane/gradlane.hpp>
#include <gradlane/mpi/communicator.hpp>
#include <gradlane/mpi/environment.hpp>

#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <string_view>
#include <thread>

int main(int argc, char** argv) {
  using namespace std::chrono_literals;
  using namespace gradlane;
  auto const funneled    = argc == 2 && std::string_view{argv[1]} == "funneled";
  auto const level       = funneled ? mpi::thread_support::funneled : mpi::thread_support::multiple;
  auto const environment = mpi::environment{level};
  auto device            = host::device{};
  auto comm              = mpi::from_mpi(device, MPI_COMM_WORLD, {.owner = &environment});
  auto buckets           = gradient_buckets{device,
                                  bucket_plan{{{"p0", 1000}, {"p1", 1000}, {"p2", 1000}},
                                                        {.cap_bytes = 1, .first_cap_bytes = 1}}};
  auto pipeline          = clip_allreduce{buckets, comm, clip::bucketwise{threshold::equal{1.0}}};
  auto compute           = device.make_stream();
  for (auto step = 0;; ++step) {
    pipeline.begin(compute);
    for (auto p = std::size_t{3}; p-- > 0;) {
      auto const g = buckets.gradient<float>(p);
      std::fill(g.begin(), g.end(), 1.0F);
      if (comm.rank() == 1 && step == 3 && p == 1) {
        device.sync(compute);
        std::raise(SIGKILL);
      }
      pipeline.ready(p, compute);
      // Rank 1 dies after its part in bucket 0, which the others may then complete.
      for (auto turn = 0; step == 3 && p == 2 && turn < 100; ++turn) {
        comm.poll();
        std::this_thread::sleep_for(2ms);
      }
    }
    try {
      pipeline.finish(compute, 2s);
    } catch (timeout_error const& e) {
      std::printf("survivor %d of %d: %s\n", comm.rank(), comm.size(), e.what());
      std::fflush(stdout);
      return 0;  // without MPI_Finalize, which would wait for rank 1
    }
  }
}

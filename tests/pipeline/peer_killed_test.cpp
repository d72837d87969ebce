// SPDX-License-Identifier: Apache-2.0
// Rank 1 is killed between two buckets of a step; the others must learn within their deadline which
// bucket and parameter that leaves, and end. ../mpi/peer_killed_test.sh runs it. Arguments: the
// thread level, and how many ranks share a node: then joined by Adasum over the nodes, so that some
// survivors are in no group with rank 1 but that of all.
#include <gradlane/gradlane.hpp>
#include <gradlane/mpi/communicator.hpp>
#include <gradlane/mpi/environment.hpp>

#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string_view>
#include <thread>

namespace {

using namespace gradlane;
using any_pipeline = reduction_pipeline<host::device, mpi::communicator>;

[[nodiscard]] std::unique_ptr<any_pipeline> make_pipeline(gradient_buckets<host::device>& buckets,
                                                          mpi::communicator& comm,
                                                          int per_node) {
  auto const make = [&](auto reduction) -> std::unique_ptr<any_pipeline> {
    using clip = clip::bucketwise<threshold::equal>;
    return std::make_unique<
        clip_allreduce<host::device, mpi::communicator, clip, decltype(reduction)>>(
        buckets, comm, clip{threshold::equal{1.0}}, reduction);
  };
  if (per_node == 0) { return make(average::ranks{}); }
  return make(reduce::adasum_hierarchical{.node = comm.rank() / per_node});
}

}  // namespace

int main(int argc, char** argv) {
  using namespace std::chrono_literals;
  auto const funneled    = argc >= 2 && std::string_view{argv[1]} == "funneled";
  auto const per_node    = argc >= 3 ? static_cast<int>(std::strtol(argv[2], nullptr, 10)) : 0;
  auto const level       = funneled ? mpi::thread_support::funneled : mpi::thread_support::multiple;
  auto const environment = mpi::environment{level};
  auto device            = host::device{};
  auto comm              = mpi::from_mpi(device, MPI_COMM_WORLD, {.owner = &environment});
  auto buckets           = gradient_buckets{device,
                                  bucket_plan{{{"p0", 1000}, {"p1", 1000}, {"p2", 1000}},
                                                        {.cap_bytes = 1, .first_cap_bytes = 1}}};
  auto const pipeline    = make_pipeline(buckets, comm, per_node);
  auto compute           = device.make_stream();
  for (auto step = 0;; ++step) {
    pipeline->begin(compute);
    for (auto p = std::size_t{3}; p-- > 0;) {
      auto const g = buckets.gradient<float>(p);
      std::fill(g.begin(), g.end(), 1.0F);
      if (comm.rank() == 1 && step == 3 && p == 1) {
        device.sync(compute);
        std::raise(SIGKILL);
      }
      pipeline->ready(p, compute);
      // Rank 1 dies after its part in bucket 0, which the others may then complete.
      for (auto turn = 0; step == 3 && p == 2 && turn < 100; ++turn) {
        comm.poll();
        std::this_thread::sleep_for(2ms);
      }
    }
    try {
      pipeline->finish(compute, 2s);
    } catch (timeout_error const& e) {
      std::printf("survivor %d of %d: %s\n", comm.rank(), comm.size(), e.what());
      std::fflush(stdout);
      return 0;  // without MPI_Finalize, which would wait for rank 1
    }
  }
}

// SPDX-License-Identifier: Apache-2.0
// Sharded pipelines over MPI, on any number of ranks.
#include <gradlane/gradlane.hpp>
#include <gradlane/mpi/communicator.hpp>

#include <doctest/doctest.h>

#include <mpi.h>

#include <support/shards.hpp>

TEST_CASE("parameter_shards over MPI train as whole parameters do") {
  auto device = gradlane::host::device{};
  auto comm   = gradlane::mpi::from_mpi(device, MPI_COMM_WORLD);
  for (auto const by : {gradlane::shard_by::elements, gradlane::shard_by::parameters}) {
    CHECK(gradlane::test::train_both_ways(comm, device, 10, by) <= 16e-6);
  }
}

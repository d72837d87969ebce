// SPDX-License-Identifier: Apache-2.0
// Local optimizers whose deltas are joined over MPI, on any number of ranks.
#include <gradlane/gradlane.hpp>
#include <gradlane/mpi/communicator.hpp>

#include <doctest/doctest.h>

#include <mpi.h>

#include <support/deltas.hpp>

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

TEST_CASE("reduce::deltas over MPI joins Adam's deltas by Adasum, and skips on all ranks") {
  using namespace gradlane;
  auto const sizes = std::vector<std::size_t>{5, 0, 300, 64, 9, 900};
  auto device      = host::device{};
  auto comm        = mpi::from_mpi(device, MPI_COMM_WORLD);
  auto trainer     = test::delta_trainer<host::device,
                                         mpi::communicator,
                                         test::adam_optimizer,
                                         clip::none,
                                         reduce::adasum>{
      device,
      comm,
      sizes,
      clip::none{},
      reduce::adasum{},
      {.buckets = test::one_each, .bad = {.rank = comm.size() - 1, .parameter = 3}}};
  auto expected = test::delta_reference<test::adam_optimizer, reduce::adasum>{
      comm.size(), sizes, reduce::adasum{}};
  auto random = std::mt19937_64{static_cast<unsigned>(comm.rank())};
  for (auto step = std::uint64_t{0}; step < 10; ++step) {
    trainer.step(random);
    auto const skipped = test::bad_gradient::is_bad(step);
    if (!skipped) { expected.step(step, 1, test::never_clipped()); }
    CHECK(trainer.error(expected.weights()) <= 2e-5);
    CHECK(trainer.pipeline().sync_report().skipped == skipped);
  }
}

// SPDX-License-Identifier: Apache-2.0
// Adasum over MPI: any number of ranks, every thread level, every node layout.
#include <gradlane/adasum.hpp>
#include <gradlane/host/device.hpp>
#include <gradlane/local/communicator.hpp>
#include <gradlane/local/run.hpp>
#include <gradlane/mpi/communicator.hpp>

#include <doctest/doctest.h>

#include <mpi.h>

#include <support/adasum.hpp>

#include <cstddef>
#include <string>
#include <vector>

namespace {

using namespace gradlane;

/// What ranks that are threads have in the end.
[[nodiscard]] std::vector<std::byte> by_threads(int ranks, test::adasum_case const& input) {
  auto result = std::vector<std::byte>{};
  local::run(ranks, [&](local::communicator& comm, host::device& device) {
    auto own = test::run_adasum(comm, device, input, [](bool) {});
    if (comm.rank() == 0) { result = std::move(own); }
  });
  return result;
}

}  // namespace

TEST_CASE("adasum_all_reduce over MPI agrees with the tree, with the bits of ranks on one node") {
  auto device = host::device{};
  auto comm   = mpi::from_mpi(device, MPI_COMM_WORLD);
  for (auto const type : {dtype::fp32, dtype::fp64, dtype::bf16, dtype::fp16}) {
    CAPTURE(name_of(type));
    auto const input  = test::mixed_case(type, 11);
    auto const result = test::run_adasum(comm, device, input, [](bool holds) { CHECK(holds); });
    CHECK(result == by_threads(comm.size(), input));
  }
}

TEST_CASE("adasum_all_reduce over MPI reduces many buffers in turn, again and again") {
  auto device      = host::device{};
  auto comm        = mpi::from_mpi(device, MPI_COMM_WORLD);
  auto const input = test::mixed_case(dtype::fp32, 12);
  auto memory      = std::vector<std::vector<float>>(6, std::vector<float>(input.count));
  auto buffers     = std::vector<adasum_buffer>{};
  for (auto& m : memory) { buffers.push_back({std::span{m}, input.segments}); }
  auto reduction = adasum_all_reduce{device, comm, buffers};
  auto s         = device.make_stream();
  for (auto step = 0; step < 5; ++step) {
    for (auto& m : memory) { input.fill(std::span{m}, comm.rank()); }
    for (auto b = std::size_t{0}; b < memory.size(); ++b) { reduction.reduce(s, b); }
    device.sync(s);
    for (auto& m : memory) {
      for (auto t = std::size_t{0}; t < input.segments.size(); ++t) {
        CHECK(test::bytes_of(std::span{m}, input.segments[t]) ==
              test::bytes_of(std::span{memory[0]}, input.segments[t]));
      }
    }
  }
  if (comm.size() > 1) { CHECK(input.error(std::span{memory[0]}, comm.size(), 3) < 12); }
}

TEST_CASE("adasum_all_reduce over MPI refuses ranks that disagree, on all of them") {
  auto device = host::device{};
  auto comm   = mpi::from_mpi(device, MPI_COMM_WORLD);
  if (comm.size() == 1) { return; }
  auto memory     = std::vector<float>(64);
  auto const last = comm.rank() == comm.size() - 1;
  auto const make = [&] {
    static_cast<void>(
        adasum_all_reduce{device, comm, {{std::span{memory}, {{0, last ? 20U : 30U}}}}});
  };
  auto const wanted =
      "rank " + std::to_string(comm.size() - 1) + " has buffer 0, segment 0: elements [0, 20)";
  CHECK_THROWS_WITH_AS(make(), doctest::Contains(wanted.c_str()), plan_mismatch_error);
}

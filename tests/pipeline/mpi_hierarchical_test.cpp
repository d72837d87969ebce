// SPDX-License-Identifier: Apache-2.0
// Adasum over nodes, over MPI: nodes that are given, and those that MPI finds.
#include <gradlane/gradlane.hpp>
#include <gradlane/mpi/communicator.hpp>

#include <doctest/doctest.h>

#include <mpi.h>

#include <support/adasum_steps.hpp>
#include <support/model.hpp>
#include <support/mpi_nodes.hpp>

#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

namespace {

using namespace gradlane;

auto const sizes = std::vector<std::size_t>{5, 0, 300, 64, 9, 900};

/// Two steps; gives the bytes of all gradients.
template <class Comm>
[[nodiscard]] std::vector<std::byte> run_steps(Comm& comm,
                                               host::device& device,
                                               reduce::adasum_hierarchical policy,
                                               test::node_layout const& layout) {
  auto buckets = gradient_buckets{
      device,
      bucket_plan{test::parameters(sizes),
                  {.cap_bytes = 1200, .first_cap_bytes = 300, .pad_to = layout.size()}}};
  auto pipeline = clip_allreduce{buckets, comm, clip::none{}, policy};
  auto compute  = device.make_stream();
  auto result   = std::vector<std::byte>{};
  for (auto step = std::size_t{0}; step < 2; ++step) {
    test::poison_all(buckets);
    test::run_step(pipeline, buckets, compute, [&](std::size_t p, buffer_view view) {
      test::write(view, comm.rank(), step, p);
    });
    auto const g        = test::all_gradients(comm.size(), step, sizes);
    auto const expected = test::adasum(g, test::ones(g), layout);
    CHECK(test::largest_error(buckets, expected) <= 4 * 0x1p-23 * 8 * 1.5 * comm.size());
    auto const bytes = test::sync_snapshot(buckets).bytes();
    result.insert(result.end(), bytes.begin(), bytes.end());
  }
  return result;
}

/// Whether all ranks have the bytes of rank 0.
[[nodiscard]] bool same_on_all_ranks(std::vector<std::byte> const& own) {
  auto first = own;
  MPI_Bcast(first.data(), static_cast<int>(first.size()), MPI_BYTE, 0, MPI_COMM_WORLD);
  auto same = static_cast<int>(first == own);
  MPI_Allreduce(MPI_IN_PLACE, &same, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
  return same == 1;
}

}  // namespace

TEST_CASE("reduce::adasum_hierarchical over MPI agrees with the tree over nodes that are given") {
  auto device = host::device{};
  auto comm   = mpi::from_mpi(device, MPI_COMM_WORLD);
  for (auto per_node = 1; per_node <= comm.size(); ++per_node) {
    if (comm.size() % per_node != 0) { continue; }
    CAPTURE(per_node);
    auto const layout = test::grid_of(comm.size() / per_node, per_node);
    auto const node   = comm.rank() / per_node;
    CHECK(same_on_all_ranks(run_steps(comm, device, {.node = node}, layout)));
  }
}

TEST_CASE("reduce::adasum_hierarchical over MPI finds the nodes, or refuses unequal ones") {
  auto device      = host::device{};
  auto comm        = mpi::from_mpi(device, MPI_COMM_WORLD);
  auto const own   = comm.node_group().size();
  auto least       = 0;
  auto most        = 0;
  auto const nodes = test::nodes_of_mpi(comm.size());
  MPI_Allreduce(&own, &least, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
  MPI_Allreduce(&own, &most, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
  CHECK((least == most) == (comm.size() % nodes == 0));
  if (least != most) {
    auto buckets    = gradient_buckets{device, bucket_plan{test::parameters({4})}};
    auto const make = [&] {
      auto const pipeline =
          clip_allreduce{buckets, comm, clip::none{}, reduce::adasum_hierarchical{}};
    };
    CHECK_THROWS_WITH_AS(make(), doctest::Contains("nodes must be equally large"), contract_error);
    return;
  }
  // which ranks share a node is MPICH's choice
  auto lowest = comm.rank();
  auto group  = comm.node_group();
  auto s      = device.make_stream();
  group.broadcast(s, buffer_view{reinterpret_cast<std::byte*>(&lowest), 1, dtype::int32}, 0);
  device.sync(s);
  auto layout = test::node_layout(static_cast<std::size_t>(comm.size()));
  MPI_Allgather(&lowest, 1, MPI_INT, layout.data(), 1, MPI_INT, MPI_COMM_WORLD);
  CHECK(same_on_all_ranks(run_steps(comm, device, {}, layout)));
}

TEST_CASE("reduce::adasum_hierarchical over MPI skips on all ranks what is not finite on one") {
  auto device    = host::device{};
  auto comm      = mpi::from_mpi(device, MPI_COMM_WORLD);
  auto const odd = comm.size() % 2 == 1;
  auto buckets   = gradient_buckets{
      device, bucket_plan{test::parameters({40, 7}), {.pad_to = static_cast<std::size_t>(2)}}};
  auto pipeline = clip_allreduce{buckets,
                                 comm,
                                 clip::bucketwise{threshold::equal{1.0}},
                                 reduce::adasum_hierarchical{.node = comm.rank() / (odd ? 1 : 2)},
                                 non_finite::skip{}};
  auto compute  = device.make_stream();
  for (auto const bad : {false, true, false}) {
    test::run_step(pipeline, buckets, compute, [&](std::size_t p, buffer_view view) {
      test::write(view, comm.rank(), 1, p);
      if (bad && comm.rank() == comm.size() - 1) { test::store(view, 6, std::nan("")); }
    });
    CHECK(pipeline.sync_report().skipped == bad);
  }
}

// SPDX-License-Identifier: Apache-2.0
// Adasum over NCCL, on MPI_COMM_WORLD's ranks: combined by kernels, nothing staged on the host.
#include <gradlane/adasum.hpp>             // for adasum_all_reduce
#include <gradlane/clip_allreduce.hpp>     // for clip_allreduce
#include <gradlane/cuda/device.cuh>        // for device
#include <gradlane/cuda/error.hpp>         // for check
#include <gradlane/error.hpp>              // for communication_error
#include <gradlane/nccl/communicator.hpp>  // for communicator
#include <gradlane/nccl/from_mpi.hpp>      // for from_mpi

#include <doctest/doctest.h>

#include <cuda_runtime_api.h>
#include <mpi.h>
#include <nccl/support.cuh>  // for own_device

#include <support/adasum.hpp>

#include <array>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace {

using gradlane::dtype;
namespace test = gradlane::test;

/// Whether all ranks have the bytes of rank 0.
[[nodiscard]] bool same_on_all_ranks(std::vector<std::byte> const& own) {
  auto first = own;
  MPI_Bcast(first.data(), static_cast<int>(first.size()), MPI_BYTE, 0, MPI_COMM_WORLD);
  auto same = static_cast<int>(first == own);
  MPI_Allreduce(MPI_IN_PLACE, &same, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
  return same == 1;
}

}  // namespace

TEST_CASE("adasum_all_reduce over NCCL agrees with the tree, with the same bits on all ranks") {
  auto device = gradlane::cuda::device{test::own_device()};
  auto comm   = gradlane::nccl::from_mpi(device, MPI_COMM_WORLD);
  for (auto const type : {dtype::fp32, dtype::fp64, dtype::bf16, dtype::fp16}) {
    CAPTURE(gradlane::name_of(type));
    auto const input  = test::mixed_case(type, 11);
    auto const result = test::run_adasum(comm, device, input, [](bool holds) { CHECK(holds); });
    CHECK(same_on_all_ranks(result));
  }
}

TEST_CASE("adasum_all_reduce over NCCL is replayed from a CUDA graph with other gradients") {
  auto device     = gradlane::cuda::device{test::own_device()};
  auto comm       = gradlane::nccl::from_mpi(device, MPI_COMM_WORLD);
  auto const like = test::mixed_case(dtype::fp32, 31);
  auto memory     = device.allocate(like.count * sizeof(float));
  auto const view = gradlane::buffer_view{memory.data(), like.count, dtype::fp32};
  auto here       = test::host_copy{view};
  auto reduction  = gradlane::adasum_all_reduce{device, comm, {{view, like.segments}}};
  auto s          = device.make_stream();
  auto const fill = [&](test::adasum_case const& input) {
    input.fill(here.view(), comm.rank());
    gradlane::detail::upload_all(device, s, here.bytes(), view.data());
  };
  fill(like);
  reduction.reduce(s);  // once as it is: NCCL connects the ranks
  device.sync(s);

  auto graph = cudaGraph_t{};
  auto ready = cudaGraphExec_t{};
  gradlane::cuda::check(cudaStreamBeginCapture(s.get(), cudaStreamCaptureModeThreadLocal));
  reduction.reduce(s);
  gradlane::cuda::check(cudaStreamEndCapture(s.get(), &graph));
  gradlane::cuda::check(cudaGraphInstantiate(&ready, graph, 0));
  auto const bound = comm.size() == 1 ? 0.0 : 4 * std::log2(comm.size());
  for (auto step = std::uint64_t{0}; step < 5; ++step) {
    auto const input = test::mixed_case(dtype::fp32, 40 + step);
    fill(input);
    gradlane::cuda::check(cudaGraphLaunch(ready, s.get()));
    device.download(s, view, here.bytes());
    device.sync(s);
    for (auto t = std::size_t{0}; t < input.segments.size(); ++t) {
      CHECK(input.error(here.view(), comm.size(), t) <= bound);
    }
  }
  comm.poll();
  gradlane::cuda::check(cudaGraphExecDestroy(ready));
  gradlane::cuda::check(cudaGraphDestroy(graph));
}

TEST_CASE("clip_allreduce over NCCL joins by Adasum what it has clipped bucket by bucket") {
  auto device      = gradlane::cuda::device{test::own_device()};
  auto comm        = gradlane::nccl::from_mpi(device, MPI_COMM_WORLD);
  auto const ranks = static_cast<std::size_t>(comm.size());
  auto buckets     = gradlane::gradient_buckets{
      device, gradlane::bucket_plan{{{"alike", ranks}, {"apart", ranks}}, test::one_each}};
  auto reduce  = gradlane::clip_allreduce{buckets,
                                         comm,
                                         gradlane::clip::bucketwise{gradlane::threshold::each{1.0}},
                                         gradlane::reduce::adasum{}};
  auto compute = device.make_stream();
  auto const r = static_cast<std::size_t>(comm.rank());
  auto alike   = std::vector<float>(ranks);  // (4, 0, 0, …) on all ranks: is clipped to (1, 0, …)
  auto apart   = std::vector<float>(ranks);  // 0.5 in a place of the rank's own: is not clipped
  alike[0]     = 4.0F;
  apart[r]     = 0.5F;
  reduce.begin(compute);
  for (auto const p : {std::size_t{1}, std::size_t{0}}) {
    device.upload(compute, std::as_bytes(std::span{p == 0 ? alike : apart}), buckets.gradient(p));
    reduce.ready(p, compute);
  }
  reduce.finish(compute);
  device.download(compute, buckets.gradient(0), std::as_writable_bytes(std::span{alike}));
  device.download(compute, buckets.gradient(1), std::as_writable_bytes(std::span{apart}));
  device.sync(compute);
  auto const& report = reduce.sync_report();
  CHECK(alike[0] == 1.0F);  // of equal gradients: their mean
  for (auto i = std::size_t{1}; i < ranks; ++i) { CHECK(alike[i] == 0.0F); }
  for (auto const x : apart) { CHECK(x == 0.5F); }  // of orthogonal ones: their sum
  CHECK(report.parameter_orthogonality[0] == doctest::Approx(1.0 / comm.size()));
  CHECK(report.parameter_orthogonality[1] == doctest::Approx(1.0));
  CHECK(report.orthogonality == doctest::Approx((1.0 / comm.size() + 1.0) / 2));
}

TEST_CASE("reduce::adasum_hierarchical over NCCL agrees with the tree over nodes") {
  auto device      = gradlane::cuda::device{test::own_device()};
  auto comm        = gradlane::nccl::from_mpi(device, MPI_COMM_WORLD);
  auto const sizes = std::vector<std::size_t>{5, 0, 300, 9, 901};
  for (auto per_node = 1; per_node <= comm.size(); ++per_node) {
    if (comm.size() % per_node != 0) { continue; }
    CAPTURE(per_node);
    auto const layout = test::grid_of(comm.size() / per_node, per_node);
    auto buckets      = gradlane::gradient_buckets{
        device,
        gradlane::bucket_plan{test::parameters(sizes),
                                   {.cap_bytes       = 1200,
                                    .first_cap_bytes = 300,
                                    .pad_to          = static_cast<std::size_t>(comm.size())}}};
    auto reduce = gradlane::clip_allreduce{
        buckets,
        comm,
        gradlane::clip::none{},
        gradlane::reduce::adasum_hierarchical{.node = comm.rank() / per_node}};
    auto compute = device.make_stream();
    for (auto step = std::size_t{0}; step < 2; ++step) {
      reduce.begin(compute);
      for (auto p = sizes.size(); p-- > 0;) {
        test::enqueue_write(device, compute, buckets.gradient(p), comm.rank(), step, p);
        reduce.ready(p, compute);
      }
      reduce.finish(compute);
      auto const found = test::snapshot{buckets, compute};
      device.sync(compute);
      auto const g        = test::all_gradients(comm.size(), step, sizes);
      auto const expected = test::adasum_of(g, test::ones(g), layout);
      auto values         = std::vector<std::vector<double>>{};
      for (auto const& p : expected) { values.emplace_back(p.value.begin(), p.value.end()); }
      CHECK(found.error(values) <= 4 * 0x1p-23 * 8 * 1.5 * comm.size());
      CHECK(same_on_all_ranks(found.bytes()));
    }
    auto const& report = reduce.sync_report();
    auto const g       = test::all_gradients(comm.size(), 1, sizes);
    auto const wanted  = test::adasum_of(g, test::ones(g), layout)[4].orthogonality;
    CHECK(report.parameter_orthogonality[4] ==
          doctest::Approx(layout.back() == 0 ? 1.0 : static_cast<double>(wanted)).epsilon(1e-5));
  }
}

TEST_CASE(
    "reduce::adasum_hierarchical over NCCL tells who shares a group with a rank that is late") {
  auto device = gradlane::cuda::device{test::own_device()};
  auto comm   = gradlane::nccl::from_mpi(device, MPI_COMM_WORLD);
  if (comm.size() == 1) { return; }
  auto const per_node = comm.size() % 2 == 0 ? 2 : 1;
  auto const late     = comm.size() - 1;
  auto buckets        = gradlane::gradient_buckets{
      device, gradlane::bucket_plan{test::parameters({64}), {.pad_to = 2}}};
  auto reduce = gradlane::clip_allreduce{
      buckets,
      comm,
      gradlane::clip::none{},
      gradlane::reduce::adasum_hierarchical{.node = comm.rank() / per_node}};
  auto compute = device.make_stream();
  comm.set_deadline(std::chrono::milliseconds{200});  // after the groups have been made
  reduce.begin(compute);
  if (comm.rank() != late) {
    auto const same_node  = comm.rank() / per_node == late / per_node;
    auto const same_place = comm.rank() % per_node == late % per_node;
    auto told             = false;
    test::enqueue_write(device, compute, buckets.gradient(0), comm.rank(), 0, 0);
    try {
      reduce.ready(0, compute);
      reduce.finish(compute, std::chrono::seconds{20});
    } catch (gradlane::communication_error const& e) {
      told = true;
      CHECK(std::string{e.what()}.find("bucket 0, 'p0'") != std::string::npos);
    }
    CHECK((told || !(same_node || same_place)));  // others may have been given what is undefined
  }
  MPI_Barrier(MPI_COMM_WORLD);
}

// SPDX-License-Identifier: Apache-2.0
// Local optimizers on CUDA whose deltas are joined over NCCL, in streams and from graphs.
#include <gradlane/cuda/device.cuh>        // for device
#include <gradlane/nccl/communicator.hpp>  // for communicator
#include <gradlane/nccl/from_mpi.hpp>      // for from_mpi

#include <doctest/doctest.h>

#include <cuda/support.cuh>  // for captured
#include <cuda_runtime_api.h>
#include <mpi.h>
#include <nccl/support.cuh>  // for own_device

#include <support/deltas.hpp>

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

namespace gradlane::test {
namespace {

using over_nccl = nccl::communicator;

auto const sizes = std::vector<std::size_t>{5, 0, 300, 64};

/// Eight steps of which two are skipped, the last six from a graph where `replays`.
template <class Optimizer, class Join>
void check_training(Join join, delta_options options, bool replays, double tolerance) {
  CAPTURE(join.describe());
  CAPTURE(replays);
  auto device       = cuda::device{own_device()};
  auto comm         = nccl::from_mpi(device, MPI_COMM_WORLD);
  auto const bucket = clip::bucketwise{threshold::each{1.5}};
  options.buckets   = one_each;
  options.bad       = {.rank = comm.size() - 1, .parameter = 2};
  auto trainer      = delta_trainer<cuda::device, over_nccl, Optimizer, decltype(bucket), Join>{
      device, comm, sizes, bucket, join, options};
  auto expected    = delta_reference<Optimizer, Join>{comm.size(), sizes, join};
  auto random      = std::mt19937_64{static_cast<unsigned>(comm.rank())};
  auto const& plan = trainer.buckets().plan();
  auto const check = [&](std::uint64_t step) {
    if (!bad_gradient::is_bad(step)) {
      expected.step(step, options.micro_steps, clipped_bucketwise(plan, bucket.bounds(plan)));
    }
    CHECK(trainer.error(expected.weights()) <= tolerance);
    CHECK(trainer.pipeline().sync_report().skipped == bad_gradient::is_bad(step));
  };
  auto step = std::uint64_t{0};
  for (; step < (replays ? 2 : 8); ++step) {
    trainer.step(random);
    check(step);
  }
  if (!replays) { return; }
  auto const graph =
      captured{trainer.compute, [&] { trainer.step(random); }, cudaStreamCaptureModeThreadLocal};
  for (; step < 8; ++step) {
    graph.launch(trainer.compute);
    check(step);
  }
}

}  // namespace
}  // namespace gradlane::test

using namespace gradlane::test;
namespace average = gradlane::average;
namespace reduce  = gradlane::reduce;
using gradlane::dtype;

TEST_CASE("reduce::deltas over NCCL joins Adam's deltas by Adasum, from a graph too") {
  check_training<adam_optimizer>(reduce::adasum{}, {}, false, 2e-5);
  check_training<adam_optimizer>(reduce::adasum{}, {}, true, 2e-5);
}

TEST_CASE("reduce::deltas over NCCL averages momentum's deltas in bf16, from sums of micro-steps") {
  auto const options = delta_options{.storage = {.accumulate = dtype::fp32, .reduce = dtype::bf16},
                                     .copied  = true,
                                     .micro_steps = 2};
  auto const coarse  = 8 * 2 * 0.5 * 0x1p-8;  // steps, roundings, the largest delta, half an ulp
  check_training<momentum_optimizer>(average::ranks{}, options, false, coarse);
  check_training<momentum_optimizer>(average::ranks{}, options, true, coarse);
}

// SPDX-License-Identifier: Apache-2.0
// Whole parameters sharded over NCCL: summed at their owners, updated there, gathered again.
#include <gradlane/buckets/parts.hpp>     // for shard_by
#include <gradlane/clip_allreduce.hpp>    // for clip_allreduce
#include <gradlane/cuda/device.cuh>       // for device
#include <gradlane/gradient_buckets.hpp>  // for gradient_buckets
#include <gradlane/nccl/from_mpi.hpp>     // for from_mpi
#include <gradlane/parameter_shards.hpp>  // for parameter_shards

#include <doctest/doctest.h>

#include <mpi.h>
#include <nccl/support.cuh>  // for own_device

#include <support/model.hpp>

#include <cstddef>
#include <vector>

namespace gradlane::test {
namespace {

/// x -= g / 8 of a part of a bucket.
struct descend {
  float* x;
  float const* g;
  std::size_t count;

  GRADLANE_HOST_DEVICE void operator()() const {
    for (auto i = std::size_t{0}; i < count; ++i) { x[i] -= g[i] * 0.125F; }
  }
};

auto const sizes = std::vector<std::size_t>{300, 5, 0, 64, 33, 7};

constexpr auto few_each      = bucket_options{.cap_bytes = 900, .first_cap_bytes = 200};
constexpr auto by_parameters = reduce::sharded{average::none{}, shard_by::parameters};

[[nodiscard]] double sum_over_ranks(int ranks, std::size_t step, std::size_t p, std::size_t i) {
  auto sum = 0.0;
  for (auto r = 0; r < ranks; ++r) { sum += value(r, step, p, i); }
  return sum;
}

}  // namespace
}  // namespace gradlane::test

using namespace gradlane::test;

TEST_CASE("reduce::sharded by parameters over NCCL trains with parameter_shards") {
  auto device     = gradlane::cuda::device{own_device()};
  auto comm       = gradlane::nccl::from_mpi(device, MPI_COMM_WORLD);
  auto const plan = gradlane::bucket_plan{parameters(sizes), few_each};
  auto buckets    = gradlane::gradient_buckets{device, plan};
  auto pipeline   = gradlane::clip_allreduce{
      buckets, comm, gradlane::clip::none{}, by_parameters, gradlane::non_finite::skip{}};
  auto shards          = gradlane::parameter_shards{device, comm, plan, by_parameters.by};
  auto compute         = device.make_stream();
  constexpr auto steps = std::size_t{3};
  for (auto p = std::size_t{0}; p < sizes.size(); ++p) {
    enqueue_write(device, compute, shards.parameter(p), 9, 9, p);
  }
  for (auto step = std::size_t{0}; step < steps; ++step) {
    for (auto p = std::size_t{0}; p < sizes.size(); ++p) {
      shards.wait(p, compute);  // as the forward pass does
    }
    run_step(pipeline, buckets, compute, [&](std::size_t p, gradlane::buffer_view view) {
      enqueue_write(device, compute, view, comm.rank(), step, p);
    });
    CHECK_FALSE(pipeline.sync_report().skipped);
    for (auto b = std::size_t{0}; b < plan.buckets().size(); ++b) {
      auto const x = shards.shard(b).as<float>();
      auto const g = pipeline.result(b).as<float>();
      REQUIRE(x.size() == g.size());
      device.invoke(compute, descend{x.data(), g.data(), x.size()});
    }
    shards.gather(compute);
  }
  for (auto p = std::size_t{0}; p < sizes.size(); ++p) {
    auto here = host_copy{shards.parameter(p)};
    shards.wait(p, compute);
    device.download(compute, shards.parameter(p), here.bytes());
    device.sync(compute);
    for (auto i = std::size_t{0}; i < sizes[p]; ++i) {
      auto wanted = value(9, 9, p, i);
      for (auto step = std::size_t{0}; step < steps; ++step) {
        wanted -= sum_over_ranks(comm.size(), step, p, i) / 8;
      }
      REQUIRE(load(here.view(), i) == wanted);
    }
  }
}

TEST_CASE("reduce::sharded by parameters over NCCL sums bf16 in fp32") {
  auto device     = gradlane::cuda::device{own_device()};
  auto comm       = gradlane::nccl::from_mpi(device, MPI_COMM_WORLD);
  auto const plan = gradlane::bucket_plan{parameters(sizes, gradlane::dtype::bf16), few_each};
  auto buckets    = gradlane::gradient_buckets{device, plan};
  auto pipeline   = gradlane::clip_allreduce{buckets, comm, gradlane::clip::none{}, by_parameters};
  auto compute    = device.make_stream();
  run_step(pipeline, buckets, compute, [&](std::size_t p, gradlane::buffer_view view) {
    enqueue_write(device, compute, view, comm.rank(), 0, p);
  });
  auto const found = sync_snapshot(buckets);
  for (auto p = std::size_t{0}; p < sizes.size(); ++p) {
    auto const& slot = plan.slot(p);
    if (!slot ||
        intersection({slot->offset, slot->offset + 1}, pipeline.own_part(slot->bucket)).count() ==
            0) {
      continue;
    }
    for (auto i = std::size_t{0}; i < sizes[p]; ++i) {
      REQUIRE(found(p, i) == sum_over_ranks(comm.size(), 0, p, i));
    }
  }
}

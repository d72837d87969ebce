// SPDX-License-Identifier: Apache-2.0
// One step that clips one bucket of 4 MiB, whose kernels' traffic traffic_test.sh looks at. The
// communicator's own kernel is `scale`.
#include <gradlane/clip_allreduce.hpp>
#include <gradlane/cuda/device.cuh>  // for device
#include <gradlane/gradient_buckets.hpp>

#include <doctest/doctest.h>

#include <support/lone_communicator.hpp>  // for lone_communicator

#include <cstddef>
#include <span>

TEST_CASE("a step clips a bucket of 4 MiB") {
  using namespace gradlane;
  using device_type  = gradlane::cuda::device;
  constexpr auto n   = std::size_t{1} << 20U;
  auto device        = device_type{};
  auto comm          = test::lone_communicator<device_type, true>{device};
  auto buckets       = gradient_buckets{device, bucket_plan{{{.name = "w", .count = n}}}};
  auto pipeline      = clip_allreduce{buckets, comm, clip::bucketwise{threshold::equal{1.0}}};
  auto compute       = device.make_stream();
  auto const g       = buckets.gradient(0);
  auto const one     = 3.0F;
  auto const element = std::as_bytes(std::span{&one, 1});
  device.zero(compute, g);
  device.upload(compute, element, g.subview(n - 1, 1));
  pipeline.begin(compute);
  pipeline.ready(0, compute);
  pipeline.finish(compute);
  device.sync(compute);
  CHECK(pipeline.sync_report().norm == 3.0);
  CHECK(pipeline.sync_report().clipped);
}

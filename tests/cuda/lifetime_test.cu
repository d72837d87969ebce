// SPDX-License-Identifier: Apache-2.0
// Objects that end in odd orders: after a reset of the device, and after main().
#include <gradlane/clip_allreduce.hpp>
#include <gradlane/cuda/device.cuh>  // for device
#include <gradlane/cuda/memory.hpp>  // for buffer, pinned_buffer
#include <gradlane/gradient_buckets.hpp>

#include <doctest/doctest.h>

#include <cuda_runtime_api.h>

#include <support/lone_communicator.hpp>  // for lone_communicator

#include <memory>
#include <optional>
#include <utility>

namespace {

using namespace gradlane;
using device_type = gradlane::cuda::device;
using alone       = test::lone_communicator<device_type, true>;
using pipeline    = clip_allreduce<device_type, alone, clip::none>;

struct everything {
  device_type device{};
  alone comm{device};
  gradlane::cuda::stream compute{device.make_stream()};
  gradlane::cuda::event mark{device.make_event()};
  gradlane::cuda::pinned_buffer pinned{0, 100};
  gradient_buckets<device_type> buckets{device, bucket_plan{{{.name = "w", .count = 100}}}};
  pipeline steps{buckets, comm, clip::none{}};

  void step() {
    steps.begin(compute);
    device.zero(compute, buckets.gradient(0));
    steps.ready(0, compute);
    steps.finish(compute);
    device.record(mark, compute);
  }
};

std::optional<everything> until_exit;  // ends after main(), and after the runtime's own objects may

}  // namespace

TEST_CASE("streams, events and memory may outlive the device that made them") {
  auto device = std::make_optional<device_type>();
  auto s      = device->make_stream();
  auto e      = device->make_event();
  auto memory = device->allocate(64);
  device->zero(s, {memory.data(), 64, dtype::uint8});
  device->record(e, s);
  device.reset();
  CHECK_NOTHROW(static_cast<void>(e.is_done()));
  auto moved = std::move(s);
  CHECK(cudaStreamSynchronize(moved.get()) == cudaSuccess);
  CHECK(cudaStreamSynchronize(s.get()) != cudaSuccess);  // empty is not the default stream
  static_cast<void>(cudaGetLastError());
}

TEST_CASE("objects end without a crash after the device was reset under them") {
  auto all = std::make_unique<everything>();
  all->step();
  all->device.sync(all->compute);
  REQUIRE(cudaDeviceReset() == cudaSuccess);
  all.reset();
  CHECK(cudaGetLastError() == cudaSuccess);
}

TEST_CASE("objects may end after main(), with work under way") {
  until_exit.emplace();
  until_exit->step();
}

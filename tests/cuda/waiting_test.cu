// SPDX-License-Identifier: Apache-2.0
// What must not wait, tried while a stream is held up by a spinning kernel. Not for random
// schedules: an emulated device runs one kernel at a time.
#include <gradlane/clip_allreduce.hpp>
#include <gradlane/cuda/device.cuh>  // for device
#include <gradlane/cuda/error.hpp>   // for check
#include <gradlane/gradient_buckets.hpp>

#include <doctest/doctest.h>

#include <cuda/runtime_calls.hpp>  // for calls, counted by runtime_calls.cpp
#include <cuda/support.cuh>        // for cuda_gate
#include <cuda_runtime_api.h>

#include <support/lone_communicator.hpp>  // for lone_communicator
#include <support/model.hpp>

#include <cstddef>
#include <vector>

namespace gradlane::test {
namespace {

using device = cuda::device;
using alone  = lone_communicator<device, true>;

}  // namespace
}  // namespace gradlane::test

using namespace gradlane::test;
using namespace gradlane;

TEST_CASE(
    "A5, B12: between begin and finish the trainer's stream waits for nothing, the host for "
    "nothing either") {
  auto const sizes = std::vector<std::size_t>{64, 64, 64, 64, 64, 64, 64, 64};
  auto d           = test::device{};
  auto comm        = alone{d};
  auto const check = [&](auto clip, auto... storage) {
    auto buckets  = gradient_buckets{d, bucket_plan{parameters(sizes), one_each}, storage...};
    auto pipeline = clip_allreduce{buckets, comm, clip, average::ranks{}, non_finite::skip{}};
    auto compute  = d.make_stream();
    auto gate     = cuda_gate{};
    auto write = [&](std::size_t p, buffer_view view) { enqueue_write(d, compute, view, 0, 0, p); };
    run_step(pipeline, buckets, compute, write);
    for (auto p = std::size_t{0}; p < sizes.size(); ++p) { write(p, buckets.gradient(p)); }
    gate.hold(d, compute);  // a host that waited would wait for ever
    pipeline.begin(compute);
    calls.watched          = compute.get();
    auto const waits       = calls.waits.load();
    auto const blocking    = calls.blocking.load();
    auto const queries     = calls.queries.load();
    auto const allocations = calls.allocations.load();
    for (auto p = sizes.size(); p-- > 0;) { pipeline.ready(p, compute); }
    CHECK(calls.waits == waits);
    pipeline.finish(compute);
    CHECK(calls.waits == waits + 1);
    CHECK(calls.blocking == blocking);
    CHECK(calls.queries == queries);
    CHECK(calls.allocations == allocations);
    gate.open();
    d.sync(compute);
    CHECK(pipeline.sync_report().step == 1);
  };
  check(clip::none{});
  check(clip::after{1.0});
  check(clip::before{1.0});
  check(clip::bucketwise{threshold::equal{1.0}});
  check(clip::bucketwise{threshold::equal{1.0}}, storage_options{.reduce = dtype::bf16});
  check(clip::bucketwise{threshold::adaptive{.agreed = true}});
}

TEST_CASE("a stream that is captured refuses to wait for work from before that is not done") {
  auto on     = test::device{};
  auto before = on.make_stream();
  auto s      = on.make_stream();
  auto e      = on.make_event();
  auto gate   = cuda_gate{};
  gate.hold(on, before);
  on.record(e, before);
  gradlane::cuda::check(cudaStreamBeginCapture(s.get(), cudaStreamCaptureModeGlobal));
  CHECK_THROWS_WITH_AS(on.wait(s, e),
                       doctest::Contains("cannot wait for work from before the capture"),
                       gradlane::state_error);
  gate.open();
  auto* graph = cudaGraph_t{};
  gradlane::cuda::check(cudaStreamEndCapture(s.get(), &graph));
  gradlane::cuda::check(cudaGraphDestroy(graph));
  on.wait(s, e);
  on.sync(s);
}

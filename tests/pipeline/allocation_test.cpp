// SPDX-License-Identifier: Apache-2.0
#include <gradlane/gradlane.hpp>

#include <doctest/doctest.h>

#include <support/alloc_count.hpp>
#include <support/model.hpp>

#include <atomic>
#include <barrier>
#include <cstddef>
#include <cstdint>

namespace {

using namespace gradlane;
using local::communicator;

/// Allocations of all ranks in ten steps, after five to warm up.
template <class Clip, class Average>
std::uint64_t allocations_of(Clip clip, Average average, storage_options storage) {
  auto meeting = std::barrier{2};
  auto counted = std::uint64_t{0};
  local::run(2, [&](communicator& comm, host::device& device) {
    auto buckets = gradient_buckets{
        device, bucket_plan{test::parameters({6, 64, 2, 900, 4}), test::one_each}, storage};
    auto pipeline   = clip_allreduce{buckets, comm, clip, average, non_finite::skip{}};
    auto compute    = device.make_stream();
    auto const step = [&] {
      test::run_step(pipeline, buckets, compute, [&](std::size_t p, buffer_view view) {
        test::write(view, comm.rank(), 0, p);
      });
      static_cast<void>(pipeline.sync_report());
    };
    for (auto warm_up = 0; warm_up < 5; ++warm_up) { step(); }
    meeting.arrive_and_wait();
    auto const before = test::allocations();
    meeting.arrive_and_wait();
    for (auto measured = 0; measured < 10; ++measured) { step(); }
    meeting.arrive_and_wait();
    if (comm.rank() == 0) { counted = test::allocations() - before; }
    meeting.arrive_and_wait();
  });
  return counted;
}

}  // namespace

TEST_CASE("clip_allreduce allocates nothing in a step after the first") {
  CHECK(allocations_of(clip::none{}, average::ranks{}, {}) == 0);
  CHECK(allocations_of(clip::after{1.0}, average::ranks{}, {}) == 0);
  CHECK(allocations_of(clip::before{1.0}, average::ranks{}, {.reduce = dtype::bf16}) == 0);
  CHECK(allocations_of(clip::bucketwise{threshold::equal{1.0}}, average::weighted{}, {}) == 0);
  CHECK(allocations_of(clip::bucketwise{threshold::adaptive{.agreed = true}},
                       average::none{},
                       {.accumulate = dtype::fp32}) == 0);
  CHECK(allocations_of(clip::bucketwise{threshold::equal{1.0}}, reduce::adasum{}, {}) == 0);
  CHECK(allocations_of(clip::after{1.0}, reduce::sharded{}, {}) == 0);
  auto const by_parameters = reduce::sharded{average::ranks{}, shard_by::parameters};
  CHECK(allocations_of(clip::after{1.0}, by_parameters, {.reduce = dtype::bf16}) == 0);
  auto const plain_descent = [](bucket_update<host::device> const&) {};  // in place
  CHECK(allocations_of(clip::none{}, reduce::deltas{average::ranks{}, plain_descent}, {}) == 0);
}

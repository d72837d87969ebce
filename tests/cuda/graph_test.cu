// SPDX-License-Identifier: Apache-2.0
// Whole steps in CUDA graphs.
#include <gradlane/clip_allreduce.hpp>
#include <gradlane/cuda/device.cuh>  // for device
#include <gradlane/gradient_buckets.hpp>

#include <doctest/doctest.h>

#include <cuda/support.cuh>  // for captured
#include <cuda_runtime_api.h>

#include <support/lone_communicator.hpp>  // for lone_communicator
#include <support/model.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace gradlane::test {
namespace {

using device        = cuda::device;
using scaling_alone = lone_communicator<device, true>;
using summing_alone = lone_communicator<device, false>;

/// Writes the gradient of the step whose number lies in device memory.
struct write_gradient {
  float* data;
  std::size_t count;
  std::uint64_t const* step;
  std::size_t parameter;

  GRADLANE_HOST_DEVICE void operator()() const {
    for (auto i = std::size_t{0}; i < count; ++i) {
      data[i] = static_cast<float>(value(0, *step, parameter, i));
    }
  }
};

struct next_step {
  std::uint64_t* step;
  GRADLANE_HOST_DEVICE void operator()() const { ++*step; }
};

auto const sizes = std::vector<std::size_t>{33, 1, 300, 7};

/// A trainer whose steps can be captured: each counts itself, and writes gradients by its number.
template <class Comm, class Clip, class Average>
class trainer {
 public:
  trainer(Clip clip, Average average, bucket_options options = one_each)
      : buckets_{device_, bucket_plan{parameters(sizes), options}},
        pipeline_{buckets_, comm_, clip, average} {
    auto const zero = std::uint64_t{0};
    device_.upload(compute, std::as_bytes(std::span{&zero, 1}), {number_.data(), 1, dtype::uint64});
    device_.sync(compute);
  }

  void step() {
    auto* const number = reinterpret_cast<std::uint64_t*>(number_.data());
    device_.invoke(compute, next_step{number});
    pipeline_.begin(compute, step_);
    for (auto p = sizes.size(); p-- > 0;) {
      auto const g = buckets_.template gradient<float>(p);
      device_.invoke(compute, write_gradient{g.data(), g.size(), number, p});
      pipeline_.ready(p, compute);
    }
    pipeline_.finish(compute);
  }

  void sync() { device_.sync(compute); }

  template <class Expected>
  [[nodiscard]] double error(std::size_t step, Expected expected) {
    auto const g = all_gradients(1, step, sizes);
    return largest_error(buckets_, expected(g, buckets_.plan()));
  }

  [[nodiscard]] auto& pipeline() { return pipeline_; }
  void set_weight(double weight) { step_.weight = weight; }

 private:
  device device_;

 public:
  cuda::stream compute = device_.make_stream();

 private:
  Comm comm_{device_};
  cuda::buffer number_ = device_.allocate(sizeof(std::uint64_t));
  step_options step_{};
  gradient_buckets<device> buckets_;
  clip_allreduce<device, Comm, Clip, Average> pipeline_;
};

template <class Comm, class Clip, class Expected, class Average = average::ranks>
void check_replays(Clip clip, Expected expected, Average average = {}) {
  CAPTURE(clip.describe());
  for (auto const warm : {true, false}) {
    CAPTURE(warm);
    auto train   = trainer<Comm, Clip, Average>{clip, average};
    auto current = std::size_t{0};
    if (warm) {
      train.step();
      train.sync();
      CHECK(train.error(++current, expected) <= 8 * 4 * 0x1p-23);
    }
    auto const graph = captured{train.compute, [&] { train.step(); }};
    for (auto replay = 0; replay < 100; ++replay) {
      graph.launch(train.compute);
      train.sync();
      REQUIRE(train.error(++current, expected) <= 8 * 4 * 0x1p-23);
    }
    auto const& report = train.pipeline().sync_report();
    CHECK(report.step == current - 1);
    train.step();  // and outside of graphs again
    train.sync();
    CHECK(train.error(++current, expected) <= 8 * 4 * 0x1p-23);
    CHECK(train.pipeline().sync_report().step == current - 1);
  }
}

template <class Comm>
void check_all_modes() {
  check_replays<Comm>(clip::none{}, [](auto const& g, auto const&) { return reference_none(g); });
  check_replays<Comm>(clip::after{9.0},
                      [](auto const& g, auto const&) { return reference_after(g, 9.0); });
  check_replays<Comm>(clip::before{9.0},
                      [](auto const& g, auto const&) { return reference_before(g, 9.0); });
  auto const bucketwise = clip::bucketwise{threshold::equal{60.0}};  // clips some steps' buckets
  check_replays<Comm>(bucketwise, [&](auto const& g, auto const& plan) {
    return reference_bucketwise(g, plan, bucketwise.bounds(plan));
  });
}

}  // namespace
}  // namespace gradlane::test

using namespace gradlane::test;
using gradlane::cuda::stream;

TEST_CASE("a captured step is replayed with changing gradients: coefficients in the reduction") {
  check_all_modes<scaling_alone>();
}

TEST_CASE("a captured step is replayed with changing gradients: coefficients in place") {
  check_all_modes<summing_alone>();
}

TEST_CASE("a captured step may share weights; they are those of the capture") {
  check_replays<scaling_alone>(
      gradlane::clip::none{},
      [](auto const& g, auto const&) { return reference_none(g); },
      gradlane::average::weighted{});
}

TEST_CASE("a captured step of no buckets is legal") {
  auto on          = device{};
  auto comm        = scaling_alone{on};
  auto buckets     = gradlane::gradient_buckets{on, gradlane::bucket_plan{parameters({0})}};
  auto pipeline    = gradlane::clip_allreduce{buckets, comm, gradlane::clip::none{}};
  auto compute     = on.make_stream();
  auto const graph = captured{compute, [&] {
                                pipeline.begin(compute);
                                pipeline.ready(0, compute);
                                pipeline.finish(compute);
                              }};
  graph.launch(compute);
  on.sync(compute);
  CHECK(pipeline.sync_report().step == 0);
}

TEST_CASE("an event that was recorded in a capture counts as never recorded outside of it") {
  auto on          = device{};
  auto s           = on.make_stream();
  auto other       = on.make_stream();
  auto e           = on.make_event();
  auto memory      = on.allocate(64);
  auto const graph = captured{s, [&] {
                                on.zero(s, {memory.data(), 64, gradlane::dtype::uint8});
                                on.record(e, s);
                              }};
  CHECK(on.is_done(e));
  on.sync(e);
  on.wait(other, e);
  graph.launch(s);
  on.wait(other, e);
  on.sync(s);
  on.record(e, s);  // and again in a stream
  on.wait(other, e);
  on.sync(e);
}

TEST_CASE("upload in a capture keeps what it was given for every replay") {
  auto on          = device{};
  auto s           = on.make_stream();
  auto memory      = on.allocate(8);
  auto const x     = gradlane::buffer_view{memory.data(), 1, gradlane::dtype::uint64};
  auto value       = std::uint64_t{7};
  auto const bytes = std::as_bytes(std::span{&value, 1});
  auto const graph = captured{s, [&] {
                                for (auto i = 0; i < 20; ++i) {
                                  on.upload(s, bytes, x);
                                }  // more blocks than there are
                              }};
  value            = 9;
  for (auto i = 0; i < 50; ++i) { on.upload(s, bytes, x); }
  on.sync(s);
  for (auto i = 0; i < 3; ++i) {
    auto found = std::uint64_t{0};
    on.upload(s, bytes, x);
    graph.launch(s);
    on.download(s, x, std::as_writable_bytes(std::span{&found, 1}));
    on.sync(s);
    CHECK(found == 7);
  }
}

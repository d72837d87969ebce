// SPDX-License-Identifier: Apache-2.0
#include "cuda_memory.hpp"  // for device_memory, test_stream

#include <gradlane/clip/report.hpp>  // for step_status
#include <gradlane/cuda/error.hpp>   // for check

#include <doctest/doctest.h>

#include <bert/cuda/loss_scaler.hpp>
#include <bert/errors.hpp>
#include <bert/loss_scale.hpp>

#include <cstddef>  // for size_t
#include <cstdint>  // for uint32_t
#include <vector>   // for vector

// The loss scale on the device against the same function on the host.

namespace {

using namespace bert;
using gradlane::step_status;
using gradlane::cuda::check;

constexpr auto settings = loss_scale_settings{.initial = 0x1p4F, .growth_interval = 3};

/// Which of 50 steps are skipped: runs of good ones of 1 to 7, then a fall below the floor.
std::vector<std::uint32_t> script() {
  auto result = std::vector<std::uint32_t>{};
  for (auto run = 1; run <= 7; ++run) {
    result.insert(result.end(), static_cast<std::size_t>(run), 0U);
    result.push_back(1U);
  }
  result.resize(49, 1U);
  result.push_back(0U);
  return result;
}

/// The script's steps in the device's memory; the flag is any number but 0.
test::device_memory<step_status> statuses() {
  auto result = std::vector<step_status>{};
  for (auto const skip : script()) { result.push_back({.skip = skip * 5}); }
  return test::device_memory<step_status>{result};
}

TEST_CASE("cuda loss_scaler is the host's function over 50 steps, good and skipped") {
  auto const steps = script();
  REQUIRE(steps.size() == 50);
  auto there  = statuses();
  auto scaler = cuda::loss_scaler{settings, test::test_stream()};
  auto here   = loss_scale_state{settings.initial, 0};
  CHECK(scaler.sync_state() == here);
  for (auto step = std::size_t{0}; step < steps.size(); ++step) {
    CAPTURE(step);
    scaler.update(there.span().data() + step);
    here = after_step(settings, here, steps[step] != 0);
    CHECK(scaler.sync_state() == here);
  }
  CHECK(has_diverged(settings, here));
}

TEST_CASE("cuda loss_scaler follows from a graph, without the host") {
  auto const steps  = script();
  auto const stream = test::test_stream().get();
  auto there        = statuses();
  auto scaler       = cuda::loss_scaler{settings, test::test_stream()};
  auto now          = test::device_memory<step_status>{std::vector<step_status>(1)};
  auto* graph       = cudaGraph_t{};
  auto* instance    = cudaGraphExec_t{};
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  scaler.update(now.span().data());
  check(cudaStreamEndCapture(stream, &graph));
  check(cudaGraphInstantiate(&instance, graph, 0));
  auto here = loss_scale_state{settings.initial, 0};
  for (auto step = std::size_t{0}; step < 30; ++step) {
    check(cudaMemcpyAsync(now.span().data(),
                          there.span().data() + step,
                          sizeof(step_status),
                          cudaMemcpyDeviceToDevice,
                          stream));
    check(cudaGraphLaunch(instance, stream));
    here = after_step(settings, here, steps[step] != 0);
  }
  CHECK(scaler.sync_state() == here);
  check(cudaGraphExecDestroy(instance));
  check(cudaGraphDestroy(graph));
}

TEST_CASE("cuda loss_scaler goes on from a restored state") {
  auto const steps = script();
  auto there       = statuses();
  auto one         = cuda::loss_scaler{settings, test::test_stream()};
  auto other       = cuda::loss_scaler{settings, test::test_stream()};
  for (auto step = std::size_t{0}; step < 40; ++step) {
    if (step == 22) {  // two good steps in a row by then
      CHECK(one.sync_state().good_steps != 0);
      other.sync_restore(one.sync_state());
    }
    one.update(there.span().data() + step);
    if (step >= 22) { other.update(there.span().data() + step); }
  }
  CHECK(other.sync_state() == one.sync_state());
  CHECK_THROWS_AS(other.sync_restore({0x1p41F, 0}), input_error);
  CHECK_THROWS_AS(other.sync_restore({0.5F, 0}), input_error);
}

}  // namespace

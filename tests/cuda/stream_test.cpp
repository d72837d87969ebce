// SPDX-License-Identifier: Apache-2.0
#include <gradlane/cuda/stream.hpp>  // for stream
#include <gradlane/error.hpp>        // for contract_error

#include <doctest/doctest.h>

#include <cuda_runtime_api.h>

#include <utility>  // for move

namespace {

using gradlane::stream_priority;
using gradlane::cuda::stream;

[[nodiscard]] unsigned flags_of(stream const& s) {
  auto flags = 0U;
  REQUIRE(cudaStreamGetFlags(s.get(), &flags) == cudaSuccess);
  return flags;
}

[[nodiscard]] int priority_of(stream const& s) {
  auto priority = 0;
  REQUIRE(cudaStreamGetPriority(s.get(), &priority) == cudaSuccess);
  return priority;
}

}  // namespace

TEST_CASE("stream never waits for the default stream, and has the priority asked for") {
  auto const normal = stream{0, stream_priority::normal};
  auto const high   = stream{0, stream_priority::high};
  CHECK(flags_of(normal) == cudaStreamNonBlocking);
  CHECK(flags_of(high) == cudaStreamNonBlocking);
  auto least    = 0;
  auto greatest = 0;
  REQUIRE(cudaDeviceGetStreamPriorityRange(&least, &greatest) == cudaSuccess);
  CHECK(priority_of(normal) == least);
  CHECK(priority_of(high) == greatest);
}

TEST_CASE("stream that was moved from is no stream, above all not the default one") {
  auto from     = stream{0, stream_priority::normal};
  auto const to = std::move(from);
  CHECK(from.get() != nullptr);  // NOLINT(bugprone-use-after-move)
  CHECK(from.get() != to.get());
  CHECK(cudaStreamQuery(to.get()) == cudaSuccess);
  CHECK(cudaStreamQuery(from.get()) != cudaSuccess);
  static_cast<void>(cudaGetLastError());
}

TEST_CASE("stream borrows others' streams, but not the default ones, and leaves them alone") {
  auto* theirs = cudaStream_t{};
  REQUIRE(cudaStreamCreateWithFlags(&theirs, cudaStreamNonBlocking) == cudaSuccess);
  {
    auto const borrowed = stream::borrow(0, theirs);
    CHECK(borrowed.get() == theirs);
    CHECK(borrowed.device_index() == 0);
  }
  CHECK(cudaStreamDestroy(theirs) == cudaSuccess);
  for (auto* const standard : {cudaStream_t{}, cudaStreamLegacy, cudaStreamPerThread}) {
    CHECK_THROWS_AS(static_cast<void>(stream::borrow(0, standard)), gradlane::contract_error);
  }
}

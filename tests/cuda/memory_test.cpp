// SPDX-License-Identifier: Apache-2.0
#include <gradlane/buffer_view.hpp>        // for buffer_view
#include <gradlane/cuda/device_guard.hpp>  // for device_guard
#include <gradlane/cuda/error.hpp>         // for error
#include <gradlane/cuda/memory.hpp>        // for buffer
#include <gradlane/cuda/staging_pool.hpp>  // for staging_pool
#include <gradlane/cuda/stream.hpp>        // for stream
#include <gradlane/cuda/tensor_list.hpp>   // for tensor_list
#include <gradlane/cuda/tuning.hpp>        // for tile_elements

#include <doctest/doctest.h>

#include <array>            // for array
#include <cstddef>          // for byte, size_t
#include <source_location>  // for source_location
#include <span>             // for as_bytes, span
#include <string_view>      // for string_view

namespace {

namespace cuda = gradlane::cuda;

}  // namespace

TEST_CASE("staging_pool uses blocks again once their copies are done") {
  auto pool         = cuda::staging_pool{0, 2};
  auto const s      = cuda::stream{0, gradlane::stream_priority::normal};
  auto const memory = cuda::buffer{0, 8};
  auto const bytes  = std::array<std::byte, 8>{};
  for (auto i = 0; i < 10; ++i) {
    pool.copy(s, bytes, memory.data(), std::source_location::current());
    cuda::check(cudaStreamSynchronize(s.get()));
  }
  CHECK(pool.size() == 2);
}

TEST_CASE("tensor_list cuts its tensors into tiles") {
  constexpr auto tile = std::size_t{cuda::tuning::tile_elements};
  auto const s        = cuda::stream{0, gradlane::stream_priority::normal};
  auto const memory   = cuda::buffer{0, 3 * tile * sizeof(float)};
  auto const whole    = gradlane::buffer_view{memory.data(), 3 * tile, gradlane::dtype::fp32};
  auto const views    = std::array{whole.subview(0, tile + 1),
                                whole.subview(0, 0),
                                whole.subview(tile, 1),
                                whole.subview(2 * tile, tile)};
  CHECK(cuda::tensor_list{s, views}.tile_count() == 4);
  CHECK(cuda::tensor_list{s, {}}.tile_count() == 0);
}

TEST_CASE("device_guard restores the current device, and refuses one that is not there") {
  auto before = -1;
  auto after  = -2;
  REQUIRE(cudaGetDevice(&before) == cudaSuccess);
  { auto const guard = cuda::device_guard{0}; }
  CHECK_THROWS_AS(cuda::device_guard{1000}, cuda::error);
  REQUIRE(cudaGetDevice(&after) == cudaSuccess);
  CHECK(before == after);
  CHECK(cudaGetLastError() == cudaSuccess);
}

TEST_CASE("error names code and place") {
  try {
    cuda::check(cudaErrorInvalidValue);
    FAIL("no error");
  } catch (cuda::error const& e) {
    CHECK(e.code() == cudaErrorInvalidValue);
    CHECK(std::string_view{e.what()}.find("cudaErrorInvalidValue") != std::string_view::npos);
    CHECK(std::string_view{e.where().file_name()}.ends_with("memory_test.cpp"));
  }
}

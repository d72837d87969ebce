// SPDX-License-Identifier: Apache-2.0
#include "cuda_memory.hpp"  // for device_memory, test_stream

#include <gradlane/cuda/error.hpp>  // for check

#include <doctest/doctest.h>

#include <cuda_runtime_api.h>

#include <bert/cuda/prefetch.hpp>

#include <cstddef>  // for byte, size_t
#include <cstdint>  // for uint32_t
#include <cstring>  // for memcpy
#include <vector>   // for vector

namespace {

using namespace bert;
using gradlane::cuda::check;

/// Numbers of a delivery; sizes grow and shrink.
std::vector<std::uint32_t> delivery(std::uint32_t number) {
  auto result = std::vector<std::uint32_t>(100 + number * 37 % 64);
  for (auto i = std::size_t{0}; i < result.size(); ++i) {
    result[i] = number * 1000 + static_cast<std::uint32_t>(i);
  }
  return result;
}

TEST_CASE("prefetch gives a stream each delivery in its turn, however far the host is ahead") {
  constexpr auto count = std::uint32_t{12};
  constexpr auto room  = std::size_t{200};
  auto const& reader   = test::test_stream();
  auto place           = test::device_memory<std::uint32_t>{std::vector<std::uint32_t>(room)};
  auto read   = test::device_memory<std::uint32_t>{std::vector<std::uint32_t>(count * room)};
  auto tested = cuda::prefetch{};
  for (auto number = std::uint32_t{0}; number < count; ++number) {
    auto const values = delivery(number);
    auto const bytes  = values.size() * sizeof(values[0]);
    std::memcpy(tested.sync_next(bytes, reader.device_index()), values.data(), bytes);
    tested.deliver(reinterpret_cast<std::byte*>(place.span().data()), bytes, reader);
    check(cudaMemcpyAsync(read.span().data() + number * room,
                          place.span().data(),
                          bytes,
                          cudaMemcpyDeviceToDevice,
                          reader.get()));
  }
  auto const found = read.values();
  for (auto number = std::uint32_t{0}; number < count; ++number) {
    auto const expected = delivery(number);
    for (auto i = std::size_t{0}; i < expected.size(); ++i) {
      REQUIRE(found[number * room + i] == expected[i]);
    }
  }
}

TEST_CASE("prefetch makes room once, and tells how much") {
  auto tested        = cuda::prefetch{};
  auto const& reader = test::test_stream();
  CHECK(tested.reserve(1000, reader.device_index()) == 2000);
  CHECK(tested.reserve(10, reader.device_index()) == 2000);
  auto* const first = tested.sync_next(1000, reader.device_index());
  CHECK(tested.sync_next(1000, reader.device_index()) == first);  // until it is delivered
  auto place = test::device_memory<std::byte>{std::vector<std::byte>(1000)};
  tested.deliver(place.span().data(), 0, reader);
  CHECK(tested.sync_next(1000, reader.device_index()) != first);
}

}  // namespace

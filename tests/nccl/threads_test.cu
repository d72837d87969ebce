// SPDX-License-Identifier: Apache-2.0
// Ranks that are threads of one process, each with a device of its own, or wrongly sharing one.
#include <gradlane/cuda/device.cuh>        // for device
#include <gradlane/error.hpp>              // for contract_error, error
#include <gradlane/nccl/communicator.hpp>  // for from_unique_id, make_unique_id

#include <doctest/doctest.h>

#include <cuda_runtime_api.h>

#include <conformance/communicator.hpp>  // for placed

#include <cstddef>  // for size_t
#include <string>   // for string
#include <thread>   // for jthread
#include <vector>   // for vector

namespace {

namespace nccl = gradlane::nccl;
namespace test = gradlane::test;
using gradlane::cuda::device;

/// f(rank) on a thread each.
template <class F>
void on_threads(int ranks, F f) {
  auto threads = std::vector<std::jthread>{};
  for (auto rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&f, rank] { f(rank); });
  }
}

}  // namespace

TEST_CASE("nccl::from_unique_id refuses ranks that share a GPU, naming them, host and device") {
  auto const id = nccl::make_unique_id();
  auto said     = std::vector<std::string>(2);
  on_threads(2, [&](int rank) {
    auto d = device{0};
    try {
      auto const c = nccl::from_unique_id(d, id, rank, 2);
    } catch (gradlane::contract_error const& e) {
      said[static_cast<std::size_t>(rank)] = e.message();
    } catch (gradlane::error const&) {}  // that the other one failed
  });
  auto const text = said[0].empty() ? said[1] : said[0];
  for (auto const* part : {"rank 0 and rank 1", "device 0 (", ") of ", "a device of its own"}) {
    INFO(text);
    CHECK(text.find(part) != std::string::npos);
  }
}

TEST_CASE("an nccl communicator joins threads that have a device each") {
  auto devices = 0;
  REQUIRE(cudaGetDeviceCount(&devices) == cudaSuccess);
  if (devices < 2) { return; }
  auto const id = nccl::make_unique_id();
  auto sums     = std::vector<float>(static_cast<std::size_t>(devices));
  on_threads(devices, [&](int rank) {
    auto d = device{rank};
    auto c = nccl::from_unique_id(d, id, rank, devices);
    auto s = d.make_stream();
    auto x = test::placed{d, s, std::vector<float>(17, static_cast<float>(rank))};
    for (auto k = 0; k < 20; ++k) { c.all_reduce(s, x, x, gradlane::reduction::average); }
    sums[static_cast<std::size_t>(rank)] = x.values()[16];
  });
  for (auto const sum : sums) { CHECK(sum == static_cast<float>(devices - 1) / 2.0F); }
}

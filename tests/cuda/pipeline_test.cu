// SPDX-License-Identifier: Apache-2.0
// The pipeline on one CUDA device, with a communicator of one rank: what it does by itself.
#include <doctest/doctest.h>

#include <cuda/support.cuh>  // for on_cuda

#include <conformance/pipeline.hpp>       // for GRADLANE_PIPELINE_CONFORMANCE
#include <support/lone_communicator.hpp>  // for lone_communicator

#include <cstdint>  // for uint64_t
#include <vector>   // for vector

namespace {

template <bool Scales>
struct alone_on_cuda : gradlane::test::on_cuda {
  static constexpr auto schedules = std::uint64_t{10};

  [[nodiscard]] static std::vector<int> worlds() { return {1}; }

  template <class F>
  static void run(int, std::uint64_t, F f) {
    auto on   = device{};
    auto comm = gradlane::test::lone_communicator<device, Scales>{on};
    f(comm, on);
  }
};

using scaling_alone = alone_on_cuda<true>;
using summing_alone = alone_on_cuda<false>;

}  // namespace

TYPE_TO_STRING(scaling_alone);
TYPE_TO_STRING(summing_alone);
GRADLANE_PIPELINE_CONFORMANCE(scaling_alone, summing_alone);

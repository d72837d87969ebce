// SPDX-License-Identifier: Apache-2.0
// The pipeline over NCCL, on MPI_COMM_WORLD's ranks.
#include <gradlane/cuda/device.cuh>    // for device
#include <gradlane/nccl/from_mpi.hpp>  // for from_mpi

#include <doctest/doctest.h>

#include <cuda/support.cuh>  // for on_cuda
#include <mpi.h>
#include <nccl/support.cuh>  // for own_device

#include <conformance/pipeline.hpp>  // for GRADLANE_PIPELINE_CONFORMANCE

#include <cstdint>  // for uint64_t
#include <vector>   // for vector

namespace {

struct over_nccl : gradlane::test::on_cuda {
  static constexpr auto schedules = std::uint64_t{5};

  [[nodiscard]] static std::vector<int> worlds() {
    auto size = 0;
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    return {size};
  }

  template <class F>
  static void run(int, std::uint64_t, F f) {
    auto on   = device{gradlane::test::own_device()};
    auto comm = gradlane::nccl::from_mpi(on, MPI_COMM_WORLD);
    f(comm, on);
  }
};

}  // namespace

TYPE_TO_STRING(over_nccl);
GRADLANE_PIPELINE_CONFORMANCE(over_nccl);

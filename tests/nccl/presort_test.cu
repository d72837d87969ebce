// SPDX-License-Identifier: Apache-2.0
// The presort over NCCL, on MPI_COMM_WORLD's ranks.
#include <gradlane/cuda/device.cuh>        // for device
#include <gradlane/nccl/communicator.hpp>  // for communicator
#include <gradlane/nccl/from_mpi.hpp>      // for from_mpi

#include <doctest/doctest.h>

#include <cuda/support.cuh>  // for on_cuda
#include <mpi.h>
#include <nccl/support.cuh>  // for own_device

#include <conformance/presort.hpp>  // for GRADLANE_PRESORT_CONFORMANCE

#include <cstdint>  // for uint64_t
#include <vector>   // for vector

namespace {

struct gpus : gradlane::test::on_cuda {
  static constexpr auto schedules = std::uint64_t{4};

  [[nodiscard]] static std::vector<int> worlds() {
    auto size = 0;
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    return {size};
  }

  template <class F>
  static void run(int, std::uint64_t, F f) {
    auto own  = device{gradlane::test::own_device()};
    auto self = gradlane::nccl::from_mpi(own, MPI_COMM_WORLD);
    f(self, own);
  }
};

}  // namespace

TYPE_TO_STRING(gpus);
GRADLANE_PRESORT_CONFORMANCE(gpus);

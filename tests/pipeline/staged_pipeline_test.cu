// SPDX-License-Identifier: Apache-2.0
// The pipeline on CUDA over MPI, through the host.
#include <gradlane/cuda/device.cuh>       // for device
#include <gradlane/cuda/staged.hpp>       // for staged
#include <gradlane/host/device.hpp>       // for device
#include <gradlane/mpi/communicator.hpp>  // for from_mpi

#include <doctest/doctest.h>

#include <cuda/support.cuh>  // for on_cuda
#include <mpi.h>

#include <conformance/pipeline.hpp>  // for GRADLANE_PIPELINE_CONFORMANCE

#include <cstdint>  // for uint64_t
#include <vector>   // for vector

namespace {

struct over_staged_mpi : gradlane::test::on_cuda {
  static constexpr auto schedules = std::uint64_t{5};

  [[nodiscard]] static std::vector<int> worlds() {
    auto size = 0;
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    return {size};
  }

  template <class F>
  static void run(int, std::uint64_t, F f) {
    auto on   = device{0};
    auto host = gradlane::host::device{};
    auto comm = gradlane::cuda::staged{on, host, gradlane::mpi::from_mpi(host, MPI_COMM_WORLD)};
    f(comm, on);
  }
};

}  // namespace

TYPE_TO_STRING(over_staged_mpi);
GRADLANE_PIPELINE_CONFORMANCE(over_staged_mpi);

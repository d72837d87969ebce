// SPDX-License-Identifier: Apache-2.0
#pragma once

// What tests over NCCL share: ranks that are MPI processes, each with a device of its own where
// there are as many; under an emulator that does not mind, they share.

#include <gradlane/cuda/device.cuh>        // for device
#include <gradlane/cuda/error.hpp>         // for check
#include <gradlane/nccl/communicator.hpp>  // for communicator, options
#include <gradlane/nccl/from_mpi.hpp>      // for from_mpi

#include <cuda_runtime_api.h>
#include <mpi.h>

#include <cstdio>       // for fprintf
#include <cstdlib>      // for _Exit
#include <string_view>  // for string_view

namespace gradlane::test {

[[nodiscard]] inline int local_rank() {
  auto node = MPI_COMM_NULL;
  auto rank = 0;
  MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node);
  MPI_Comm_rank(node, &rank);
  MPI_Comm_free(&node);
  return rank;
}

/// The device of this process; ends the test as skipped where ranks would have to share a GPU.
[[nodiscard]] inline int own_device() {
  auto count = 0;
  cuda::check(cudaGetDeviceCount(&count));
  auto const rank = local_rank();
  auto mine       = cudaDeviceProp{};
  cuda::check(cudaGetDeviceProperties(&mine, rank % count));
  auto const emulated = std::string_view{mine.name}.find("ptxsim") != std::string_view::npos;
  auto fits           = static_cast<int>(rank < count || emulated);
  MPI_Allreduce(MPI_IN_PLACE, &fits, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
  if (fits == 0) {
    constexpr auto skipped = 77;
    std::fprintf(stderr, "skipped: fewer GPUs than ranks\n");
    std::_Exit(skipped);
  }
  return rank % count;
}

}  // namespace gradlane::test

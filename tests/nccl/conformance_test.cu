// SPDX-License-Identifier: Apache-2.0
// The conformance suite over NCCL, on MPI_COMM_WORLD's ranks.
#include <gradlane/concepts.hpp>           // for scaling_communicator_for
#include <gradlane/cuda/device.cuh>        // for device
#include <gradlane/nccl/communicator.hpp>  // for communicator
#include <gradlane/nccl/from_mpi.hpp>      // for from_mpi

#include <doctest/doctest.h>

#include <cuda/support.cuh>  // for on_cuda
#include <mpi.h>
#include <nccl/support.cuh>  // for own_device

#include <conformance/communicator.hpp>  // for GRADLANE_COMMUNICATOR_CONFORMANCE
#include <support/mpi_nodes.hpp>         // for nodes_of_mpi

namespace {

namespace nccl = gradlane::nccl;
namespace test = gradlane::test;
using gradlane::cuda::device;
using gradlane::cuda::stream;

static_assert(gradlane::scaling_communicator_for<nccl::communicator, device>);

struct gpus {
  template <class F>
  static void run(F f) {
    auto own  = device{test::own_device()};
    auto self = nccl::from_mpi(own, MPI_COMM_WORLD);
    f(self, own);
  }
  static int nodes(int size) { return test::nodes_of_mpi(size); }
  static void delay(device& d, stream& s, int microseconds) {
    test::on_cuda::delay(d, s, microseconds);
  }
  static constexpr auto divides_late  = false;
  static constexpr auto max_keeps_nan = false;
};

}  // namespace

GRADLANE_COMMUNICATOR_CONFORMANCE(gpus);

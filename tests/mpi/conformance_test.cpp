// SPDX-License-Identifier: Apache-2.0
// The conformance suite over MPI_COMM_WORLD, at the thread level that main() was told to ask for;
// GRADLANE_MPI_CHUNK=n cuts every buffer into chunks of n elements.
#include <gradlane/host/device.hpp>       // for device
#include <gradlane/mpi/communicator.hpp>  // for from_mpi, options

#include <doctest/doctest.h>

#include <mpi.h>

#include <conformance/communicator.hpp>              // for GRADLANE_COMMUNICATOR_CONFORMANCE
#include <conformance/communicator_allocations.hpp>  // for communicator_allocations
#include <support/mpi_nodes.hpp>                     // for nodes_of_mpi

#include <cstdlib>  // for getenv, strtoull

namespace {

[[nodiscard]] char const* setting(char const* name) {
  return std::getenv(name);  // NOLINT(concurrency-mt-unsafe)
}

struct processes {
  template <class F>
  static void run(F f) {
    auto device = gradlane::host::device{};
    auto wishes = gradlane::mpi::options{};
    if (cuts()) { wishes.max_chunk = std::strtoull(setting("GRADLANE_MPI_CHUNK"), nullptr, 10); }
    auto self = gradlane::mpi::from_mpi(device, MPI_COMM_WORLD, wishes);
    f(self, device);
  }

  template <class Device>
  static void delay(Device& d, typename Device::stream& s, int microseconds) {
    d.invoke(s, gradlane::test::pause{microseconds});
  }

  static constexpr auto divides_late  = true;
  static constexpr auto max_keeps_nan = true;

  static bool cuts() { return setting("GRADLANE_MPI_CHUNK") != nullptr; }

  static int nodes(int size) { return gradlane::test::nodes_of_mpi(size); }
};

}  // namespace

GRADLANE_COMMUNICATOR_CONFORMANCE(processes);
TEST_CASE_TEMPLATE_INVOKE(communicator_allocations, processes);

// SPDX-License-Identifier: Apache-2.0
// Communicators that end in every order, MPI_Finalize, cudaDeviceReset and failures between them:
// the process must end with status 0. One order per run, named by the argument.
#include <gradlane/cuda/device.cuh>        // for device
#include <gradlane/error.hpp>              // for communication_error
#include <gradlane/mpi/environment.hpp>    // for environment
#include <gradlane/nccl/communicator.hpp>  // for communicator
#include <gradlane/nccl/from_mpi.hpp>      // for from_mpi

#include <cuda_runtime_api.h>
#include <mpi.h>
#include <nccl/support.cuh>  // for own_device

#include <array>        // for array
#include <cstdio>       // for fprintf
#include <memory>       // for make_unique
#include <optional>     // for optional
#include <span>         // for as_bytes, as_writable_bytes, span
#include <string_view>  // for string_view

namespace {

using gradlane::buffer_view;
using gradlane::cuda::device;
using gradlane::nccl::communicator;
using gradlane::nccl::from_mpi;

/// They end after main() has.
auto last_device       = std::optional<device>{};
auto last_communicator = std::optional<communicator>{};

[[nodiscard]] bool works(communicator& c, device& d) {
  auto s       = d.make_stream();
  auto memory  = d.allocate(sizeof(float));
  auto const x = buffer_view{memory.data(), 1, gradlane::dtype::fp32};
  auto value   = std::array{1.0F};
  d.upload(s, std::as_bytes(std::span{value}), x);
  c.all_reduce(s, x, x, gradlane::reduction::sum);
  d.download(s, x, std::as_writable_bytes(std::span{value}));
  d.sync(s);
  return value[0] == static_cast<float>(c.size());
}

[[nodiscard]] bool fails(communicator& c, device& d) {
  try {
    static_cast<void>(works(c, d));
  } catch (gradlane::communication_error const&) { return true; }
  return false;
}

[[nodiscard]] bool run(std::string_view order) {
  auto environment = std::make_unique<gradlane::mpi::environment>();
  auto const index = gradlane::test::own_device();
  auto d           = std::make_unique<device>(index);
  auto c           = std::make_unique<communicator>(from_mpi(*d, MPI_COMM_WORLD));
  auto child       = std::make_unique<communicator>(c->split(0, c->rank()));
  auto const fine  = works(*c, *d) && works(*child, *d);
  if (order == "parent_first") {
    c.reset();
    return fine && works(*child, *d);
  }
  if (order == "after_mpi") {
    environment.reset();
    return fine && works(*c, *d);
  }
  if (order == "after_reset") {
    auto const status = cudaDeviceReset();
    c.reset();
    child.reset();
    return fine && status == cudaSuccess;
  }
  if (order == "end_of_program") {
    last_device.emplace(index);
    last_communicator.emplace(from_mpi(*last_device, MPI_COMM_WORLD));
    return fine && works(*last_communicator, *last_device);
  }
  if (order == "never") {
    static_cast<void>(c.release());
    static_cast<void>(child.release());
    static_cast<void>(d.release());
    return fine;
  }
  if (order == "aborted_parent_first" || order == "aborted_child_first") {
    MPI_Barrier(MPI_COMM_WORLD);  // none aborts what another one still uses
    auto& first  = order == "aborted_parent_first" ? c : child;
    auto& second = order == "aborted_parent_first" ? child : c;
    first->abort();
    second->abort();
    first->abort();
    auto const both = fails(*c, *d) && fails(*child, *d);
    second.reset();
    return fine && both;
  }
  return false;
}

}  // namespace

int main(int argc, char** argv) {
  auto const order = std::string_view{argc == 2 ? argv[1] : ""};
  auto devices     = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) { return 77; }
  if (run(order)) { return 0; }
  std::fprintf(stderr, "wrong in order '%s'\n", argc == 2 ? argv[1] : "");
  return 1;
}

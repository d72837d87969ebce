// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/concepts.hpp>           // for timeout
#include <gradlane/cuda/any_device.hpp>    // for any_device
#include <gradlane/detail/deadline.hpp>    // for poll_until
#include <gradlane/error.hpp>              // for error, expects, timeout_error
#include <gradlane/mpi/environment.hpp>    // for is_finalized, is_initialized, may_call
#include <gradlane/mpi/error.hpp>          // for check
#include <gradlane/nccl/communicator.hpp>  // for communicator, from_unique_id, make_unique_id, …
#include <gradlane/nccl/error.hpp>         // for error

#include <mpi.h>
#include <nccl.h>

#include <source_location>  // for source_location
#include <string>           // for string

namespace gradlane::nccl {

namespace detail {

/// Returns once all ranks of `comm` have come.
inline void meet(MPI_Comm comm, timeout deadline, std::source_location at) {
  auto request = MPI_REQUEST_NULL;
  mpi::detail::check(MPI_Ibarrier(comm, &request), "MPI_Ibarrier", at);
  auto const all = gradlane::detail::poll_until(
      [&] {
        auto done = 0;
        mpi::detail::check(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Test", at);
        return done != 0;
      },
      deadline);
  if (!all) {
    throw timeout_error{"nccl::from_mpi: not all ranks of the MPI communicator have come in time",
                        at};
  }
}

/// The lowest rank of `comm` that shares memory with this one.
[[nodiscard]] inline int node_of(MPI_Comm comm, int rank, std::source_location at) {
  auto node   = MPI_COMM_NULL;
  auto lowest = rank;
  mpi::detail::check(MPI_Comm_split_type(comm, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &node),
                     "MPI_Comm_split_type",
                     at);
  mpi::detail::check(MPI_Bcast(&lowest, 1, MPI_INT, 0, node), "MPI_Bcast", at);
  mpi::detail::check(MPI_Comm_free(&node), "MPI_Comm_free", at);
  return lowest;
}

/// What rank 0 tells all others.
struct invitation {
  ncclUniqueId id{};
  int code{ncclSuccess};
};

}  // namespace detail

/// A communicator over the ranks of `comm`, which is used here only. Collective; blocks.
///
/// MPI must be running, and this thread allowed to call it. Nodes are MPI_COMM_TYPE_SHARED's.
/// @throws as from_unique_id, on all ranks where rank 0 has no id; mpi::error.
template <cuda::any_device Device>
[[nodiscard]] communicator from_mpi(Device& device,
                                    MPI_Comm comm,
                                    options wishes          = {},
                                    std::source_location at = std::source_location::current()) {
  expects(mpi::detail::is_initialized() && !mpi::detail::is_finalized() && mpi::detail::may_call(),
          "nccl::from_mpi: MPI is not running, or not for this thread; make an mpi::environment",
          at);
  auto rank = 0;
  auto size = 0;
  mpi::detail::check(MPI_Comm_rank(comm, &rank), "MPI_Comm_rank", at);
  mpi::detail::check(MPI_Comm_size(comm, &size), "MPI_Comm_size", at);
  detail::meet(comm, wishes.construction_deadline, at);
  auto from_root = detail::invitation{};
  auto text      = std::string{"rank 0 has no unique id"};
  if (rank == 0) {
    try {
      from_root.id = make_unique_id(at);
    } catch (error const& e) {
      from_root.code = e.code();
      text           = e.message();
    }
  }
  auto const bytes = static_cast<int>(sizeof from_root);
  mpi::detail::check(MPI_Bcast(&from_root, bytes, MPI_BYTE, 0, comm), "MPI_Bcast", at);
  if (from_root.code != ncclSuccess) { throw error{text, from_root.code, at}; }
  if (wishes.node < 0) { wishes.node = detail::node_of(comm, rank, at); }
  return from_unique_id(device, from_root.id, rank, size, wishes, at);
}

}  // namespace gradlane::nccl

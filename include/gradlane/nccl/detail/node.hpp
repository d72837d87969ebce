// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/buffer_view.hpp>        // for buffer_view
#include <gradlane/concepts.hpp>           // for timeout
#include <gradlane/cuda/device_guard.hpp>  // for device_guard
#include <gradlane/cuda/error.hpp>         // for check
#include <gradlane/cuda/memory.hpp>        // for buffer
#include <gradlane/cuda/stream.hpp>        // for stream
#include <gradlane/detail/deadline.hpp>    // for poll_until
#include <gradlane/detail/fnv1a.hpp>       // for fnv1a
#include <gradlane/error.hpp>              // for timeout_error
#include <gradlane/types.hpp>              // for dtype, stream_priority

#include <cuda_runtime_api.h>

#include <unistd.h>

#include <algorithm>        // for find
#include <array>            // for array
#include <cstddef>          // for size_t
#include <cstdint>          // for uint64_t
#include <fstream>          // for ifstream
#include <source_location>  // for source_location
#include <string>           // for getline, string, to_string
#include <vector>           // for vector

namespace gradlane::nccl::detail {

[[nodiscard]] inline std::string host_name() {
  auto name = std::array<char, 256>{};
  if (gethostname(name.data(), name.size() - 1) != 0) { return "(a host without a name)"; }
  return name.data();
}

/// "device 1 (0000:1b:00.0) of host1"
[[nodiscard]] inline std::string describe_place(int device_index) {
  auto pci          = std::array<char, 32>{};
  auto const status = cudaDeviceGetPCIBusId(pci.data(), static_cast<int>(pci.size()), device_index);
  static_cast<void>(cudaGetLastError());
  auto text = "device " + std::to_string(device_index);
  if (status == cudaSuccess) { text.append(" (").append(pci.data()).append(")"); }
  return text.append(" of ").append(host_name());
}

/// Equal on the ranks of one machine: its name and, as names may repeat, the number of its boot.
[[nodiscard]] inline std::uint64_t machine_hash() {
  auto boot = std::string{};
  if (auto file = std::ifstream{"/proc/sys/kernel/random/boot_id"}) { std::getline(file, boot); }
  auto hash = gradlane::detail::fnv1a{};
  hash.feed(host_name());
  hash.feed(boot);
  return hash.value();
}

/// The lowest rank on this rank's machine. Collective; blocks.
/// @throws timeout_error where a rank does not come, and what `comm` throws.
template <class Comm>
[[nodiscard]] int sync_node_of(Comm& comm,
                               int device_index,
                               timeout deadline,
                               std::source_location at) {
  auto const guard = cuda::device_guard{device_index, at};
  auto const own   = machine_hash();
  auto hashes      = std::vector<std::uint64_t>(static_cast<std::size_t>(comm.size()));
  auto memory      = cuda::buffer{device_index, (hashes.size() + 1) * sizeof(own), at};
  auto on          = cuda::stream{device_index, stream_priority::normal, at};
  auto const in    = buffer_view{memory.data(), 1, dtype::uint64};
  auto const out   = buffer_view{memory.data() + sizeof(own), hashes.size(), dtype::uint64};
  cuda::check(cudaMemcpyAsync(in.data(), &own, in.size_bytes(), cudaMemcpyHostToDevice, on.get()),
              at);
  comm.all_gather(on, in, out, at);
  auto const gathered = gradlane::detail::poll_until(
      [&] {
        comm.poll();
        auto const status = cudaStreamQuery(on.get());
        if (status != cudaErrorNotReady) { cuda::check(status, at); }
        static_cast<void>(cudaGetLastError());
        return status == cudaSuccess;
      },
      deadline);
  if (!gathered) {
    comm.abort();
    throw timeout_error{"nccl: rank " + std::to_string(comm.rank()) +
                            " waited in vain for all ranks to call node_group",
                        at};
  }
  cuda::check(cudaMemcpyAsync(
                  hashes.data(), out.data(), out.size_bytes(), cudaMemcpyDeviceToHost, on.get()),
              at);
  cuda::check(cudaStreamSynchronize(on.get()), at);
  return static_cast<int>(std::find(hashes.begin(), hashes.end(), own) - hashes.begin());
}

}  // namespace gradlane::nccl::detail

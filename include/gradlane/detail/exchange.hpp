// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/buffer_view.hpp>            // for buffer_view
#include <gradlane/concepts.hpp>               // for communicator_for, device, timeout
#include <gradlane/detail/leave_for_ever.hpp>  // for leave_for_ever
#include <gradlane/detail/smaller.hpp>         // for smaller
#include <gradlane/error.hpp>                  // for timeout_error
#include <gradlane/types.hpp>                  // for dtype

#include <cstddef>  // for byte, size_t
#include <cstdint>  // for uint64_t
#include <span>     // for as_bytes, as_writable_bytes, span
#include <string>   // for string, to_string
#include <vector>   // for vector

/// Small exchanges of host data over a communicator, for construction: they block.
namespace gradlane::detail {

/// Calls `enqueue()`, which puts an exchange that uses `memory` on the stream, and waits for it.
///
/// Whatever is thrown, the stream no longer touches `memory` and host values: the communicator has
/// been aborted, so that the stream came to its end.
/// @throws timeout_error where a rank does not take part, whatever else the exchange met.
template <device Device, communicator_for<Device> Comm, class Enqueue>
void sync_exchange(Device& device,
                   typename Device::stream& stream,
                   Comm& comm,
                   typename Device::buffer& memory,
                   timeout deadline,
                   Enqueue enqueue) {
  auto const give_up = [&]() noexcept {
    comm.abort();
    try {
      device.sync(stream);
    } catch (...) {}  // NOLINT(bugprone-empty-catch): what is being handled, or the abort
    if constexpr (Comm::capabilities.writes_after_failure) { leave_for_ever(memory); }
  };
  try {
    enqueue();
    device.sync(stream, deadline);
  } catch (timeout_error const& late) {
    give_up();
    throw timeout_error{"rank " + std::to_string(comm.rank()) +
                        " waited in vain for other ranks, which must all make the same objects of "
                        "a group, and learn orders, together (" +
                        late.what() + ")"};
  } catch (...) {
    give_up();
    throw;
  }
}

/// Uploads any number of bytes to `out`, in the pieces that device::upload takes.
template <device Device>
void upload_all(Device& device,
                typename Device::stream& stream,
                std::span<std::byte const> host,
                std::byte* out) {
  constexpr auto piece = std::size_t{64} << 10U;
  for (auto done = std::size_t{0}; done < host.size(); done += piece) {
    auto const part = host.subspan(done, smaller(piece, host.size() - done));
    device.upload(stream, part, buffer_view{out + done, part.size(), dtype::uint8});
  }
}

/// One value of every rank, by rank.
template <device Device, communicator_for<Device> Comm>
[[nodiscard]] std::vector<std::uint64_t> sync_all_gather(Device& device,
                                                         typename Device::stream& stream,
                                                         Comm& comm,
                                                         std::uint64_t value,
                                                         timeout deadline) {
  auto result       = std::vector<std::uint64_t>(static_cast<std::size_t>(comm.size()));
  auto memory       = device.allocate((result.size() + 1) * sizeof(value));
  auto const own    = buffer_view{memory.data(), 1, dtype::uint64};
  auto const all    = buffer_view{memory.data() + sizeof(value), result.size(), dtype::uint64};
  auto const source = std::span{&value, 1};
  sync_exchange(device, stream, comm, memory, deadline, [&] {
    device.upload(stream, std::as_bytes(source), own);
    comm.all_gather(stream, own, all);
    device.download(stream, all, std::as_writable_bytes(std::span{result}));
  });
  return result;
}

/// One text of every rank, by rank.
template <device Device, communicator_for<Device> Comm>
[[nodiscard]] std::vector<std::string> sync_all_gather(Device& device,
                                                       typename Device::stream& stream,
                                                       Comm& comm,
                                                       std::string const& text,
                                                       timeout deadline) {
  auto const sizes = sync_all_gather(device, stream, comm, std::uint64_t{text.size()}, deadline);
  auto counts      = std::vector<std::size_t>{};
  auto total       = std::size_t{0};
  for (auto const size : sizes) { total += counts.emplace_back(static_cast<std::size_t>(size)); }
  auto memory    = device.allocate(text.size() + total);
  auto const own = buffer_view{memory.data(), text.size(), dtype::uint8};
  auto const all = buffer_view{memory.data() + text.size(), total, dtype::uint8};
  auto joined    = std::string(total, '\0');
  sync_exchange(device, stream, comm, memory, deadline, [&] {
    upload_all(device, stream, std::as_bytes(std::span{text}), memory.data());
    comm.all_gather_v(stream, own, all, counts);
    device.download(stream, all, std::as_writable_bytes(std::span{joined}));
  });
  auto result = std::vector<std::string>{};
  auto start  = std::size_t{0};
  for (auto const count : counts) {
    result.push_back(joined.substr(start, count));
    start += count;
  }
  return result;
}

/// Makes `values` those of rank 0; the same size on all ranks.
template <device Device, communicator_for<Device> Comm>
void sync_broadcast(Device& device,
                    typename Device::stream& stream,
                    Comm& comm,
                    std::span<std::uint64_t> values,
                    timeout deadline) {
  auto memory    = device.allocate(values.size_bytes());
  auto const all = buffer_view{memory.data(), values.size(), dtype::uint64};
  sync_exchange(device, stream, comm, memory, deadline, [&] {
    upload_all(device, stream, std::as_bytes(values), memory.data());
    comm.broadcast(stream, all, 0);
    device.download(stream, all, std::as_writable_bytes(values));
  });
}

}  // namespace gradlane::detail

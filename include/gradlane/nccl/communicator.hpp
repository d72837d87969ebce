// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/buffer_view.hpp>              // for buffer_view, const_buffer_view
#include <gradlane/concepts.hpp>                 // for capability_set, timeout
#include <gradlane/cuda/any_device.hpp>          // for any_device
#include <gradlane/cuda/device_guard.hpp>        // for device_guard
#include <gradlane/cuda/stream.hpp>              // for stream
#include <gradlane/detail/collective_calls.hpp>  // for collective_calls
#include <gradlane/detail/failure.hpp>           // for failure
#include <gradlane/error.hpp>                    // for aborted_error, contract_error, expects, …
#include <gradlane/nccl/detail/bring_up.hpp>     // for bring_up, config_of, unique_comm
#include <gradlane/nccl/detail/call.hpp>         // for call, operation
#include <gradlane/nccl/detail/channel.hpp>      // for channel, state_of
#include <gradlane/nccl/detail/family.hpp>       // for family
#include <gradlane/nccl/detail/node.hpp>         // for describe_place, sync_node_of
#include <gradlane/nccl/error.hpp>               // for check, error, is_error, text_of
#include <gradlane/nccl/version.hpp>             // for check_version, version_text
#include <gradlane/types.hpp>                    // for dtype

#include <nccl.h>

#include <chrono>           // for duration, minutes
#include <cstdint>          // for uint64_t
#include <memory>           // for make_shared, shared_ptr
#include <source_location>  // for source_location
#include <string>           // for string, to_string
#include <string_view>      // for string_view
#include <utility>          // for forward, move

namespace gradlane::nccl {

class communicator;

namespace detail {
struct maker;
}

struct options {
  /// How long ranks may take to come together, here and in each split.
  timeout construction_deadline{std::chrono::minutes{5}};
  /// Which node the rank is on: any number >= 0, equal on the ranks that share one. Negative: found
  /// out from the host's name and boot.
  int node{-1};
  /// Another communicator of this device, to take turns with: needed where both may have calls
  /// under way. Those that are split from one another do so by themselves.
  communicator const* beside{nullptr};
  /// NCCL's blocking mode: calls cost less host time, as NCCL starts no thread for each, but where
  /// a peer is lost while ranks connect, the host thread hangs, whatever the deadlines.
  bool blocking{false};
};

/// A group of ranks, each with a GPU of its own, that talk by NCCL.
///
/// Calls are handed to NCCL at once and in order, and may be captured into a graph. One after the
/// other they are carried out on the device, whatever their streams, and so are those of
/// communicators that are split from one another: a send may hold up the receive that its peer
/// waits for, unless both are issued in one `group`.
///
/// Sums are NCCL's: 16-bit types are rounded at each combination; an average is a sum of inputs
/// that were divided by the number of ranks before; `max` may lose a NaN. Sums of the same values
/// have the same bits on all ranks, but may differ between runs and sizes. all_reduce_scaled takes
/// fp32 alone: for NCCL wants the coefficient in the dtype of the data, where a 16-bit one would be
/// off by up to 0.4 %, or underflow under a loss scale.
///
/// A failure comes out of `poll`, and of the device's sync for streams with a call under way; who
/// waits in CUDA's own functions, or for a graph, calls `poll` now and then. Streams then come to
/// their ends with undefined results. Deadlines do not count in graphs.
///
/// Used by one host thread at a time, with streams of the device it was made for, which it must not
/// outlive. May be destroyed before or after MPI_Finalize and cudaDeviceReset, and in any order;
/// the end of one that is idle and has not failed may wait, as NCCL does, for the ranks of the same
/// node to come to theirs.
class communicator : public gradlane::detail::collective_calls<communicator, cuda::stream> {
 public:
  static constexpr capability_set capabilities{.premultiplied_sum = true};

  [[nodiscard]] static constexpr bool supports_scaled(dtype type) noexcept {
    return type == dtype::fp32;
  }

  [[nodiscard]] int rank() const noexcept { return channel_->rank(); }
  [[nodiscard]] int size() const noexcept { return channel_->size(); }

  /// Collectives issued so far, splits included; the same on all ranks of a correct program.
  [[nodiscard]] std::uint64_t collectives() const noexcept { return channel_->collectives(); }

  /// NCCL's handle, null after a failure. What is done with it is not watched here.
  [[nodiscard]] ncclComm_t get() const noexcept { return channel_->comm(); }

  /// @param coefficient  in device memory; read when the stream gets there, also in a graph.
  void all_reduce_scaled(cuda::stream& on,
                         const_buffer_view in,
                         buffer_view out,
                         float const* coefficient,
                         std::source_location at = std::source_location::current()) {
    auto const check = this->checking(operation::all_reduce_scaled, at);
    check.shapes(in, out);
    expects(supports_scaled(in.type()), "all_reduce_scaled: NCCL scales fp32 only", at);
    check.in_place_or_apart(in, out, in.data() == out.data());
    issue(
        on, operation::all_reduce_scaled, in, out, no_peer, at, [coefficient](detail::call& call) {
          call.coefficient = coefficient;
        });
  }

  /// Carries out together what `calls()` issues to this communicator.
  template <class F>
  void group(F&& calls, std::source_location at = std::source_location::current()) {
    channel_->open();
    try {
      std::forward<F>(calls)();
    } catch (...) {
      channel_->close(at);
      throw;
    }
    channel_->close(at);
  }

  void set_deadline(timeout t) noexcept { channel_->set_deadline(t); }
  [[nodiscard]] timeout deadline() const noexcept { return channel_->deadline(); }
  void poll() { channel_->poll(); }

  /// Peers notice by NCCL's own means, or by their deadlines. NCCL's communicator is freed, but for
  /// one that was given by from_existing.
  void abort() noexcept {
    auto why      = gradlane::detail::failure{};
    auto const at = std::source_location::current();
    try {
      auto text = "aborted by rank " + std::to_string(rank()) + ", this one";
      why       = gradlane::detail::failure::of<aborted_error>(std::move(text), at);
    } catch (...) {  // no memory for the text
      why = gradlane::detail::failure::of<aborted_error>({}, at);
    }
    channel_->fail(std::move(why));
  }

  [[nodiscard]] communicator split(int color,
                                   int key,
                                   std::source_location at = std::source_location::current()) {
    expects(color >= 0, "nccl::communicator::split: color must not be negative", at);
    channel_->count_collective();
    channel_->raise_failure();
    auto const& shared = channel_->shared();
    auto const guard   = cuda::device_guard{shared->device_index, at};
    auto const waiting = detail::bring_up{"ncclCommSplit", shared->device_index, patience_, at};
    auto config        = detail::config_of(shared->blocking);
    auto* handle       = ncclComm_t{};
    try {
      auto const begun = ncclCommSplit(channel_->comm(), color, key, &handle, &config);
      waiting.sync(channel_->comm(), begun);  // which sets the handle
    } catch (communication_error const&) {
      abort();
      throw;
    }
    auto made = detail::unique_comm{handle};
    waiting.sync(handle, ncclInProgress);
    auto half = communicator{shared, handle, true, node_, patience_, at};
    static_cast<void>(made.release());
    return half;
  }

  /// The ranks of this group on the same node, in the order of their ranks.
  [[nodiscard]] communicator node_group(std::source_location at = std::source_location::current()) {
    auto const device = channel_->shared()->device_index;
    if (node_ < 0) { node_ = detail::sync_node_of(*this, device, patience_, at); }
    return split(node_, rank(), at);
  }

  /// "nccl: rank 1 of 3, device 1 (0000:1b:00.0) of host1"
  [[nodiscard]] std::string describe() const {
    return "nccl: rank " + std::to_string(rank()) + " of " + std::to_string(size()) + ", " +
           detail::describe_place(channel_->shared()->device_index);
  }

 private:
  friend class gradlane::detail::collective_calls<communicator, cuda::stream>;
  friend struct detail::maker;
  using operation = detail::operation;

  communicator(std::shared_ptr<detail::family> shared,
               ncclComm_t comm,
               bool owned,
               int node,
               timeout patience,
               std::source_location at)
      : channel_{std::make_shared<detail::channel>(std::move(shared), comm, owned, at)},
        node_{node},
        patience_{patience} {}

  template <class Fill>
  void issue(cuda::stream& on,
             operation what,
             const_buffer_view in,
             buffer_view out,
             int peer,
             std::source_location at,
             Fill fill) {
    auto& call = channel_->next();
    call.what  = what;
    call.in    = in;
    call.out   = out;
    call.peer  = peer;
    call.at    = at;
    fill(call);
    channel_->issue(on, call);
  }

  std::shared_ptr<detail::channel> channel_;
  int node_;  // negative: not known yet
  timeout patience_;
};

namespace detail {

/// Makes the first communicator of a family.
struct maker {
  template <cuda::any_device Device>
  [[nodiscard]] static communicator make(
      Device& device, ncclComm_t comm, bool owned, options const& wishes, std::source_location at) {
    auto shared = wishes.beside != nullptr ? wishes.beside->channel_->shared()
                                           : std::make_shared<family>(device, wishes.blocking, at);
    expects(shared->device_index == device.index(),
            "nccl: options::beside is a communicator of another device",
            at);
    return {std::move(shared), comm, owned, wishes.node, wishes.construction_deadline, at};
  }
};

}  // namespace detail

/// What one rank makes, and gives to all of a group by any means: a file, a socket, MPI.
/// @throws error from NCCL.
[[nodiscard]] inline ncclUniqueId make_unique_id(
    std::source_location at = std::source_location::current()) {
  detail::check_version(at);
  auto id = ncclUniqueId{};
  detail::check(ncclGetUniqueId(&id), "ncclGetUniqueId", at);
  return id;
}

/// The communicator of rank `rank` of `size`, all of which have got the same id. Collective;
/// blocks.
/// @param device  a cuda::device; each rank has its own.
/// @throws contract_error where ranks share a GPU, timeout_error where they do not all come in
/// time,
///   error from NCCL, and where the library is older than its header.
template <cuda::any_device Device>
[[nodiscard]] communicator from_unique_id(
    Device& device,
    ncclUniqueId const& id,
    int rank,
    int size,
    options const& wishes   = {},
    std::source_location at = std::source_location::current()) {
  expects(rank >= 0 && rank < size, "nccl::from_unique_id: rank must be from 0 to size - 1", at);
  detail::check_version(at);
  auto const guard = cuda::device_guard{device.index(), at};
  auto config      = detail::config_of(wishes.blocking);
  auto* handle     = ncclComm_t{};
  auto const begun = ncclCommInitRankConfig(&handle, size, id, rank, &config);
  auto comm        = detail::unique_comm{handle};
  auto const waiting =
      detail::bring_up{"ncclCommInitRankConfig", device.index(), wishes.construction_deadline, at};
  waiting.sync(handle, begun);
  auto made = detail::maker::make(device, handle, true, wishes, at);
  static_cast<void>(comm.release());
  return made;
}

/// A communicator over one that the program has made, and keeps: it must outlive this one, and is
/// used by nobody else meanwhile. After a failure, NCCL before 2.28.9 leaves its calls under way.
/// @throws contract_error where it is of another device.
template <cuda::any_device Device>
[[nodiscard]] communicator from_existing(
    Device& device,
    ncclComm_t comm,
    options const& wishes   = {},
    std::source_location at = std::source_location::current()) {
  detail::check_version(at);
  auto index = -1;
  detail::check(ncclCommCuDevice(comm, &index), "ncclCommCuDevice", at);
  expects(
      index == device.index(), "nccl::from_existing: the communicator is of another device", at);
  return detail::maker::make(device, comm, false, wishes, at);
}

}  // namespace gradlane::nccl

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/buffer_view.hpp>         // for buffer_view, const_buffer_view
#include <gradlane/concepts.hpp>            // for capability_set, communicator_for, timeout
#include <gradlane/detail/collective.hpp>   // for argument_check, reduces, sum_of
#include <gradlane/detail/failure.hpp>      // for failure
#include <gradlane/error.hpp>               // for aborted_error, expects
#include <gradlane/host/device.hpp>         // for device
#include <gradlane/host/stream.hpp>         // for stream
#include <gradlane/mpi/detail/call.hpp>     // for operation
#include <gradlane/mpi/detail/channel.hpp>  // for channel, ticket
#include <gradlane/mpi/detail/family.hpp>   // for family, unique_communicator
#include <gradlane/mpi/environment.hpp>     // for environment, may_call, name_of
#include <gradlane/mpi/error.hpp>           // for check
#include <gradlane/types.hpp>               // for dtype, reduction, size_of

#include <mpi.h>

#include <cstddef>          // for size_t
#include <cstdint>          // for uint64_t
#include <limits>           // for numeric_limits
#include <memory>           // for shared_ptr, make_shared
#include <source_location>  // for source_location
#include <span>             // for span
#include <string>           // for string, to_string
#include <utility>          // for move

namespace gradlane::mpi {

struct options {
  /// Elements that go into one MPI call at most; longer buffers are cut. Equal on all ranks.
  std::size_t max_chunk = std::size_t{1} << 27U;
  /// Work in a context of one's own, so that no message of the program can interfere. Without,
  /// the communicator given is used as it is and must outlive this one, its error handler
  /// included: with MPI's default handler an error ends the process.
  bool duplicate = true;
  /// abort() calls MPI_Abort, which ends the processes of all ranks.
  bool abort_world = false;
  /// The environment that would finalise MPI: told when this communicator fails, so that the
  /// process can end without waiting for lost peers.
  environment const* owner = nullptr;
};

/// A group of MPI processes.
///
/// At MPI_THREAD_MULTIPLE each stream's own thread drives the collective it has come to, with
/// MPI_Test and pauses that grow while nothing moves. Below, streams hand it to the thread that
/// made the communicator (at SINGLE and FUNNELED: the main thread), which makes progress in every
/// device.sync and in `poll`: call `poll` now and then while that thread computes.
///
/// Sums are MPI's; those of bf16 and fp16 are combined in fp32 and rounded at each combination.
/// An average is the sum divided at the end, rounded once more for 16-bit types. `max` is NaN
/// where one input is. A group of one rank issues no collective.
///
/// After a deadline or error, requests under way are left to MPI, which may still write to their
/// buffers: these must stay alive, and hold nothing defined. MPI_Finalize would wait for the lost
/// peer: give the environment as options::owner, or leave the process by std::_Exit or MPI_Abort.
///
/// Used by one host thread at a time, with streams of the device it was made for, which it must
/// not outlive. May be destroyed before or after MPI_Finalize; what may not be freed is left.
class communicator {
 public:
  static constexpr capability_set capabilities{.premultiplied_sum = false};

  /// All but the average of integers. Integer sums wrap around.
  [[nodiscard]] static constexpr bool supports(reduction op, dtype type) noexcept {
    return gradlane::detail::reduces(op, type);
  }

  [[nodiscard]] int rank() const noexcept { return channel_->rank(); }
  [[nodiscard]] int size() const noexcept { return channel_->size(); }

  /// Collectives issued so far, splits included; the same on all ranks of a correct program.
  [[nodiscard]] std::uint64_t collectives() const noexcept { return channel_->collectives(); }

  void all_reduce(host::stream& on,
                  const_buffer_view in,
                  buffer_view out,
                  reduction op,
                  std::source_location at = std::source_location::current()) {
    auto const check = checking(operation::all_reduce, at);
    check.reduction_of(op, in.type());
    check.shapes(in, out);
    check.in_place_or_apart(in, out, in.data() == out.data());
    auto call = enter(operation::all_reduce, in, out, at);
    call->op  = op;
    enqueue(on, std::move(call));
  }

  void reduce_scatter(host::stream& on,
                      const_buffer_view in,
                      buffer_view out,
                      reduction op,
                      std::source_location at = std::source_location::current()) {
    auto const check = checking(operation::reduce_scatter, at);
    check.reduction_of(op, in.type());
    check.shapes(in, out, ranks(), 1);
    check.in_place_or_apart(in, out, own_part(in.data(), out.size_bytes()) == out.data());
    auto call = enter(operation::reduce_scatter, in, out, at);
    call->op  = op;
    enqueue(on, std::move(call));
  }

  void all_gather(host::stream& on,
                  const_buffer_view in,
                  buffer_view out,
                  std::source_location at = std::source_location::current()) {
    auto const check = checking(operation::all_gather, at);
    check.shapes(in, out, 1, ranks());
    check.in_place_or_apart(in, out, own_part(out.data(), in.size_bytes()) == in.data());
    enqueue(on, enter(operation::all_gather, in, out, at));
  }

  void all_gather_v(host::stream& on,
                    const_buffer_view in,
                    buffer_view out,
                    std::span<std::size_t const> counts,
                    std::source_location at = std::source_location::current()) {
    auto const check = checking(operation::all_gather_v, at);
    check.same_type(in, out);
    check.counts("counts", counts, out.count());
    check.own_count(counts, in);
    auto const before = gradlane::detail::sum_of(counts.first(static_cast<std::size_t>(rank()))) *
                        size_of(in.type());
    check.in_place_or_apart(in, out, out.data() + before == in.data());
    auto call = enter(operation::all_gather_v, in, out, at);
    call->receive.assign(counts.begin(), counts.end());
    enqueue(on, std::move(call));
  }

  void broadcast(host::stream& on,
                 buffer_view x,
                 int root,
                 std::source_location at = std::source_location::current()) {
    checking(operation::broadcast, at).peer(root);
    enqueue(on, enter(operation::broadcast, x, x, at, root));
  }

  void all_to_all_v(host::stream& on,
                    const_buffer_view in,
                    std::span<std::size_t const> send,
                    buffer_view out,
                    std::span<std::size_t const> receive,
                    std::source_location at = std::source_location::current()) {
    auto const check = checking(operation::all_to_all_v, at);
    check.same_type(in, out);
    check.counts("send", send, in.count());
    check.counts("receive", receive, out.count());
    check.in_place_or_apart(in, out, false);
    auto call = enter(operation::all_to_all_v, in, out, at);
    call->send.assign(send.begin(), send.end());
    call->receive.assign(receive.begin(), receive.end());
    enqueue(on, std::move(call));
  }

  void send(host::stream& on,
            const_buffer_view in,
            int peer,
            std::source_location at = std::source_location::current()) {
    checking(operation::send, at).peer(peer);
    enqueue(on, enter(operation::send, in, {}, at, peer));
  }

  void receive(host::stream& on,
               buffer_view out,
               int peer,
               std::source_location at = std::source_location::current()) {
    checking(operation::receive, at).peer(peer);
    enqueue(on, enter(operation::receive, {}, out, at, peer));
  }

  void set_deadline(timeout t) noexcept { channel_->set_deadline(t); }
  void poll() { channel_->poll(); }

  /// Local, but for options::abort_world: peers notice by their own deadlines.
  void abort() noexcept {
    auto why = gradlane::detail::failure{};
    try {
      why = gradlane::detail::failure::of<aborted_error>(
          "aborted by rank " + std::to_string(rank()) + ", this one",
          std::source_location::current());
    } catch (...) {  // no memory for the text
      why = gradlane::detail::failure::of<aborted_error>({}, std::source_location::current());
    }
    channel_->fail(std::move(why));
    if (channel_->shared()->abort_world && detail::may_call()) { MPI_Abort(channel_->comm(), 1); }
  }

  [[nodiscard]] communicator split(int color,
                                   int key,
                                   std::source_location at = std::source_location::current()) {
    expects(color >= 0, "mpi::communicator::split: color must not be negative", at);
    meet(at);
    auto made = MPI_COMM_NULL;
    detail::check(MPI_Comm_split(channel_->comm(), color, key, &made), "MPI_Comm_split", at);
    return adopt(made, at);
  }

  /// The ranks of this group that share memory (MPI_COMM_TYPE_SHARED), in the order of their ranks.
  [[nodiscard]] communicator node_group(std::source_location at = std::source_location::current()) {
    meet(at);
    auto made = MPI_COMM_NULL;
    detail::check(
        MPI_Comm_split_type(channel_->comm(), MPI_COMM_TYPE_SHARED, rank(), MPI_INFO_NULL, &made),
        "MPI_Comm_split_type",
        at);
    return adopt(made, at);
  }

  /// "mpi: rank 1 of 3, MPI_THREAD_FUNNELED: the thread that calls sync and poll makes progress"
  [[nodiscard]] std::string describe() const {
    auto const& shared = *channel_->shared();
    auto text = "mpi: rank " + std::to_string(rank()) + " of " + std::to_string(size()) + ", ";
    text.append(name_of(shared.level));
    return text.append(shared.streams_drive()
                           ? ": the threads of the streams make progress"
                           : ": the thread that calls sync and poll makes progress");
  }

 private:
  friend communicator from_mpi(host::device&, MPI_Comm, options const&, std::source_location);
  using operation = detail::operation;

  communicator(host::device& device, std::shared_ptr<detail::channel> made) noexcept
      : device_{&device}, channel_{std::move(made)} {}

  static communicator make(host::device& device,
                           MPI_Comm comm,
                           options const& wishes,
                           std::source_location at) {
    expects(detail::is_initialized() && !detail::is_finalized(),
            "mpi::from_mpi: MPI is not initialised, or finalised; make an mpi::environment first",
            at);
    expects(comm != MPI_COMM_NULL, "mpi::from_mpi: the communicator is MPI_COMM_NULL", at);
    expects(wishes.max_chunk > 0 &&
                wishes.max_chunk <= static_cast<std::size_t>(std::numeric_limits<int>::max()),
            "mpi::from_mpi: max_chunk must be from 1 to the greatest int",
            at);
    expects(detail::may_call(),
            "mpi::from_mpi: below MPI_THREAD_MULTIPLE only the main thread may make it",
            at);
    auto shared = std::make_shared<detail::family>(
        detail::family{.max_chunk   = wishes.max_chunk,
                       .abort_world = wishes.abort_world,
                       .reports_to  = wishes.owner == nullptr ? nullptr : wishes.owner->health_});
    if (wishes.duplicate) {
      auto own = MPI_COMM_NULL;
      detail::check(MPI_Comm_dup(comm, &own), "MPI_Comm_dup", at);
      comm = own;
    }
    return {
        device,
        std::make_shared<detail::channel>(device, std::move(shared), comm, wishes.duplicate, at)};
  }

  [[nodiscard]] communicator adopt(MPI_Comm made, std::source_location at) const {
    return {*device_,
            std::make_shared<detail::channel>(*device_, channel_->shared(), made, true, at)};
  }

  /// Returns once all ranks have come to the same call, so that what blocks next is short.
  void meet(std::source_location at) {
    auto const& shared = *channel_->shared();
    expects(
        shared.streams_drive() || shared.is_owner(),
        "mpi::communicator: below MPI_THREAD_MULTIPLE only the thread that made it may split it",
        at);
    enter(operation::split, {}, {}, at)();
  }

  [[nodiscard]] std::size_t ranks() const noexcept { return static_cast<std::size_t>(size()); }

  template <class Byte>
  [[nodiscard]] Byte* own_part(Byte* data, std::size_t bytes) const noexcept {
    return data + static_cast<std::size_t>(rank()) * bytes;
  }

  [[nodiscard]] gradlane::detail::argument_check checking(operation what,
                                                          std::source_location at) const noexcept {
    return {what, rank(), size(), at};
  }

  [[nodiscard]] detail::ticket enter(operation what,
                                     const_buffer_view in,
                                     buffer_view out,
                                     std::source_location at,
                                     int peer = -1) {
    auto made = detail::ticket{channel_, channel_->make_call(what, peer)};
    made->in  = in;
    made->out = out;
    made->at  = at;
    return made;
  }

  void enqueue(host::stream& on, detail::ticket call) { device_->enqueue(on, std::move(call)); }

  host::device* device_;
  std::shared_ptr<detail::channel> channel_;
};

static_assert(communicator_for<communicator, host::device>);

/// A communicator over the ranks of `comm`. Collective, and blocks.
///
/// Neither initialises nor finalises MPI, and never frees `comm`.
/// @throws contract_error where MPI is not running or the options are wrong, error from MPI.
[[nodiscard]] inline communicator from_mpi(
    host::device& device,
    MPI_Comm comm,
    options const& wishes   = {},
    std::source_location at = std::source_location::current()) {
  return communicator::make(device, comm, wishes, at);
}

}  // namespace gradlane::mpi

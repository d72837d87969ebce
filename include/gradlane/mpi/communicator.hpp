// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/buffer_view.hpp>              // for buffer_view, const_buffer_view
#include <gradlane/concepts.hpp>                 // for capability_set, communicator_for, timeout
#include <gradlane/detail/collective_calls.hpp>  // for collective_calls
#include <gradlane/detail/failure.hpp>           // for failure
#include <gradlane/error.hpp>                    // for aborted_error, expects
#include <gradlane/host/device.hpp>              // for device
#include <gradlane/host/stream.hpp>              // for stream
#include <gradlane/mpi/detail/call.hpp>          // for operation
#include <gradlane/mpi/detail/channel.hpp>       // for channel, ticket
#include <gradlane/mpi/detail/family.hpp>        // for family, unique_communicator
#include <gradlane/mpi/environment.hpp>          // for environment, may_call, name_of
#include <gradlane/mpi/error.hpp>                // for check

#include <mpi.h>

#include <cstddef>          // for size_t
#include <cstdint>          // for uint64_t
#include <limits>           // for numeric_limits
#include <memory>           // for shared_ptr, make_shared
#include <source_location>  // for source_location
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
/// Errors of MPI become mpi::error: its context has MPI_ERRORS_RETURN. MPICH, however, asks the
/// handler of MPI_COMM_WORLD when the completion of a request fails (a message that is too long):
/// an environment that initialises MPI sets that too; a program that does so itself decides itself.
///
/// After a deadline or error, requests under way are left to MPI, which may still write to their
/// buffers: these must stay alive, and hold nothing defined. MPI_Finalize would wait for the lost
/// peer: give the environment as options::owner, or leave the process by std::_Exit or MPI_Abort.
///
/// Used by one host thread at a time, with streams of the device it was made for, which it must
/// not outlive. May be destroyed before or after MPI_Finalize; what may not be freed is left.
class communicator : public gradlane::detail::collective_calls<communicator, host::stream> {
 public:
  static constexpr capability_set capabilities{.premultiplied_sum    = false,
                                               .writes_after_failure = true};

  [[nodiscard]] int rank() const noexcept { return channel_->rank(); }
  [[nodiscard]] int size() const noexcept { return channel_->size(); }

  /// Collectives issued so far, splits included; the same on all ranks of a correct program.
  [[nodiscard]] std::uint64_t collectives() const noexcept { return channel_->collectives(); }

  /// Whether calls make progress whatever the host thread does: at MPI_THREAD_MULTIPLE.
  [[nodiscard]] bool streams_drive() const noexcept { return channel_->shared()->streams_drive(); }

  void set_deadline(timeout t) noexcept { channel_->set_deadline(t); }
  [[nodiscard]] timeout deadline() const noexcept { return channel_->deadline(); }
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
  friend communicator from_mpi(host::device& device,
                               MPI_Comm comm,
                               options const& wishes,
                               std::source_location at);
  friend class gradlane::detail::collective_calls<communicator, host::stream>;
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

  template <class Fill>
  void issue(host::stream& on,
             operation what,
             const_buffer_view in,
             buffer_view out,
             int peer,
             std::source_location at,
             Fill fill) {
    auto call = enter(what, in, out, at, peer);
    fill(*call);
    device_->enqueue(on, std::move(call));
  }

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

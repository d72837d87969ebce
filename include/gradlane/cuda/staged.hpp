// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/buffer_view.hpp>               // for buffer_view, const_buffer_view
#include <gradlane/concepts.hpp>                  // for capability_set, communicator_for, timeout
#include <gradlane/cuda/any_device.hpp>           // for any_device
#include <gradlane/cuda/detail/staging_line.hpp>  // for staging_line
#include <gradlane/cuda/stream.hpp>               // for stream
#include <gradlane/detail/collective.hpp>         // for operation
#include <gradlane/detail/collective_calls.hpp>   // for collective_calls
#include <gradlane/error.hpp>                     // for expects
#include <gradlane/host/device.hpp>               // for device

#include <concepts>         // for same_as
#include <cstdint>          // for uint64_t
#include <memory>           // for make_shared, shared_ptr
#include <source_location>  // for source_location
#include <utility>          // for forward, move

namespace gradlane::local {
class communicator;
}

namespace gradlane::cuda {

/// A communicator of the host device, such as MPI's, on CUDA streams: through pinned memory, in
/// stream order, without a CUDA-aware MPI.
///
///     stream   copy to host ▶ mark ▶ (held by a host function until the call is over) ▶ copy back
///     worker                  wait for the mark ▶ the host communicator's call ▶ release
///
/// One worker thread carries out the collectives in the order of issue; messages have one for each
/// peer and direction. A host function waits only for calls whose input is there, and for peers:
/// its stream comes to it behind the marks of all calls issued before, on any stream and by any
/// communicator that was split from this one. So it does no harm that CUDA may run the host
/// functions of all streams one after the other. Other host functions of the program must not wait
/// for what is issued here; and the ranks must be processes, for threads would share that one
/// queue.
///
/// Failures, deadlines, reductions and rounding are the host communicator's;
/// failures come out of the CUDA device's sync. Cannot be captured into a graph. Takes pinned
/// memory for the largest calls under way at once, in and out, and keeps it.
///
/// Used by one host thread at a time, with streams of the CUDA device; outlived by that and by the
/// host device. Its end waits until its streams have come past its calls: it aborts those under
/// way.
template <communicator_for<host::device> Comm>
class staged : public gradlane::detail::collective_calls<staged<Comm>, stream> {
  static_assert(
      !std::same_as<Comm, local::communicator>,
      "cuda::staged: ranks that are threads would wait for each other in CUDA's one queue "
      "of host functions; use nccl::from_unique_id, with a device for each thread");

 public:
  static constexpr capability_set capabilities{.premultiplied_sum    = false,
                                               .writes_after_failure = false};

  /// @param host   the device that `inner` was made for.
  /// @param inner  the group; used by nobody else from now on.
  /// @throws contract_error where its calls need the host thread for progress, as MPI's do below
  ///   MPI_THREAD_MULTIPLE: that thread blocks in CUDA, such as in copies to pageable memory.
  template <any_device Device>
  staged(Device& device,
         host::device& host,
         Comm inner,
         std::source_location at = std::source_location::current())
      : line_{std::make_shared<detail::staging_line<Comm>>(
            std::make_shared<detail::staging_family>(device, host, at), drives(inner, at))} {}

  [[nodiscard]] int rank() const noexcept { return line_->inner().rank(); }
  [[nodiscard]] int size() const noexcept { return line_->inner().size(); }

  /// As the host communicator counts.
  [[nodiscard]] std::uint64_t collectives() const noexcept { return line_->inner().collectives(); }

  template <class F>
  void group(F&& calls, std::source_location at = std::source_location::current()) {
    line_->open();
    try {
      std::forward<F>(calls)();
    } catch (...) {
      line_->close(at);
      throw;
    }
    line_->close(at);
  }

  void set_deadline(timeout t) { line_->inner().set_deadline(t); }
  [[nodiscard]] timeout deadline() const { return line_->inner().deadline(); }
  void poll() { line_->inner().poll(); }
  void abort() noexcept { line_->inner().abort(); }

  [[nodiscard]] staged split(int color,
                             int key,
                             std::source_location at = std::source_location::current()) {
    return staged{line_->family(), line_->inner().split(color, key, at)};
  }
  [[nodiscard]] staged node_group(std::source_location at = std::source_location::current()) {
    return staged{line_->family(), line_->inner().node_group(at)};
  }

 private:
  friend class gradlane::detail::collective_calls<staged, stream>;
  using operation = gradlane::detail::operation;

  /// Hands `inner` on.
  [[nodiscard]] static Comm&& drives(Comm& inner, std::source_location at) {
    if constexpr (requires { inner.streams_drive(); }) {
      expects(inner.streams_drive(),
              "cuda::staged: needs MPI_THREAD_MULTIPLE; initialise MPI with it, as "
              "mpi::environment does by default",
              at);
    }
    return std::move(inner);
  }

  staged(std::shared_ptr<detail::staging_family> family, Comm inner)
      : line_{std::make_shared<detail::staging_line<Comm>>(std::move(family), std::move(inner))} {}

  template <class Fill>
  void issue(stream& on,
             operation what,
             const_buffer_view in,
             buffer_view out,
             int peer,
             std::source_location at,
             Fill fill) {
    auto& call = line_->next();
    call.what  = what;
    call.in    = in;
    call.out   = out;
    call.peer  = peer;
    call.at    = at;
    fill(call);
    line_->issue(on, call);
  }

  std::shared_ptr<detail::staging_line<Comm>> line_;
};

}  // namespace gradlane::cuda

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/adasum/combine.hpp>           // for pair_products
#include <gradlane/adasum/device.hpp>            // for adasum_device
#include <gradlane/buffer_view.hpp>              // for buffer_view, const_buffer_view
#include <gradlane/concepts.hpp>                 // for non_finite_location, timeout
#include <gradlane/cuda/device_guard.hpp>        // for device_guard
#include <gradlane/cuda/error.hpp>               // for check
#include <gradlane/cuda/event.hpp>               // for event
#include <gradlane/cuda/launch.cuh>              // for accumulate, invoke, pack, scale, ...
#include <gradlane/cuda/memory.hpp>              // for buffer
#include <gradlane/cuda/segments.cuh>            // for copy_segments
#include <gradlane/cuda/staging_pool.hpp>        // for staging_pool
#include <gradlane/cuda/stream.hpp>              // for stream
#include <gradlane/cuda/tensor_list.hpp>         // for tensor_list
#include <gradlane/detail/deadline.hpp>          // for poll_until
#include <gradlane/detail/device_arguments.hpp>  // for device_arguments
#include <gradlane/detail/segments.hpp>          // for segment
#include <gradlane/error.hpp>                    // for contract_error, timeout_error
#include <gradlane/host/progress.hpp>            // for progress_function, progress_registration
#include <gradlane/types.hpp>                    // for stream_priority

#include <cuda_runtime_api.h>

#include <chrono>           // for duration
#include <concepts>         // for invocable
#include <cstddef>          // for byte, size_t
#include <memory>           // for make_shared, shared_ptr
#include <source_location>  // for source_location
#include <span>             // for span
#include <string>           // for string, to_string
#include <type_traits>      // for is_invocable_r_v, is_trivially_copyable_v, remove_cvref_t
#include <utility>          // for forward

namespace gradlane::cuda {

/// One CUDA device: memory, streams and kernels. Several may be used side by side; each call makes
/// its device current and restores what was.
///
/// Semantics are those of the concept gradlane::device, with what CUDA makes different:
/// - Errors of kernels and copies are the device's, not a stream's: from the first on, every call
///   that meets it, of any stream, throws cuda::error, and the device is lost to the process.
///   Failures of communicators are a stream's (see fault); the work behind them is not skipped.
/// - download() to memory that is not pinned may block until the copy is done.
/// - Allocating, freeing and making lists may wait for the whole device: not for steps.
/// - sync() with a deadline, or with progress functions, polls; without, it blocks in CUDA.
/// - sum_of_squares, pack with a sum, first_non_finite and dot_products, whose room is that of the
///   list a, must not run at the same time over one list.
///
/// Nothing touches the default stream. A stream may be captured into a graph: stream-ordered
/// functions, record() and wait() neither allocate, block nor query then, but that
/// - wait() for an event of before the capture is legal only where that is done (it then has no
///   effect), and outside of the capture the events recorded in it count as never recorded;
/// - upload() bakes in the host memory's values, and holds a block of memory for each upload of the
///   graph until the device's end, after which the graph must not run.
///
/// Thread-safe, as long as each stream, event and list is used by one host thread at a time.
/// Streams, events and buffers may outlive the device.
class device {
 public:
  using stream      = cuda::stream;
  using event       = cuda::event;
  using buffer      = cuda::buffer;
  using tensor_list = cuda::tensor_list;

  /// The host thread's current device.
  device() : device{current()} {}

  /// @throws contract_error where there is no such device, error where CUDA does not work.
  explicit device(int index, std::source_location at = std::source_location::current())
      : index_{checked(index, at)} {}

  device(device const&)            = delete;
  device& operator=(device const&) = delete;
  ~device()                        = default;

  [[nodiscard]] int index() const noexcept { return index_; }

  // --- objects

  // Without a source_location: nvcc 13.0 crashes where a member's initialiser calls such functions.

  [[nodiscard]] stream make_stream(stream_priority priority = stream_priority::normal) {
    return stream{index_, priority};
  }

  /// The trainer's own stream of this device; see stream::borrow.
  [[nodiscard]] stream borrow(cudaStream_t handle,
                              std::source_location at = std::source_location::current()) {
    return stream::borrow(index_, handle, at);
  }

  [[nodiscard]] event make_event() { return event{index_}; }
  [[nodiscard]] buffer allocate(std::size_t bytes) { return buffer{index_, bytes}; }
  [[nodiscard]] tensor_list make_tensor_list(
      std::span<buffer_view const> tensors,
      std::source_location at = std::source_location::current()) {
    return tensor_list{setup_, tensors, at};
  }

  // --- order

  void record(event& mark, stream& on, std::source_location at = std::source_location::current()) {
    mark.record(on, at);
  }
  void wait(stream& waiting,
            event const& mark,
            std::source_location at = std::source_location::current()) {
    mark.hold(waiting, at);
  }
  [[nodiscard]] bool is_done(event const& mark,
                             std::source_location at = std::source_location::current()) const {
    return mark.is_done(at);
  }

  /// @throws error where the device has failed; timeout_error where work is left after `deadline`;
  ///   what a progress function throws.
  void sync(stream& on,
            timeout deadline        = no_deadline,
            std::source_location at = std::source_location::current()) {
    if (deadline == no_deadline && progress_->empty()) {
      check(cudaStreamSynchronize(on.get()), at);
    } else {
      poll("stream", deadline, at, [&] { return cudaStreamQuery(on.get()); });
    }
    on.fault()->check(on.fault()->end());
  }

  void sync(event const& mark,
            timeout deadline        = no_deadline,
            std::source_location at = std::source_location::current()) {
    if (!mark.is_in_stream()) { return; }
    if (deadline == no_deadline && progress_->empty()) {
      check(cudaEventSynchronize(mark.get()), at);
    } else {
      poll("event", deadline, at, [&] { return cudaEventQuery(mark.get()); });
    }
    mark.check_fault();
  }

  // --- work

  template <class F>
    requires std::invocable<F&>
  void invoke(stream& on, F function, std::source_location at = std::source_location::current()) {
    static_assert(std::is_trivially_copyable_v<F> && sizeof(F) <= 64,
                  "invoke: the function must be trivially copyable, of at most 64 bytes");
    launch::invoke(on, function, at);
  }

  /// Copies between places in device memory, all in one launch: see detail::copy_segments.
  void copy_segments(stream& on,
                     gradlane::detail::segment const* table,
                     std::size_t count,
                     std::source_location at = std::source_location::current()) {
    launch::copy_segments(on, table, count, at);
  }

  void zero(stream& on, buffer_view x, std::source_location at = std::source_location::current()) {
    if (x.empty()) { return; }
    check(cudaMemsetAsync(x.data(), 0, x.size_bytes(), on.get()), at);
  }

  void copy(stream& on,
            const_buffer_view in,
            buffer_view out,
            std::source_location at = std::source_location::current()) {
    check_arguments(at).copy(in, out);
    if (in.empty() || in.data() == out.data()) { return; }
    check(
        cudaMemcpyAsync(out.data(), in.data(), in.size_bytes(), cudaMemcpyDeviceToDevice, on.get()),
        at);
  }

  void upload(stream& on,
              std::span<std::byte const> host,
              buffer_view out,
              std::source_location at = std::source_location::current()) {
    check_arguments(at).upload(host.size(), out);
    if (!host.empty()) { staging_->copy(on, host, out.data(), at); }
  }

  void download(stream& on,
                const_buffer_view in,
                std::span<std::byte> host,
                std::source_location at = std::source_location::current()) {
    check_arguments(at).download(in, host.size());
    if (in.empty()) { return; }
    check(cudaMemcpyAsync(host.data(), in.data(), host.size(), cudaMemcpyDeviceToHost, on.get()),
          at);
  }

  void cast(stream& on,
            const_buffer_view in,
            buffer_view out,
            float const* coefficient = nullptr,
            std::source_location at  = std::source_location::current()) {
    check_arguments(at).cast(in, out);
    launch::scale(on, in, out, coefficient, at);
  }

  void scale(stream& on,
             buffer_view x,
             float const* coefficient,
             std::source_location at = std::source_location::current()) {
    check_arguments(at).scale(x);
    launch::scale(on, x, x, coefficient, at);
  }

  void accumulate(stream& on,
                  const_buffer_view in,
                  buffer_view out,
                  std::source_location at = std::source_location::current()) {
    check_arguments(at).accumulate(in, out);
    launch::accumulate(on, in, out, at);
  }

  void sum_of_squares(stream& on,
                      tensor_list const& list,
                      double* sum,
                      std::source_location at = std::source_location::current()) {
    check_arguments(at).sum_of_squares(list);
    launch::sum_of_squares(on, list, sum, at);
  }

  void pack(stream& on,
            tensor_list const& from,
            tensor_list const& to,
            double* sum,
            std::source_location at = std::source_location::current()) {
    check_arguments(at).pack(from, to);
    launch::pack(on, from, to, sum, at);
  }

  void first_non_finite(stream& on,
                        tensor_list const& list,
                        double const* sum,
                        non_finite_location* where,
                        std::source_location at = std::source_location::current()) {
    check_arguments(at).first_non_finite(list);
    launch::first_non_finite(on, list, sum, where, at);
  }

  // --- Adasum (see adasum_device)

  void dot_products(stream& on,
                    tensor_list const& a,
                    tensor_list const& b,
                    pair_products* out,
                    std::source_location at = std::source_location::current()) {
    check_arguments(at).dot_products(a, b);
    launch::dot_products(on, a, b, out, at);
  }

  void combine(stream& on,
               tensor_list const& a,
               tensor_list const& b,
               pair_products const* products,
               tensor_list const& out,
               std::source_location at = std::source_location::current()) {
    check_arguments(at).combine(a, b, out);
    launch::combine(on, a, b, products, out, at);
  }

  // --- progress

  /// Registers a function that every host thread that waits in sync() runs now and then, while the
  /// returned object lives. Unlike the host device's, it may throw: sync() then throws that.
  template <class F>
    requires std::is_invocable_r_v<bool, std::remove_cvref_t<F>&>
  [[nodiscard]] host::progress_registration add_progress(F&& function) {
    return {progress_, host::progress_function{std::forward<F>(function)}};
  }

  /// Runs the progress functions once; true where one of them moved something.
  bool progress() { return progress_->run(); }

 private:
  static constexpr std::size_t staging_blocks = 8;

  [[nodiscard]] static int current() {
    auto index = 0;
    check(cudaGetDevice(&index));
    return index;
  }

  [[nodiscard]] static int checked(int index, std::source_location at) {
    auto count = 0;
    check(cudaGetDeviceCount(&count), at);
    if (index < 0 || index >= count) {
      throw contract_error{"cuda::device: there is no device " + std::to_string(index) +
                               ", there are " + std::to_string(count),
                           at};
    }
    return index;
  }

  [[nodiscard]] static gradlane::detail::device_arguments check_arguments(std::source_location at) {
    return {"cuda::device", at};
  }

  /// Waits until `query` says cudaSuccess.
  template <class Query>
  void poll(char const* what, timeout deadline, std::source_location at, Query query) {
    auto status        = cudaErrorNotReady;
    auto const is_over = [&] {
      status = query();
      if (status != cudaErrorNotReady) { return true; }
      static_cast<void>(cudaGetLastError());
      progress_->run();
      return false;
    };
    if (!gradlane::detail::poll_until(is_over, deadline)) {
      throw timeout_error{std::string{"cuda::device::sync: "} + what + " not done after " +
                              std::to_string(std::chrono::duration<double>{deadline}.count()) +
                              " s; find out what its next operation waits for",
                          at};
    }
    check(status, at);
  }

  int index_;
  stream setup_{index_, stream_priority::normal};  // makes lists
  std::shared_ptr<host::progress_registry> progress_ = std::make_shared<host::progress_registry>();
  std::shared_ptr<staging_pool> staging_ = std::make_shared<staging_pool>(index_, staging_blocks);
};

static_assert(adasum_device<device>);

}  // namespace gradlane::cuda

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/adasum/combine.hpp>           // for pair_products
#include <gradlane/adasum/device.hpp>            // for adasum_device
#include <gradlane/buffer_view.hpp>              // for buffer_view, const_buffer_view
#include <gradlane/concepts.hpp>                 // for device, non_finite_location, timeout
#include <gradlane/detail/device_arguments.hpp>  // for device_arguments
#include <gradlane/error.hpp>                    // for timeout_error
#include <gradlane/host/event.hpp>               // for event
#include <gradlane/host/kernels.hpp>             // for cast, pack, scale, …
#include <gradlane/host/memory.hpp>              // for buffer, tensor_list, staging_pool
#include <gradlane/host/progress.hpp>            // for progress_function, progress_registration
#include <gradlane/host/stream.hpp>              // for stream
#include <gradlane/host/task.hpp>                // for task
#include <gradlane/types.hpp>                    // for stream_priority

#include <chrono>           // for duration, seconds
#include <cmath>            // for isfinite
#include <concepts>         // for invocable
#include <cstddef>          // for size_t, byte
#include <cstring>          // for memcpy
#include <exception>        // for rethrow_exception
#include <memory>           // for shared_ptr, make_shared
#include <source_location>  // for source_location
#include <span>             // for span
#include <string>           // for string, to_string
#include <type_traits>      // for is_invocable_r_v, is_trivially_copyable_v, remove_cvref_t
#include <utility>          // for forward, move

namespace gradlane::host {

/// The CPU as a device: memory is the process's own, streams are in-order queues on threads.
///
/// Semantics are those of the concept gradlane::device; what is particular to the host:
/// - A stream's thread starts with its first work. On a stream without unfinished work, `record`
///   and `wait` for a done event cost nanoseconds and wake nobody.
/// - Enqueueing takes no memory from the heap, but for the growth of a queue that is longer than
///   ever before (and uploads, which reuse blocks of 64 KiB).
/// - Errors are sticky, and follow events: a stream that waits for an event whose stream met an
///   error before it inherits that error, and so does sync(event). Events of a stream in error
///   are done all the same: nobody hangs.
/// - Progress functions (add_progress) run in every thread that waits in sync() or in a stream's
///   destructor, for transports that need the thread of their caller.
/// - Kernels are single-threaded and give the same bits in every run (see kernels.hpp).
///
/// Thread-safe, as long as each stream, event and list is used by one host thread at a time.
/// Streams, events, buffers and registrations may outlive the device. Stream-ordered functions
/// throw contract_error at once for views that do not fit together. No function that blocks may
/// be called from a task.
class device {
 public:
  using stream      = host::stream;
  using event       = host::event;
  using buffer      = host::buffer;
  using tensor_list = host::tensor_list;

  device()                         = default;
  device(device const&)            = delete;
  device& operator=(device const&) = delete;
  ~device()                        = default;

  // --- objects

  /// The host has no priorities: the hint is ignored.
  [[nodiscard]] stream make_stream(stream_priority /*hint*/ = stream_priority::normal) {
    return stream{progress_};
  }
  [[nodiscard]] event make_event() { return event{}; }
  [[nodiscard]] buffer allocate(std::size_t bytes) { return buffer{bytes}; }
  [[nodiscard]] tensor_list make_tensor_list(
      std::span<buffer_view const> tensors,
      std::source_location at = std::source_location::current()) {
    return tensor_list{tensors, at};
  }

  // --- order

  void record(event& mark, stream& on) { mark.record(on); }

  void wait(stream& waiting, event const& mark) {
    if (mark.core_ == waiting.core_ || (mark.is_done() && !mark.error())) { return; }
    enqueue(waiting, [core = mark.core_, place = mark.place_] {
      core->wait(place);
      if (auto const problem = core->error_at(place)) { std::rethrow_exception(problem); }
    });
  }

  [[nodiscard]] bool is_done(event const& mark) const noexcept { return mark.is_done(); }

  /// @throws the stream's first error; timeout_error where work is left after `deadline`.
  void sync(stream& on,
            timeout deadline        = no_deadline,
            std::source_location at = std::source_location::current()) {
    sync(*on.core_, on.core_->end(), "stream", deadline, at);
  }

  /// @throws the first error that the recording stream met before the event; timeout_error.
  void sync(event const& mark,
            timeout deadline        = no_deadline,
            std::source_location at = std::source_location::current()) {
    if (mark.core_) { sync(*mark.core_, mark.place_, "event", deadline, at); }
  }

  // --- work

  /// Runs `work()` once on the stream's thread, after all work before it: what communicators and
  /// other extensions are made of. It may block, for the thread is the stream's own, and throw.
  /// @param work  any movable callable of at most task::capacity bytes.
  template <class F>
    requires std::invocable<std::remove_cvref_t<F>&>
  void enqueue(stream& on, F&& work) {
    on.core_->enqueue(task{std::forward<F>(work)});
  }

  template <class F>
    requires std::invocable<F&>
  void invoke(stream& on, F function) {
    static_assert(std::is_trivially_copyable_v<F> && sizeof(F) <= 64,
                  "invoke: the function must be trivially copyable, of at most 64 bytes");
    enqueue(on, function);
  }

  void zero(stream& on, buffer_view x) {
    enqueue(on, [x] { kernels::zero(x); });
  }

  void copy(stream& on,
            const_buffer_view in,
            buffer_view out,
            std::source_location at = std::source_location::current()) {
    check_arguments(at).copy(in, out);
    enqueue(on, [in, out] { kernels::copy(in, out); });
  }

  void upload(stream& on,
              std::span<std::byte const> host,
              buffer_view out,
              std::source_location at = std::source_location::current()) {
    check_arguments(at).upload(host.size(), out);
    if (host.empty()) { return; }
    auto block = staging_->acquire();
    std::memcpy(block.get(), host.data(), host.size());
    enqueue(on, [pool = staging_, block = std::move(block), out]() mutable {
      std::memcpy(out.data(), block.get(), out.size_bytes());
      pool->release(std::move(block));
    });
  }

  void download(stream& on,
                const_buffer_view in,
                std::span<std::byte> host,
                std::source_location at = std::source_location::current()) {
    check_arguments(at).download(in, host.size());
    enqueue(on, [in, host] {
      if (!in.empty()) { std::memcpy(host.data(), in.data(), in.size_bytes()); }
    });
  }

  void cast(stream& on,
            const_buffer_view in,
            buffer_view out,
            float const* coefficient = nullptr,
            std::source_location at  = std::source_location::current()) {
    check_arguments(at).cast(in, out);
    enqueue(on, [in, out, coefficient] {
      kernels::cast(in, out, coefficient == nullptr ? 1.0F : *coefficient);
    });
  }

  void scale(stream& on,
             buffer_view x,
             float const* coefficient,
             std::source_location at = std::source_location::current()) {
    check_arguments(at).scale(x);
    enqueue(on, [x, coefficient] { kernels::scale(x, *coefficient); });
  }

  void accumulate(stream& on,
                  const_buffer_view in,
                  buffer_view out,
                  std::source_location at = std::source_location::current()) {
    check_arguments(at).accumulate(in, out);
    enqueue(on, [in, out] { kernels::accumulate(in, out); });
  }

  void sum_of_squares(stream& on,
                      tensor_list const& list,
                      double* sum,
                      std::source_location at = std::source_location::current()) {
    check_arguments(at).sum_of_squares(list);
    enqueue(on, [in = list.tensors(), sum] { *sum = kernels::sum_of_squares(in); });
  }

  void pack(stream& on,
            tensor_list const& from,
            tensor_list const& to,
            double* sum,
            std::source_location at = std::source_location::current()) {
    check_arguments(at).pack(from, to);
    enqueue(on, [in = from.tensors(), out = to.tensors(), sum] { kernels::pack(in, out, sum); });
  }

  void first_non_finite(stream& on,
                        tensor_list const& list,
                        double const* sum,
                        non_finite_location* where,
                        std::source_location at = std::source_location::current()) {
    check_arguments(at).first_non_finite(list);
    enqueue(on, [in = list.tensors(), sum, where] {
      *where = std::isfinite(*sum) ? non_finite_location{} : kernels::first_non_finite(in);
    });
  }

  // --- Adasum (see adasum_device)

  void dot_products(stream& on,
                    tensor_list const& a,
                    tensor_list const& b,
                    pair_products* out,
                    std::source_location at = std::source_location::current()) {
    check_arguments(at).dot_products(a, b);
    enqueue(on, [x = a.tensors(), y = b.tensors(), out] { kernels::dot_products(x, y, out); });
  }

  void combine(stream& on,
               tensor_list const& a,
               tensor_list const& b,
               pair_products const* products,
               tensor_list const& out,
               std::source_location at = std::source_location::current()) {
    check_arguments(at).combine(a, b, out);
    enqueue(on, [x = a.tensors(), y = b.tensors(), products, to = out.tensors()] {
      kernels::combine(x, y, products, to);
    });
  }

  // --- progress

  /// Registers a function that every waiting host thread runs now and then, while the returned
  /// object lives. A sync that began before does not see it.
  /// @param function  any movable callable of at most task::capacity bytes; see progress_function.
  template <class F>
    requires std::is_invocable_r_v<bool, std::remove_cvref_t<F>&>
  [[nodiscard]] progress_registration add_progress(F&& function) {
    return {progress_, progress_function{std::forward<F>(function)}};
  }

  /// Runs the progress functions once; true where one of them moved something.
  bool progress() { return progress_->run(); }

 private:
  static void sync(detail::stream_core& core,
                   detail::stream_core::place place,
                   char const* what,
                   timeout deadline,
                   std::source_location at) {
    auto const now   = detail::clock::now();
    auto const left  = detail::time_point::max() - now;
    auto const until = deadline < left ? now + deadline : detail::time_point::max();
    if (!core.sync(place, until)) {
      throw timeout_error{std::string{"host::device::sync: "} + what + " not done after " +
                              std::to_string(std::chrono::duration<double>{deadline}.count()) +
                              " s; " + std::to_string(core.finished()) + " of " +
                              std::to_string(place) +
                              " tasks are finished; find out what the next one waits for",
                          at};
    }
    if (auto const problem = core.error_at(place)) { std::rethrow_exception(problem); }
  }

  [[nodiscard]] static gradlane::detail::device_arguments check_arguments(std::source_location at) {
    return {"host::device", at};
  }

  std::shared_ptr<progress_registry> progress_ = std::make_shared<progress_registry>();
  std::shared_ptr<staging_pool> staging_       = std::make_shared<staging_pool>();
};

static_assert(gradlane::device<device> && adasum_device<device>);

}  // namespace gradlane::host

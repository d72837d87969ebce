// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/buffer_view.hpp>               // for buffer_view, const_buffer_view
#include <gradlane/concepts.hpp>                  // for no_deadline
#include <gradlane/cuda/any_device.hpp>           // for any_device, enlister_of
#include <gradlane/cuda/capture.hpp>              // for capture_of
#include <gradlane/cuda/detail/staging_slot.hpp>  // for staging_slot, staging_slots
#include <gradlane/cuda/device_guard.hpp>         // for device_guard
#include <gradlane/cuda/error.hpp>                // for check
#include <gradlane/cuda/event.hpp>                // for event
#include <gradlane/cuda/fault.hpp>                // for fault
#include <gradlane/cuda/stream.hpp>               // for stream
#include <gradlane/detail/collective.hpp>         // for operation
#include <gradlane/detail/deadline.hpp>           // for poll_until
#include <gradlane/detail/failure.hpp>            // for failure
#include <gradlane/error.hpp>                     // for state_error, communication_error, …
#include <gradlane/host/device.hpp>               // for device
#include <gradlane/host/progress.hpp>             // for progress_function, progress_registration
#include <gradlane/host/stream.hpp>               // for stream
#include <gradlane/types.hpp>                     // for reduction, stream_priority

#include <cuda_runtime_api.h>

#include <cstddef>          // for size_t
#include <exception>        // for exception
#include <memory>           // for make_shared, make_unique, shared_ptr, unique_ptr
#include <source_location>  // for source_location
#include <string>           // for string
#include <utility>          // for exchange, move
#include <vector>           // for vector

namespace gradlane::cuda::detail {

/// What staged communicators of one device share.
struct staging_family {
  template <any_device Device>
  staging_family(Device& device, host::device& on_host, std::source_location at)
      : device_index{device.index()},
        host{on_host},
        marks{device_index, at},
        progress{enlister_of(device)(
            host::progress_function{[&on_host] { return on_host.progress(); }})} {}

  int device_index;
  host::device& host;
  event marks;                           // behind the marks of all calls so far
  host::progress_registration progress;  // waiting for the CUDA device drives the host's
};

/// A call on its way to the host communicator.
struct staging_call {
  gradlane::detail::operation what{};
  reduction op{};
  const_buffer_view in{};
  buffer_view out{};
  int peer{-1};
  std::vector<std::size_t> send{};
  std::vector<std::size_t> receive{};
  std::source_location at{};
};

/// The exception being handled, to be thrown from elsewhere.
[[nodiscard]] inline fault::reason caught(std::source_location at) {
  using gradlane::detail::failure;
  auto why = failure{};
  try {
    throw;
  } catch (timeout_error const& e) {
    why = failure::of<timeout_error>(std::string{e.message()}, e.where());
  } catch (aborted_error const& e) {
    why = failure::of<aborted_error>(std::string{e.message()}, e.where());
  } catch (gradlane::error const& e) {
    why = failure::of<communication_error>(std::string{e.message()}, e.where());
  } catch (std::exception const& e) { why = failure::of<communication_error>(e.what(), at); }
  return std::make_shared<failure const>(std::move(why));
}

/// One host communicator, its workers and the calls under way on it.
template <class Comm>
class staging_line {
 public:
  using operation = gradlane::detail::operation;

  staging_line(std::shared_ptr<staging_family> family, Comm inner)
      : family_{std::move(family)},
        inner_{std::move(inner)},
        slots_{std::make_unique<staging_slots>(family_->device_index)} {
    auto const ranks = static_cast<std::size_t>(inner_.size());
    next_.send.reserve(ranks);
    next_.receive.reserve(ranks);
    for (std::size_t i = 0; i < 1 + 2 * ranks; ++i) {
      workers_.push_back(family_->host.make_stream());
    }
  }
  staging_line(staging_line const&)            = delete;
  staging_line& operator=(staging_line const&) = delete;
  ~staging_line() {
    if (!slots_->is_idle()) {
      inner_.abort();
      static_cast<void>(gradlane::detail::poll_until(
          [&] {
            family_->host.progress();
            return slots_->is_idle();
          },
          no_deadline));
    }
    if constexpr (Comm::capabilities.writes_after_failure) {
      try {
        inner_.poll();
      } catch (...) { static_cast<void>(slots_.release()); }  // the transport may still write
    }
  }

  [[nodiscard]] std::shared_ptr<staging_family> const& family() const noexcept { return family_; }
  [[nodiscard]] Comm& inner() noexcept { return inner_; }

  [[nodiscard]] staging_call& next() noexcept {
    next_.op = reduction::sum;
    next_.send.clear();
    next_.receive.clear();
    return next_;
  }

  void issue(cuda::stream const& on, staging_call const& c) {
    if (capture_of(on.get(), c.at) != 0) {
      throw state_error{
          "cuda::staged: a call that goes through the host cannot be captured into a graph; "
          "use nccl, or leave it out of the capture",
          c.at};
    }
    auto const guard = device_guard{family_->device_index, c.at};
    auto const place = on.fault()->pass();
    open();
    try {
      bring(on, c, place);
    } catch (...) {
      close(c.at);
      throw;
    }
    close(c.at);
  }

  /// The streams of calls between `open` and `close` are held up only behind the marks of all.
  void open() noexcept { ++depth_; }

  void close(std::source_location at) {
    if (--depth_ > 0) { return; }
    auto const guard = device_guard{family_->device_index, at};
    for (auto const& c : opened_) { take_back(c, at); }
    opened_.clear();
  }

 private:
  struct opened_call {
    cuda::stream const* on;
    staging_slot* slot;
    std::byte const* staged_out;
    buffer_view out;
  };

  /// Ends a call on its worker, whether it was carried out or skipped because an earlier one
  /// failed.
  class ending {
   public:
    ending(staging_line& line,
           staging_slot& slot,
           std::shared_ptr<cuda::fault> stream,
           cuda::fault::place place,
           std::source_location at) noexcept
        : line_{&line}, slot_{&slot}, stream_{std::move(stream)}, place_{place}, at_{at} {}
    ending(ending const&)            = delete;
    ending& operator=(ending const&) = delete;
    ending(ending&& other) noexcept
        : line_{other.line_},
          slot_{std::exchange(other.slot_, nullptr)},
          stream_{std::move(other.stream_)},
          place_{other.place_},
          at_{other.at_} {}
    ending& operator=(ending&&) = delete;
    ~ending() {
      if (slot_ == nullptr) { return; }
      if (!done_) { tell(); }
      slot_->release();
    }

    void operator()() noexcept { done_ = true; }

   private:
    void tell() noexcept {
      try {
        line_->inner_.poll();
        throw communication_error{"cuda::staged: a call was skipped after an error of CUDA", at_};
      } catch (...) { stream_->raise(caught(at_), place_); }
    }

    staging_line* line_;
    staging_slot* slot_;
    std::shared_ptr<cuda::fault> stream_;
    cuda::fault::place place_;
    std::source_location at_;
    bool done_{false};
  };

  /// Holds the stream until the call is over, and copies its output.
  void take_back(opened_call const& c, std::source_location at) {
    auto* const on   = c.on->get();
    auto const bytes = c.out.size_bytes();
    check(cudaStreamWaitEvent(on, family_->marks.get(), 0), at);
    check(cudaLaunchHostFunc(
              on, [](void* slot) { static_cast<staging_slot*>(slot)->wait(); }, c.slot),
          at);
    if (bytes > 0) {
      check(cudaMemcpyAsync(c.out.data(), c.staged_out, bytes, cudaMemcpyHostToDevice, on), at);
    }
    c.slot->passed.record(*c.on, at);
    c.slot->taken = false;
  }

  /// Copies the input to the host and gives the call to its worker.
  void bring(cuda::stream const& on, staging_call const& c, cuda::fault::place place) {
    constexpr auto line  = std::size_t{256};
    auto const in_place  = c.in.data() == c.out.data() && c.in.size_bytes() == c.out.size_bytes();
    auto const in_bytes  = (c.in.size_bytes() + line - 1) / line * line;
    auto const out_bytes = in_place ? 0 : c.out.size_bytes();
    auto& slot           = slots_->take(in_bytes + out_bytes, c.at);
    auto* const in       = slot.memory.data();
    auto* const out      = in_place ? in : in + in_bytes;
    auto end             = ending{*this, slot, on.fault(), place, c.at};
    opened_.push_back({&on, &slot, out, c.out});
    if (!c.in.empty() && (c.what != operation::broadcast || c.peer == inner_.rank())) {
      check(cudaMemcpyAsync(in, c.in.data(), c.in.size_bytes(), cudaMemcpyDeviceToHost, on.get()),
            c.at);
    }
    slot.ready.record(on, c.at);
    check(cudaStreamWaitEvent(on.get(), family_->marks.get(), 0), c.at);
    check(cudaEventRecord(family_->marks.get(), on.get()), c.at);

    auto& worker = workers_[worker_of(c)];
    family_->host.enqueue(
        worker, [&slot, at = c.at] { check(cudaEventSynchronize(slot.ready.get()), at); });
    call_inner(worker, c, {in, c.in.count(), c.in.type()}, {out, c.out.count(), c.out.type()});
    family_->host.enqueue(worker, std::move(end));
  }

  [[nodiscard]] std::size_t worker_of(staging_call const& c) const noexcept {
    auto const ranks = static_cast<std::size_t>(inner_.size());
    auto const peer  = static_cast<std::size_t>(c.peer);
    if (c.what == operation::send) { return 1 + peer; }
    return c.what == operation::receive ? 1 + ranks + peer : 0;
  }

  void call_inner(host::stream& worker,
                  staging_call const& c,
                  const_buffer_view in,
                  buffer_view out) {
    switch (c.what) {
      case operation::all_reduce:
        return inner_.all_reduce(worker, in, out, c.op, c.at);
      case operation::reduce_scatter:
        return inner_.reduce_scatter(worker, in, out, c.op, c.at);
      case operation::all_gather:
        return inner_.all_gather(worker, in, out, c.at);
      case operation::all_gather_v:
        return inner_.all_gather_v(worker, in, out, c.receive, c.at);
      case operation::broadcast:
        return inner_.broadcast(worker, out, c.peer, c.at);
      case operation::all_to_all_v:
        return inner_.all_to_all_v(worker, in, c.send, out, c.receive, c.at);
      case operation::send:
        return inner_.send(worker, in, c.peer, c.at);
      case operation::receive:
        return inner_.receive(worker, out, c.peer, c.at);
      case operation::all_reduce_scaled:
      case operation::split:
        break;
    }
  }

  std::shared_ptr<staging_family> family_;
  Comm inner_;
  std::unique_ptr<staging_slots> slots_;
  staging_call next_{};
  std::vector<opened_call> opened_;
  int depth_{0};
  std::vector<host::stream> workers_;  // collectives, sends and receives by peer; end first
};

}  // namespace gradlane::cuda::detail

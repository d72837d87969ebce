// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/cuda/capture.hpp>          // for capture_of, relaxed_capture
#include <gradlane/cuda/device_guard.hpp>     // for device_guard
#include <gradlane/cuda/error.hpp>            // for check
#include <gradlane/cuda/fault.hpp>            // for fault
#include <gradlane/cuda/stream.hpp>           // for stream
#include <gradlane/detail/unique_handle.hpp>  // for unique_handle
#include <gradlane/error.hpp>                 // for state_error

#include <cuda_runtime_api.h>

#include <cstdint>          // for uint64_t
#include <memory>           // for shared_ptr
#include <source_location>  // for source_location

namespace gradlane::cuda {

namespace detail {

struct event_traits {
  using handle_type = cudaEvent_t;
  [[nodiscard]] static handle_type empty() noexcept { return nullptr; }
  static void destroy(handle_type handle) noexcept {
    static_cast<void>(cudaEventDestroy(handle));
    static_cast<void>(cudaGetLastError());
  }
};

[[nodiscard]] inline cudaEvent_t make_event(int device_index, std::source_location at) {
  auto const guard = device_guard{device_index, at};
  auto* event      = cudaEvent_t{};
  check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), at);
  return event;
}

}  // namespace detail

/// A place in a stream, without a time.
///
/// In a capture, record() marks a place of the graph: outside of the capture the event then counts
/// as never recorded, since a graph runs when, and as often as, it is launched.
class event {
 public:
  /// @throws error where the runtime cannot make one.
  explicit event(int device_index, std::source_location at = std::source_location::current())
      : handle_{detail::make_event(device_index, at)}, device_{device_index} {}

  [[nodiscard]] cudaEvent_t get() const noexcept { return handle_.get(); }
  [[nodiscard]] int device_index() const noexcept { return device_; }

  /// Marks the end of what `on`, a stream of this device, was given so far.
  void record(stream const& on, std::source_location at = std::source_location::current()) {
    check(cudaEventRecord(get(), on.get()), at);
    capture_  = detail::capture_of(on.get(), at);
    recorded_ = true;
    place_    = on.fault()->end();
    if (fault_ != on.fault()) { fault_ = on.fault(); }
  }

  /// Makes `waiting`, of any device, wait for the latest record made before this call.
  /// @throws state_error where `waiting` is being captured, and the event was recorded before that
  ///   and is not done: a graph cannot wait for it.
  void hold(stream const& waiting,
            std::source_location at = std::source_location::current()) const {
    if (!recorded_) { return; }
    if (fault_ != waiting.fault()) { fault_->lead_to(waiting.fault(), place_); }
    auto const capture = detail::capture_of(waiting.get(), at);
    if (capture != 0 && capture != capture_) {
      if (is_done(at)) { return; }
      throw state_error{
          "cuda::event: a stream that is being captured into a graph cannot wait for work from "
          "before the capture; sync that work first",
          at};
    }
    auto const status = cudaStreamWaitEvent(waiting.get(), get(), 0);
    auto const over   = capture_ != 0 && capture == 0 &&
                      (status == cudaErrorCapturedEvent || status == cudaErrorInvalidValue);
    if (over) {  // recorded in a capture that has ended
      static_cast<void>(cudaGetLastError());
      return;
    }
    check(status, at);
  }

  /// Whether the latest record marks a place in a stream, so that there is something to wait for.
  [[nodiscard]] bool is_in_stream() const noexcept { return recorded_ && capture_ == 0; }

  /// Never blocks. @throws error where the device has failed.
  [[nodiscard]] bool is_done(std::source_location at = std::source_location::current()) const {
    if (!is_in_stream()) { return true; }
    auto const relaxed = detail::relaxed_capture{at};
    auto const status  = cudaEventQuery(get());
    if (status == cudaErrorNotReady) {
      static_cast<void>(cudaGetLastError());
      return false;
    }
    check(status, at);
    return true;
  }

  /// @throws the failure of a communicator that the stream met before the event, if any.
  void check_fault() const {
    if (fault_) { fault_->check(place_); }
  }

 private:
  gradlane::detail::unique_handle<detail::event_traits> handle_;
  int device_;
  bool recorded_{false};
  std::shared_ptr<fault> fault_;  // of the stream that it was last recorded on
  fault::place place_{0};
  std::uint64_t capture_{0};  // that the latest record was made in; 0: none
};

}  // namespace gradlane::cuda

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/host/stream.hpp>  // for stream, stream_core

#include <exception>  // for exception_ptr
#include <memory>     // for shared_ptr

namespace gradlane::host {

/// A place in a stream: done once the work before it is finished. Made by host::device.
///
/// Carries the error of its stream, where one was met before the place. An event is used by one
/// host thread at a time; it may outlive the stream, and end while streams wait for it.
class event {
 public:
  event()                            = default;
  event(event const&)                = delete;
  event& operator=(event const&)     = delete;
  event(event&&) noexcept            = default;
  event& operator=(event&&) noexcept = default;
  ~event()                           = default;

 private:
  friend class device;

  void record(stream const& on) {
    if (core_ != on.core_) { core_ = on.core_; }
    place_ = on.core_->end();
  }

  [[nodiscard]] bool is_done() const noexcept { return !core_ || core_->is_done(place_); }

  /// The error met before the place, which must be done.
  [[nodiscard]] std::exception_ptr error() const noexcept {
    return core_ ? core_->error_at(place_) : nullptr;
  }

  std::shared_ptr<detail::stream_core> core_;  // null before the first record
  detail::stream_core::place place_{0};
};

}  // namespace gradlane::host

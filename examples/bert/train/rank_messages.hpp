// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/concepts.hpp>     // for timeout
#include <gradlane/host/device.hpp>  // for device
#include <gradlane/host/stream.hpp>  // for stream

#include <cstddef>  // for size_t
#include <span>     // for span
#include <utility>  // for move

namespace bert {

/// Brings numbers in host memory from other ranks to rank 0, for checkpoints; blocks.
template <class Comm>
class rank_messages {
 public:
  /// @param comm  of its own.
  /// @param patience  with other ranks; rank 0 may be writing files meanwhile.
  rank_messages(gradlane::host::device& lane, Comm comm, gradlane::timeout patience)
      : lane_{lane}, comm_{std::move(comm)}, stream_{lane.make_stream()} {
    comm_.set_deadline(patience);
  }

  [[nodiscard]] std::size_t rank() const { return static_cast<std::size_t>(comm_.rank()); }
  [[nodiscard]] std::size_t size() const { return static_cast<std::size_t>(comm_.size()); }

  void sync_send(std::span<float const> values) {
    run([&] { comm_.send(stream_, values, 0); });
  }
  void sync_receive(std::size_t from, std::span<float> values) {
    run([&] { comm_.receive(stream_, values, static_cast<int>(from)); });
  }

 private:
  template <class Call>
  void run(Call call) {
    try {
      call();
      lane_.sync(stream_);
    } catch (...) {
      comm_.abort();
      throw;
    }
  }

  gradlane::host::device& lane_;
  Comm comm_;
  gradlane::host::stream stream_;
};

}  // namespace bert

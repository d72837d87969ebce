// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/cuda/capture.hpp>  // for capture_of, relaxed_capture
#include <gradlane/cuda/error.hpp>    // for check
#include <gradlane/cuda/event.hpp>    // for event
#include <gradlane/cuda/memory.hpp>   // for pinned_buffer
#include <gradlane/cuda/stream.hpp>   // for stream

#include <cuda_runtime_api.h>

#include <cstddef>          // for byte, size_t
#include <cstring>          // for memcpy
#include <list>             // for list
#include <mutex>            // for mutex, scoped_lock
#include <source_location>  // for source_location
#include <span>             // for span

namespace gradlane::cuda {

/// Pinned blocks that hold what upload() was given until the stream has copied it. Thread-safe.
///
/// A block is used again once its event is done. One that a capture used is kept for the life of
/// the pool, since the graph reads it each time it runs: such a graph must not outlive the pool.
class staging_pool {
 public:
  static constexpr std::size_t block_bytes = std::size_t{64} * 1024;

  /// @param blocks  that are made at once; more uploads under way at a time allocate more.
  staging_pool(int device_index,
               std::size_t blocks,
               std::source_location at = std::source_location::current())
      : device_{device_index} {
    for (auto i = std::size_t{0}; i < blocks; ++i) { blocks_.emplace_back(device_, at); }
  }

  /// Enqueues a copy of `host`, which may be changed on return. At most block_bytes.
  void copy(stream const& on,
            std::span<std::byte const> host,
            std::byte* to,
            std::source_location at) {
    auto const lock = std::scoped_lock{mutex_};
    auto& from      = free_block(at);
    std::memcpy(from.memory.data(), host.data(), host.size());
    from.captured = detail::capture_of(on.get(), at) != 0;
    check(cudaMemcpyAsync(to, from.memory.data(), host.size(), cudaMemcpyHostToDevice, on.get()),
          at);
    from.used.record(on, at);
  }

  [[nodiscard]] std::size_t size() {
    auto const lock = std::scoped_lock{mutex_};
    return blocks_.size();
  }

 private:
  struct block {
    block(int device_index, std::source_location at)
        : memory{device_index, block_bytes, at}, used{device_index, at} {}

    pinned_buffer memory;
    event used;
    bool captured{false};
  };

  /// The block that was used longest ago where it is free, and then the newest of the list.
  [[nodiscard]] block& free_block(std::source_location at) {
    for (auto i = blocks_.begin(); i != blocks_.end(); ++i) {
      if (!i->captured && i->used.is_done(at)) {
        blocks_.splice(blocks_.end(), blocks_, i);
        return blocks_.back();
      }
    }
    auto const relaxed = detail::relaxed_capture{at};
    return blocks_.emplace_back(device_, at);
  }

  int device_;
  std::mutex mutex_;
  std::list<block> blocks_;  // the one used longest ago first
};

}  // namespace gradlane::cuda

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/cuda/event.hpp>   // for event
#include <gradlane/cuda/memory.hpp>  // for pinned_buffer

#include <cuda_runtime_api.h>

#include <condition_variable>  // for condition_variable
#include <cstddef>             // for size_t
#include <memory>              // for make_unique, unique_ptr
#include <mutex>               // for mutex, scoped_lock, unique_lock
#include <source_location>     // for source_location
#include <vector>              // for vector

namespace gradlane::cuda::detail {

/// What one staged call needs: pinned memory for its input and output, and three marks.
struct staging_slot {
  staging_slot(int device_index, std::size_t bytes, std::source_location at)
      : memory{device_index, bytes, at}, ready{device_index, at}, passed{device_index, at} {}

  pinned_buffer memory;
  event ready;        // the input is in the memory
  event passed;       // the stream needs the memory no more
  bool taken{false};  // `passed` is still to be recorded

  /// The call is over: its stream may go on.
  void release() noexcept {
    {
      auto const lock = std::scoped_lock{mutex_};
      over_           = true;
    }
    changed_.notify_all();
  }

  void hold() noexcept {
    auto const lock = std::scoped_lock{mutex_};
    over_           = false;
  }

  /// Blocks until release().
  void wait() noexcept {
    auto lock = std::unique_lock{mutex_};
    changed_.wait(lock, [&] { return over_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool over_{true};
};

/// Slots of all sizes that were needed so far. Allocates only where more or larger ones are under
/// way than ever before.
class staging_slots {
 public:
  explicit staging_slots(int device_index) : device_{device_index} {}
  staging_slots(staging_slots const&)            = delete;
  staging_slots& operator=(staging_slots const&) = delete;
  ~staging_slots()                               = default;

  /// The smallest free one that will do.
  [[nodiscard]] staging_slot& take(std::size_t bytes, std::source_location at) {
    auto* best = static_cast<staging_slot*>(nullptr);
    for (auto const& slot : slots_) {
      auto const size = slot->memory.size();
      auto const fits = size >= bytes && (best == nullptr || size < best->memory.size());
      if (fits && !slot->taken && slot->passed.is_done(at)) { best = slot.get(); }
    }
    if (best == nullptr) {
      best = slots_.emplace_back(std::make_unique<staging_slot>(device_, bytes, at)).get();
    }
    best->taken = true;
    best->hold();
    return *best;
  }

  /// Whether no stream needs a slot; also where the device has failed.
  [[nodiscard]] bool is_idle() const noexcept {
    for (auto const& slot : slots_) {
      auto const status = cudaEventQuery(slot->passed.get());
      static_cast<void>(cudaGetLastError());
      if (status == cudaErrorNotReady) { return false; }
    }
    return true;
  }

 private:
  int device_;
  std::vector<std::unique_ptr<staging_slot>> slots_;
};

}  // namespace gradlane::cuda::detail

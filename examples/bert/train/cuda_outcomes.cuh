// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../entropy.hpp"    // for entropy
#include "../model.hpp"      // for losses, with_sums
#include "step_outcome.hpp"  // for step_outcome

#include <gradlane/clip/report.hpp>  // for step_record
#include <gradlane/cuda/device.cuh>  // for device
#include <gradlane/cuda/error.hpp>   // for check
#include <gradlane/cuda/event.hpp>   // for event
#include <gradlane/cuda/memory.hpp>  // for pinned_buffer
#include <gradlane/cuda/stream.hpp>  // for stream
#include <gradlane/error.hpp>        // for expects

#include <cuda_runtime_api.h>

#include <chrono>   // for seconds
#include <cstddef>  // for byte, size_t
#include <span>     // for span
#include <vector>   // for vector

namespace bert {

/// What steps on a GPU left: copied to the host behind each step, and told when it is asked for.
template <class Comm>
class cuda_outcomes {
 public:
  /// @param ranks        aborted where a step does not end.
  /// @param micro_steps  of a step, at most.
  /// @param steps        that may be under way at a time.
  cuda_outcomes(gradlane::cuda::device& device,
                Comm& ranks,
                std::size_t micro_steps,
                std::size_t steps)
      : device_{device}, ranks_{ranks} {
    auto const bytes = sizeof(gradlane::step_record) + 2 * micro_steps * sizeof(entropy);
    for (auto i = std::size_t{0}; i < steps; ++i) { slots_.emplace_back(device.index(), bytes); }
  }

  /// Enqueues the copy of the losses of the model's latest forward, as a part of the step that is
  /// open.
  template <class Model>
  void add(Model const& from, gradlane::cuda::stream& compute) {
    gradlane::expects(begun_ - told_ < slots_.size(), "cuda_outcomes: too many steps under way");
    auto& to = slot_of(begun_);
    copy(from.entropies(), to.entropies() + 2 * to.parts.size(), compute);
    to.parts.push_back(from.counts());
  }

  /// Enqueues the copy of the pipeline's numbers, which ends the step that is open.
  void close(gradlane::step_record const* numbers, gradlane::cuda::stream& compute) {
    auto& to = slot_of(begun_++);
    copy(std::span{numbers, 1}, to.numbers(), compute);
    to.done.record(compute);
  }

  /// Waits for the oldest step that was ended and not taken.
  /// @throws gradlane::timeout_error after `patience`, and what a peer or the device failed of; the
  /// ranks are then aborted.
  [[nodiscard]] step_outcome sync_take(std::chrono::seconds patience) {
    auto& from = slot_of(told_++);
    try {
      device_.sync(from.done, patience);
      ranks_.poll();  // for failures that a graph met
    } catch (...) {
      ranks_.abort();
      throw;
    }
    auto result         = step_outcome{};
    result.numbers      = *from.numbers();
    auto const* entropy = from.entropies();
    for (auto const& part : from.parts) {
      result.sums += with_sums(part, entropy[0], entropy[1]);
      entropy += 2;
    }
    from.parts.clear();
    return result;
  }

 private:
  struct slot {
    slot(int device, std::size_t bytes) : memory{device, bytes}, done{device} {}
    [[nodiscard]] gradlane::step_record* numbers() const {
      return reinterpret_cast<gradlane::step_record*>(memory.data());
    }
    [[nodiscard]] entropy* entropies() const {
      return reinterpret_cast<entropy*>(memory.data() + sizeof(gradlane::step_record));
    }

    gradlane::cuda::pinned_buffer memory;
    gradlane::cuda::event done;
    std::vector<losses> parts;  // counts alone, by micro-step
  };

  [[nodiscard]] slot& slot_of(std::size_t step) { return slots_[step % slots_.size()]; }

  template <class T>
  static void copy(std::span<T const> from, T* to, gradlane::cuda::stream const& compute) {
    gradlane::cuda::check(
        cudaMemcpyAsync(to, from.data(), from.size_bytes(), cudaMemcpyDeviceToHost, compute.get()));
  }

  gradlane::cuda::device& device_;
  Comm& ranks_;
  std::vector<slot> slots_;
  std::size_t begun_ = 0;
  std::size_t told_  = 0;
};

}  // namespace bert

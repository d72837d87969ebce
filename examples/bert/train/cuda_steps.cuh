// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../batch.hpp"             // for batch_shape
#include "../cuda/loss_scaler.hpp"  // for loss_scaler
#include "../cuda/step_graphs.hpp"  // for step_graphs
#include "../cuda/step_memory.hpp"  // for step_memory
#include "../dropout.hpp"           // for dropout_sites
#include "../loss_scale.hpp"        // for loss_scale_state
#include "../step_numbers.hpp"      // for step_numbers
#include "../step_value.hpp"        // for step_value
#include "settings.hpp"             // for training_settings

#include <gradlane/clip/report.hpp>  // for step_status
#include <gradlane/cuda/device.cuh>  // for device
#include <gradlane/cuda/error.hpp>   // for check
#include <gradlane/cuda/stream.hpp>  // for stream

#include <cuda_runtime_api.h>

#include <algorithm>  // for max
#include <chrono>     // for seconds
#include <cstddef>    // for size_t
#include <optional>   // for optional
#include <string>     // for string, to_string
#include <tuple>      // for tuple
#include <utility>    // for forward

namespace bert {

/// How steps run on a GPU: their numbers lie in its memory, and their work may come from graphs.
class cuda_steps {
 public:
  /// Batches are padded to few shapes, the same on all ranks.
  static constexpr auto pads = true;

  cuda_steps(gradlane::cuda::device& device,
             bool graphs,
             training_settings const& settings,
             gradlane::cuda::stream const& compute)
      : device_{device}, uses_graphs_{graphs}, patience_{settings.patience} {
    if (settings.loss_scale) { scaler_.emplace(*settings.loss_scale, compute); }
  }

  /// Before the micro-steps of a step.
  void begin(step_numbers const& now, gradlane::cuda::stream& compute) {
    memory_.upload(now, compute);
  }
  [[nodiscard]] dropout_sites sites(dropout_sites const& of_step) const {
    return of_step.with_step_at(memory_.step());
  }
  [[nodiscard]] step_value<double> masked_lm_scale() const {
    return memory_.masked_lm_scale().times(loss_scale());
  }
  [[nodiscard]] step_value<double> next_sentence_scale() const {
    return memory_.next_sentence_scale().times(loss_scale());
  }
  [[nodiscard]] step_value<double> learning_rate() const { return memory_.learning_rate(); }

  /// In the GPU's memory; null where there is none.
  [[nodiscard]] float const* loss_scale() const { return scaler_ ? scaler_->scale() : nullptr; }
  /// Enqueues what the loss scale makes of a step.
  void follow(gradlane::step_status const* status) {
    if (scaler_) { scaler_->update(status); }
  }
  void sync_restore(loss_scale_state const& scale) {
    if (scaler_) { scaler_->sync_restore(scale); }
  }

  /// Makes room for batches of that shape, and an eighth more the first time, so that it rarely has
  /// to grow: then all waits, and graphs are captured anew. To be called on all ranks alike.
  template <class Model>
  void make_room(batch_shape const& shape, Model& user, gradlane::cuda::stream& compute) {
    auto const first = room_.tokens == 0;
    auto const more  = [&](std::size_t n, std::size_t had) {
      return std::max(first ? n + n / 8 : n, had);
    };
    if (shape.tokens <= room_.tokens && shape.sequences <= room_.sequences &&
        shape.predictions <= room_.predictions) {
      return;
    }
    device_.sync(compute, patience_);
    graphs_.clear();
    room_  = {.tokens      = more(shape.tokens, room_.tokens),
              .sequences   = more(shape.sequences, room_.sequences),
              .predictions = more(shape.predictions, room_.predictions)};
    bytes_ = user.reserve(room_);
    gradlane::cuda::check(cudaMemGetInfo(&free_, &total_));
  }

  /// How much memory was planned for activations and all else that depends on the batch.
  [[nodiscard]] std::string describe() const {
    auto const mebibytes = [](std::size_t bytes) { return std::to_string(bytes >> 20U) + " MiB"; };
    return "GPU memory: " + mebibytes(bytes_) + " for batches of up to " +
           std::to_string(room_.tokens) + " tokens, " + std::to_string(room_.sequences) +
           " sequences, " + std::to_string(room_.predictions) + " predictions; of " +
           mebibytes(total_) + " there are " + mebibytes(total_ - free_) + " in use";
  }
  [[nodiscard]] std::size_t graphs() const { return graphs_.size(); }

  /// Enqueues forward and backward of a batch of that shape, and after the last what follows.
  template <class Enqueue>
  void run(batch_shape const& shape,
           bool first,
           bool last,
           gradlane::cuda::stream& compute,
           Enqueue&& enqueue) {
    if (!uses_graphs_) {
      std::forward<Enqueue>(enqueue)();
      return;
    }
    graphs_.run(
        {shape.tokens, shape.sequences, shape.predictions, first, last},
        compute,
        [&] { device_.sync(compute, patience_); },
        std::forward<Enqueue>(enqueue));
  }

 private:
  using key = std::tuple<std::size_t, std::size_t, std::size_t, bool, bool>;

  gradlane::cuda::device& device_;
  bool uses_graphs_;
  std::chrono::seconds patience_;
  cuda::step_memory memory_;
  std::optional<cuda::loss_scaler> scaler_;
  cuda::step_graphs<key> graphs_;
  batch_shape room_;
  std::size_t bytes_ = 0;
  std::size_t free_  = 0;  // then
  std::size_t total_ = 0;
};

}  // namespace bert

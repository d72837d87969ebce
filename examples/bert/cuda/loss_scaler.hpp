// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../loss_scale.hpp"  // for loss_scale_settings, loss_scale_state
#include "memory.hpp"         // for device_buffer

#include <gradlane/clip/report.hpp>  // for step_status
#include <gradlane/cuda/stream.hpp>  // for stream

#include <cuda_runtime_api.h>

namespace bert::cuda {

/// A dynamic loss scale in the device's memory, which follows the steps without the host.
///
/// Of a step, in the order of its stream: the gradient of the loss reads scale(), the pipeline
/// (pipeline_options::loss_scale) divides by it, and after the pipeline's finish() update() reads
/// whether the step was skipped. The host learns of it with the step's other numbers, by a copy of
/// state(), and calls expect_not_diverged: on all ranks about the same step, as they all stop then.
class loss_scaler {
 public:
  /// @throws input_error as loss_scale_settings::check() does. The stream must outlive this.
  loss_scaler(loss_scale_settings const& settings, gradlane::cuda::stream const& stream);

  [[nodiscard]] loss_scale_settings const& settings() const { return settings_; }
  /// In the device's memory; its place never changes.
  [[nodiscard]] loss_scale_state const* state() const { return state_.data(); }
  [[nodiscard]] float const* scale() const { return &state_.data()->scale; }

  /// Enqueues what follows from one step. May be captured.
  /// @param status  of the pipeline, in the device's memory.
  void update(gradlane::step_status const* status);

  /// The state once the steps enqueued are done: for checkpoints.
  [[nodiscard]] loss_scale_state sync_state() const;
  /// Takes over the state of another run.
  /// @throws input_error for a scale that lies outside of the settings.
  void sync_restore(loss_scale_state const& state);

 private:
  void sync_write(loss_scale_state const& state);

  loss_scale_settings settings_;
  cudaStream_t stream_;
  device_buffer<loss_scale_state> state_{1};
};

}  // namespace bert::cuda

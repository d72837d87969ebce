// SPDX-License-Identifier: Apache-2.0
#include "launch.cuh"  // for launch
#include "loss_scaler.hpp"

#include <gradlane/cuda/error.hpp>  // for check

namespace bert::cuda {

using gradlane::cuda::check;

namespace {

/// One thread.
__global__ void follow_step(loss_scale_settings settings,
                            gradlane::step_status const* status,
                            loss_scale_state* state) {
  *state = after_step(settings, *state, status->skip != 0);
}

}  // namespace

loss_scaler::loss_scaler(loss_scale_settings const& settings, gradlane::cuda::stream const& stream)
    : settings_{settings}, stream_{stream.get()} {
  settings.check();
  sync_write({settings.initial, 0});
}

void loss_scaler::update(gradlane::step_status const* status) {
  launch(follow_step, dim3(1), dim3(1), stream_, settings_, status, state_.data());
}

loss_scale_state loss_scaler::sync_state() const {
  auto result = loss_scale_state{};
  check(cudaMemcpyAsync(&result, state_.data(), sizeof result, cudaMemcpyDeviceToHost, stream_));
  check(cudaStreamSynchronize(stream_));
  return result;
}

void loss_scaler::sync_restore(loss_scale_state const& state) {
  auto resumed    = settings_;
  resumed.initial = state.scale;
  resumed.check();
  sync_write(state);
}

void loss_scaler::sync_write(loss_scale_state const& state) {
  check(cudaMemcpyAsync(state_.data(), &state, sizeof state, cudaMemcpyHostToDevice, stream_));
  check(cudaStreamSynchronize(stream_));
}

}  // namespace bert::cuda

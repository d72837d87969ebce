// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../cuda/device.hpp"         // for device
#include "../cuda/memory.hpp"         // for device_buffer
#include "../cuda/optimizer.hpp"      // for optimizer
#include "../model.hpp"               // for model
#include "../model_state.hpp"         // for model_state
#include "../optimizer_settings.hpp"  // for optimizer_settings
#include "../parameters.hpp"          // for parameter_list
#include "../step_value.hpp"          // for step_value
#include "../tensor_part.hpp"         // for tensor_part
#include "cuda_outcomes.cuh"          // for cuda_outcomes
#include "cuda_samples.cuh"           // for cuda_samples
#include "cuda_steps.cuh"             // for cuda_steps
#include "settings.hpp"               // for training_settings

#include <gradlane/clip/report.hpp>  // for step_status
#include <gradlane/cuda/device.cuh>  // for device
#include <gradlane/cuda/error.hpp>   // for check
#include <gradlane/host/device.hpp>  // for device

#include <cuda_runtime_api.h>

#include <cstddef>      // for size_t
#include <cstdint>      // for uint64_t
#include <span>         // for span
#include <type_traits>  // for is_same_v
#include <vector>       // for vector

namespace bert {

/// Training on GPUs, one a rank, which must be the current device. No step waits for
/// the work of the one before: what a step did is told while the next one runs.
///
/// @tparam Value     of activations and products: float, or bf16 or fp16 with fp32 weights.
/// @tparam Comm      of gradients and samples, between GPUs.
/// @tparam HostComm  of the same ranks, between hosts: counts and losses go over it.
template <class Value, class Comm, class HostComm>
struct cuda_place {
  using lane              = gradlane::cuda::device;
  using stream            = lane::stream;
  using communicator      = Comm;
  using host_communicator = HostComm;
  using model_device      = cuda::device<Value>;
  using floats            = cuda::device_buffer<float>;
  using optimizer         = cuda::optimizer;
  using outcomes          = cuda_outcomes<Comm>;
  using steps             = cuda_steps;
  using samples           = cuda_samples<Comm>;

  /// What --reduce offers here beyond average.
  static constexpr auto shards = true;
  static constexpr auto deltas = false;

  /// A graph waits for nothing that was enqueued before its capture.
  [[nodiscard]] bool waits_across_steps() const { return !graphs; }

  static constexpr auto on_host        = false;
  static constexpr auto results_behind = std::size_t{1};

  lane& gradients;
  communicator& ranks;
  gradlane::host::device& host;
  host_communicator& host_ranks;
  bool graphs = false;

  [[nodiscard]] static model_device make_device(stream& compute) { return model_device{compute}; }

  [[nodiscard]] static optimizer make_optimizer(parameter_list const& list,
                                                optimizer_settings const& settings,
                                                std::span<std::span<float> const> gradients_of,
                                                stream& compute) {
    return optimizer{list, settings, gradients_of, compute};
  }

  [[nodiscard]] static optimizer make_part_optimizer(parameter_list const& list,
                                                     optimizer_settings const& settings,
                                                     std::span<std::span<float> const> gradients_of,
                                                     std::span<tensor_part const> parts,
                                                     stream& compute) {
    return optimizer{list, settings, gradients_of, parts, compute};
  }

  [[nodiscard]] samples make_samples() const {
    return {gradients, host, ranks.split(0, ranks.rank())};
  }
  [[nodiscard]] outcomes make_outcomes(training_settings const& settings) const {
    return {gradients, ranks, settings.micro_steps, results_behind + 1};
  }
  [[nodiscard]] steps make_steps(training_settings const& settings, stream const& compute) const {
    return {gradients, graphs, settings, compute};
  }

  [[nodiscard]] floats make_floats(std::vector<float> const& values, stream& compute) const {
    auto result = floats{values.size()};
    sync_upload(values, result, compute);
    return result;
  }

  static void step(optimizer& update,
                   std::span<float> weights,
                   std::span<std::span<float> const> /*gradients*/,
                   step_value<double> learning_rate,
                   gradlane::step_status const* status,
                   model<model_device>& user) {
    if constexpr (std::is_same_v<Value, float>) {
      update.step(weights, learning_rate, status);
    } else {
      update.step(weights, learning_rate, status, user.device().working());
    }
  }

  /// Steps those parts that the optimizer has.
  static void step_parts(optimizer& update,
                         std::span<float> weights,
                         std::span<std::span<float> const> /*gradients*/,
                         step_value<double> learning_rate,
                         gradlane::step_status const* status) {
    update.step(weights, learning_rate, status);
  }

  /// As sync_own, but nothing on ranks other than 0.
  [[nodiscard]] std::span<float const> sync_view(std::span<float const> values,
                                                 std::vector<float>& copy,
                                                 stream& compute) const {
    if (host_ranks.rank() != 0) { return {}; }
    return sync_own(values, copy, compute);
  }
  /// Numbers of this place as the host sees them, once the work on `compute` is done.
  [[nodiscard]] std::span<float const> sync_own(std::span<float const> values,
                                                std::vector<float>& copy,
                                                stream& compute) const {
    copy.resize(values.size());
    gradlane::cuda::check(cudaMemcpyAsync(
        copy.data(), values.data(), values.size_bytes(), cudaMemcpyDeviceToHost, compute.get()));
    gradients.sync(compute);
    return copy;
  }

  [[nodiscard]] static std::uint64_t sync_steps(optimizer const& update) {
    return update.sync_steps();
  }

  void restore(model_state const& from,
               std::span<float> weights,
               optimizer& update,
               stream& compute) const {
    sync_upload(from.parameters, weights, compute);
    update.sync_restore(from.steps, from.first, from.second);
  }

 private:
  void sync_upload(std::span<float const> from, std::span<float> to, stream& compute) const {
    gradlane::cuda::check(cudaMemcpyAsync(
        to.data(), from.data(), from.size_bytes(), cudaMemcpyHostToDevice, compute.get()));
    gradients.sync(compute);
  }
};

}  // namespace bert

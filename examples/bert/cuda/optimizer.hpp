// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../optimizer_settings.hpp"  // for optimizer_settings
#include "../parameters.hpp"          // for parameter_list
#include "../step_value.hpp"          // for step_value
#include "../tensor_part.hpp"         // for tensor_part
#include "memory.hpp"                 // for device_buffer

#include <gradlane/clip/report.hpp>  // for step_status
#include <gradlane/cuda/stream.hpp>  // for stream
#include <gradlane/types.hpp>        // for bf16

#include <cuda_runtime_api.h>

#include <cstddef>  // for size_t
#include <cstdint>  // for uint64_t
#include <memory>   // for unique_ptr
#include <span>     // for span
#include <vector>   // for vector

namespace bert::cuda {

/// The optimizer of ../optimizer.hpp on fp32 master weights in the device's memory.
///
/// A step is two launches for AdamW and four for LAMB, over all tensors. It reads on the device
/// whether it is skipped and what the gradients are multiplied by, and counts itself there: the
/// host need not know. Results are the same in every run.
class optimizer {
 public:
  /// @param gradients  one for each tensor, in list order, in the device's memory; they must
  ///                   outlive the optimizer, as must the stream.
  /// @throws input_error as optimizer_settings::check() does; gradlane::contract_error if sizes do
  /// not fit the list.
  optimizer(parameter_list const& list,
            optimizer_settings const& settings,
            std::span<std::span<float> const> gradients,
            gradlane::cuda::stream const& stream);
  /// With moments for some parts of tensors alone, which are all that a step then changes.
  /// @throws as above; gradlane::contract_error for a part outside of its tensor, and under LAMB
  ///   for one that is no whole tensor.
  optimizer(parameter_list const& list,
            optimizer_settings const& settings,
            std::span<std::span<float> const> gradients,
            std::span<tensor_part const> parts,
            gradlane::cuda::stream const& stream);
  ~optimizer();
  optimizer(optimizer&&) noexcept;
  optimizer& operator=(optimizer&&) = delete;

  /// Enqueues one step, which counts unless it is skipped.
  /// @param parameters  the flat vector of the list, in the device's memory; updated.
  /// @param status      in the device's memory, or null: neither scaled nor skipped.
  /// @param working     empty, or device<Working>::working(), in bf16 or fp16, which is refreshed:
  ///                    model::refresh() is then not needed.
  /// @throws gradlane::contract_error if sizes do not fit the list.
  template <class Working = gradlane::bf16>
  void step(std::span<float> parameters,
            step_value<double> learning_rate,
            gradlane::step_status const* status = nullptr,
            std::span<Working> working          = {});

  [[nodiscard]] optimizer_settings const& settings() const { return settings_; }
  /// m and v, part after part (all: as the parameters), in the device's memory.
  [[nodiscard]] std::span<float const> first_moment() const { return first_; }
  [[nodiscard]] std::span<float const> second_moment() const { return second_; }
  /// Steps that were not skipped, once those enqueued are done.
  [[nodiscard]] std::uint64_t sync_steps() const;

  /// Takes over the state of another run, from host memory: moments laid out as the parameters.
  /// @throws gradlane::contract_error if sizes do not fit the list.
  void sync_restore(std::uint64_t steps,
                    std::span<float const> first,
                    std::span<float const> second);

 private:
  struct tables;  // in the device's memory

  optimizer_settings settings_;
  std::vector<std::size_t> offsets_;  // of the parts, in the flat vector
  std::vector<std::size_t> sizes_;    // of the parts
  std::size_t total_;
  cudaStream_t stream_;
  device_buffer<float> first_;
  device_buffer<float> second_;
  std::unique_ptr<tables> tables_;
};

}  // namespace bert::cuda

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "optimizer_settings.hpp"  // for optimizer_settings, update_norms
#include "parameters.hpp"          // for parameter_list
#include "tensor_part.hpp"         // for tensor_part

#include <gradlane/clip/report.hpp>  // for step_status
#include <gradlane/types.hpp>        // for bf16

#include <cstddef>  // for size_t
#include <cstdint>  // for uint64_t
#include <span>     // for span
#include <vector>   // for vector

namespace bert {

/// AdamW and LAMB on fp32 master weights in host memory, on OpenMP's threads.
///
///     m = β1 m + (1 - β1) g,  v = β2 v + (1 - β2) g²,  u = m̂ / (√v̂ + ε) + λ p
///     AdamW: p -= η u      LAMB: p -= η (‖p‖ / ‖u‖) u, for each tensor
///
/// The ratio is 1 where one of the norms is 0, and where λ is (unless trust_without_decay). Query,
/// key and value are tensors of their own. The result does not depend on the number of threads.
/// Source: Loshchilov and Hutter, arXiv:1711.05101; You et al., arXiv:1904.00962, algorithm 2 with
/// φ(x) = x, as NVIDIA's FusedLAMB computes it.
class optimizer {
 public:
  /// @throws input_error as optimizer_settings::check() does.
  optimizer(parameter_list const& list, optimizer_settings const& settings);
  /// Of these parts alone, which do not overlap; it reads and changes nothing else, and has moments
  /// for as many elements.
  /// @throws gradlane::contract_error for what lies outside of a tensor, and for LAMB where a part
  ///   is no whole tensor.
  optimizer(parameter_list const& list,
            optimizer_settings const& settings,
            std::span<tensor_part const> parts);

  /// One step, which counts unless it is skipped.
  /// @param parameters  the flat vector of the list, updated.
  /// @param gradients   one for each tensor, in list order; left alone.
  /// @param status      gradients are multiplied by its coefficient; `skip` changes nothing.
  /// @param working     empty, or a copy of the parameters in bf16, which is refreshed.
  /// @throws gradlane::contract_error if sizes do not fit the list.
  void step(std::span<float> parameters,
            std::span<std::span<float> const> gradients,
            double learning_rate,
            gradlane::step_status const& status = {},
            std::span<gradlane::bf16> working   = {});

  [[nodiscard]] optimizer_settings const& settings() const { return settings_; }
  /// Steps that were not skipped.
  [[nodiscard]] std::uint64_t steps() const { return steps_; }
  /// m and v, laid out as the parameters; of parts alone, these back to back.
  [[nodiscard]] std::span<float const> first_moment() const { return first_; }
  [[nodiscard]] std::span<float const> second_moment() const { return second_; }

  /// Takes over the state of another run, moments laid out as the parameters.
  /// @throws gradlane::contract_error if sizes do not fit the list.
  void restore(std::uint64_t steps, std::span<float const> first, std::span<float const> second);

 private:
  struct block {  // of one tensor; what a thread works on at once
    std::size_t tensor;
    std::size_t begin;   // in the tensor
    std::size_t offset;  // in the flat vector
    std::size_t place;   // in the moments
    std::size_t size;
  };
  [[nodiscard]] std::vector<float> trust_ratios() const;

  optimizer_settings settings_;
  std::vector<bool> decays_;        // by tensor
  std::vector<std::size_t> sizes_;  // by tensor
  std::size_t total_;
  std::vector<block> blocks_;
  std::vector<update_norms> norms_;  // by block
  std::vector<float> first_;
  std::vector<float> second_;
  std::uint64_t steps_ = 0;
};

}  // namespace bert

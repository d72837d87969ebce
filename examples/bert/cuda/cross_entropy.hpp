// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../entropy.hpp"      // for entropy
#include "../matrix_view.hpp"  // for matrix_view
#include "../step_value.hpp"   // for step_value
#include "execution.hpp"       // for execution

#include <gradlane/cuda/memory.hpp>  // for pinned_buffer

#include <cstdint>  // for int32_t
#include <span>     // for span

namespace bert::cuda {

/// Softmax and cross-entropy in one; see reference.hpp for the meaning.
template <class Value>
class cross_entropy_operations {
 public:
  using in  = matrix_view<Value const>;
  using out = matrix_view<Value>;

  explicit cross_entropy_operations(execution const& on);

  void cross_entropy(in logits,
                     std::span<std::int32_t const> labels,
                     std::span<float> lse,
                     entropy* target) const;
  void cross_entropy_gradient(out logits,
                              std::span<std::int32_t const> labels,
                              std::span<float const> lse,
                              step_value<double> scale) const;
  [[nodiscard]] entropy sync_read(entropy const* target) const;

 private:
  execution on_;
  gradlane::cuda::pinned_buffer landing_;  // of sync_read
};

}  // namespace bert::cuda

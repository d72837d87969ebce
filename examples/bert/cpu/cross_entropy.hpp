// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../entropy.hpp"      // for entropy
#include "../matrix_view.hpp"  // for matrix_view
#include "../step_value.hpp"   // for step_value
#include "parallel.hpp"        // for execution

#include <cstddef>  // for size_t
#include <cstdint>  // for int32_t
#include <span>     // for span
#include <vector>   // for vector

namespace bert::cpu {

/// Softmax and cross-entropy in one; see reference.hpp for the meaning.
template <class Value>
class cross_entropy_operations {
 public:
  using in  = matrix_view<Value const>;
  using out = matrix_view<Value>;

  explicit cross_entropy_operations(execution const& on) : on_{on} {}

  void cross_entropy(in logits,
                     std::span<std::int32_t const> labels,
                     std::span<float> lse,
                     entropy* target);
  [[nodiscard]] entropy sync_read(entropy const* target) const { return *target; }
  void cross_entropy_gradient(out logits,
                              std::span<std::int32_t const> labels,
                              std::span<float const> lse,
                              step_value<double> scale) const;

 private:
  execution on_;
  std::vector<entropy> rows_;  // (P), summed in order so that threads do not matter
};

}  // namespace bert::cpu

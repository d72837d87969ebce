// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../matrix_view.hpp"  // for matrix_view
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
  using out = matrix_view<Value>;

  struct entropy {
    double loss         = 0;
    std::size_t correct = 0;
  };

  explicit cross_entropy_operations(execution const& on) : on_{on} {}

  entropy cross_entropy(out logits,
                        std::span<float const> bias,
                        std::span<std::int32_t const> labels,
                        std::span<float> lse);
  void cross_entropy_gradient(out logits,
                              std::span<std::int32_t const> labels,
                              std::span<float const> lse,
                              double scale) const;

 private:
  execution on_;
  std::vector<entropy> rows_;  // (P), summed in order so that threads do not matter
};

}  // namespace bert::cpu

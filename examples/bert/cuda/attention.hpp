// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../dropout.hpp"      // for dropout
#include "../matrix_view.hpp"  // for matrix_view
#include "execution.hpp"       // for execution
#include "index.hpp"           // for index
#include "memory.hpp"          // for device_buffer

#include <cstddef>  // for size_t, byte
#include <span>     // for span

namespace bert::cuda {

/// Attention inside each sequence by the kernels of ../attention; see reference.hpp for the
/// meaning. Heads must have 64 columns. Results of a sequence do not depend on the batch.
template <class Value>
class attention_operations {
 public:
  using in    = matrix_view<Value const>;
  using out   = matrix_view<Value>;
  using reals = std::span<float const>;

  explicit attention_operations(execution const& on) : on_{on} {}

  /// Makes room for batches up to this size; returns the bytes.
  std::size_t reserve(std::size_t tokens, std::size_t heads);

  /// @throws gradlane::contract_error for heads of another size.
  void attention(index const& rows,
                 in qkv,
                 std::size_t heads,
                 dropout const& drop,
                 out context,
                 std::span<float> lse) const;
  void attention_gradient(index const& rows,
                          in qkv,
                          std::size_t heads,
                          dropout const& drop,
                          in context,
                          reals lse,
                          in dcontext,
                          out dqkv);

 private:
  execution on_;
  device_buffer<std::byte> terms_;  // (heads, T) of attention::row_terms
};

}  // namespace bert::cuda

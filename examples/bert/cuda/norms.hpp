// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../dropout.hpp"      // for dropout
#include "../matrix_view.hpp"  // for matrix_view, norm_state
#include "execution.hpp"       // for execution
#include "index.hpp"           // for index
#include "memory.hpp"          // for device_buffer

#include <cstddef>  // for size_t
#include <span>     // for span

namespace bert::cuda {

/// LayerNorm and what is fused with it; see reference.hpp for the meaning of each operation.
///
/// Every row is read once and written once. H must be a multiple of 4 and at most 2048, and vectors
/// of parameters must lie as the parameter_list has them. Sums over rows are split by the number of
/// rows alone.
template <class Value>
class norm_operations {
 public:
  using in    = matrix_view<Value const>;
  using out   = matrix_view<Value>;
  using state = norm_state<Value, float>;
  using reals = std::span<float const>;

  explicit norm_operations(execution const& on) : on_{on} {}

  /// Makes room for batches up to this size; returns the bytes.
  std::size_t reserve(std::size_t tokens, std::size_t hidden);

  void norm(in x, reals weight, reals bias, double epsilon, state s, out y) const;
  void norm_gradient(in dy,
                     reals weight,
                     state s,
                     out dx,
                     std::span<float> dweight,
                     std::span<float> dbias,
                     bool accumulate) const;
  void add_norm(index const& rows,
                in branch,
                reals branch_bias,
                in residual,
                reals weight,
                reals bias,
                double epsilon,
                dropout const& drop,
                state s,
                out y) const;
  void add_norm_gradient(index const& rows,
                         in dy,
                         in dy_more,
                         reals weight,
                         dropout const& drop,
                         state s,
                         out dresidual,
                         out dbranch,
                         std::span<float> dbranch_bias,
                         std::span<float> dweight,
                         std::span<float> dbias,
                         bool accumulate) const;
  void embed(index const& rows,
             reals word,
             reals position,
             reals type,
             reals weight,
             reals bias,
             double epsilon,
             dropout const& drop,
             state s,
             out y) const;
  void embed_gradient(index const& rows,
                      in dy,
                      in dy_more,
                      reals weight,
                      dropout const& drop,
                      state s,
                      std::span<float> dword,
                      std::span<float> dposition,
                      std::span<float> dtype,
                      std::span<float> dweight,
                      std::span<float> dbias,
                      bool accumulate);

 private:
  void add_rows(group_view const& group, std::size_t columns, std::size_t rows, float* table);

  execution on_;
  device_buffer<float> row_gradients_;  // (T, H) of the sum of embeddings
  device_buffer<float> slots_;          // (slots, H) sums of chunks of rows
};

}  // namespace bert::cuda

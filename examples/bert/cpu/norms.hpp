// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../batch_index.hpp"  // for batch_index
#include "../dropout.hpp"      // for dropout
#include "../matrix_view.hpp"  // for matrix_view, norm_state
#include "parallel.hpp"        // for aligned_buffer, execution

#include <cstddef>  // for size_t
#include <span>     // for span

namespace bert::cpu {

/// LayerNorm and what is fused with it; see reference.hpp for the meaning of each operation.
///
/// Every row is read once and written once. Gradients of parameters are summed by each thread over
/// its own rows, then over threads in their order.
template <class Value>
class norm_operations {
 public:
  using in    = matrix_view<Value const>;
  using out   = matrix_view<Value>;
  using state = norm_state<Value, float>;
  using reals = std::span<float const>;

  explicit norm_operations(execution const& on) : on_{on} {}

  void norm(in x, reals weight, reals bias, double epsilon, state s, out y);
  void norm_gradient(in dy,
                     reals weight,
                     state s,
                     out dx,
                     std::span<float> dweight,
                     std::span<float> dbias,
                     bool accumulate);
  void add_norm(batch_index const& rows,
                in branch,
                reals branch_bias,
                in residual,
                reals weight,
                reals bias,
                double epsilon,
                dropout const& drop,
                state s,
                out y);
  void add_norm_gradient(batch_index const& rows,
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
                         bool accumulate);
  void embed(batch_index const& rows,
             reals word,
             reals position,
             reals type,
             reals weight,
             reals bias,
             double epsilon,
             dropout const& drop,
             state s,
             out y);
  void embed_gradient(batch_index const& rows,
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
  struct row_space;
  [[nodiscard]] row_space space(std::size_t thread, std::size_t columns);
  void clear_sums(std::size_t columns);
  void collect(std::size_t which, std::span<float> total, bool accumulate) const;
  void add_embedding_rows(batch_index const& rows,
                          std::size_t columns,
                          std::span<float> dword,
                          std::span<float> dposition,
                          std::span<float> dtype) const;

  execution on_;
  aligned_buffer<float> sums_;           // (threads, sums and rows, H rounded up)
  aligned_buffer<float> row_gradients_;  // (T, H) of the sum of embeddings
};

}  // namespace bert::cpu

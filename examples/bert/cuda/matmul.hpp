// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../matrix_view.hpp"  // for matrix_view
#include "execution.hpp"       // for execution

#include <memory>  // for unique_ptr

namespace bert::cuda {

/// Products of fp32, bf16 or fp16 matrices by cuBLASLt, with sums in fp32 (never in TF32).
///
/// cuBLASLt is asked once for each shape, stride and alignment which of its kernels to use, and has
/// one workspace of fixed size, so that a product has the same bits in every step and run.
template <class Value>
class matmul {
 public:
  explicit matmul(execution const& on);
  ~matmul();
  matmul(matmul&&) noexcept;
  matmul& operator=(matmul&&) = delete;

  /// y (m, n) = x (m, k) wᵀ + bias (n), w (n, k); bias may be null.
  void multiply_transposed(matrix_view<Value const> x,
                           matrix_view<Value const> w,
                           Value const* bias,
                           matrix_view<Value> y);
  /// y (m, k) = x (m, n) w, w (n, k)
  void multiply(matrix_view<Value const> x, matrix_view<Value const> w, matrix_view<Value> y);
  /// w (n, k) = yᵀ x, y (m, n), x (m, k); added to w if `accumulate`
  void multiply_sum_rows(matrix_view<Value const> y,
                         matrix_view<Value const> x,
                         matrix_view<float> w,
                         bool accumulate);

 private:
  struct implementation;
  std::unique_ptr<implementation> self_;
};

}  // namespace bert::cuda

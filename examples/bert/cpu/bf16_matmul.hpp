// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../matrix_view.hpp"  // for matrix_view
#include "parallel.hpp"        // for execution

#include <gradlane/types.hpp>  // for bf16

#include <cstddef>  // for size_t
#include <memory>   // for unique_ptr

namespace bert::cpu {

/// Products of bf16 matrices by oneDNN, with sums in fp32.
///
/// oneDNN's AMX kernels want static shapes and dense matrices: primitives are made once for each
/// shape and kept, the number of rows is rounded up to a multiple of row_multiple so that few
/// shapes exist, and matrices with a stride are copied. Hence every row-matrix, in and out, must
/// have room for capacity(rows) rows; those beyond `rows` are overwritten.
class bf16_matmul {
 public:
  using bf16                                = gradlane::bf16;
  static constexpr std::size_t row_multiple = 64;

  explicit bf16_matmul(execution const& on);
  ~bf16_matmul();
  bf16_matmul(bf16_matmul&&)            = delete;
  bf16_matmul& operator=(bf16_matmul&&) = delete;

  [[nodiscard]] static constexpr std::size_t capacity(std::size_t rows) {
    return (rows + row_multiple - 1) / row_multiple * row_multiple;
  }

  /// Whether oneDNN may use AMX tiles for bf16 here.
  [[nodiscard]] static bool has_amx();

  /// y (m, n) = x (m, k) wᵀ, w (n, k)
  void multiply_transposed(matrix_view<bf16 const> x,
                           matrix_view<bf16 const> w,
                           matrix_view<bf16> y);
  /// y (m, k) = x (m, n) w, w (n, k)
  void multiply(matrix_view<bf16 const> x, matrix_view<bf16 const> w, matrix_view<bf16> y);
  /// w (n, k) = yᵀ x, y (m, n), x (m, k); added to w if `accumulate`
  void multiply_sum_rows(matrix_view<bf16 const> y,
                         matrix_view<bf16 const> x,
                         matrix_view<float> w,
                         bool accumulate);

 private:
  struct implementation;
  std::unique_ptr<implementation> self_;
};

}  // namespace bert::cpu

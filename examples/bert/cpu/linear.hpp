// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../matrix_view.hpp"  // for matrix_view, weight_matrix
#include "bf16_matmul.hpp"     // for bf16_matmul
#include "parallel.hpp"        // for aligned_buffer, execution

#include <gradlane/types.hpp>  // for bf16

#include <cstddef>  // for size_t
#include <memory>   // for unique_ptr
#include <span>     // for span

namespace bert::cpu {

/// How products of bf16 matrices are formed.
enum class bf16_products {
  automatic,  // native where the processor has AMX, else widened
  native,     // oneDNN's bf16 matmul
  widened     // inputs widened to fp32 exactly, multiplied there: twice as fast without AMX
};

/// Linear layers in fp32.
template <class Value>
class linear_operations;

template <>
class linear_operations<float> {
 public:
  explicit linear_operations(execution const& on) : on_{on} {}

  void load(std::span<float const> parameters) { parameters_ = parameters; }
  void load_part(std::span<float const> /*loaded*/, std::size_t /*begin*/, std::size_t /*size*/) {}
  void linear(matrix_view<float const> x,
              weight_matrix w,
              std::span<float const> bias,
              matrix_view<float> y) const;
  void linear_input_gradient(matrix_view<float const> dy,
                             weight_matrix w,
                             matrix_view<float> dx) const;
  void linear_weight_gradient(matrix_view<float const> dy,
                              matrix_view<float const> x,
                              std::span<float> dw,
                              bool accumulate) const;

 private:
  execution on_;
  std::span<float const> parameters_;
};

/// Linear layers in bf16 with sums in fp32: a working copy of the weights is rounded to bf16 by
/// each load, gradients of weights stay fp32.
template <>
class linear_operations<gradlane::bf16> {
 public:
  using bf16 = gradlane::bf16;

  linear_operations(execution const& on, bf16_products products);

  void load(std::span<float const> parameters);
  void load_part(std::span<float const> loaded, std::size_t begin, std::size_t size);
  void linear(matrix_view<bf16 const> x,
              weight_matrix w,
              std::span<float const> bias,
              matrix_view<bf16> y);
  void linear_input_gradient(matrix_view<bf16 const> dy, weight_matrix w, matrix_view<bf16> dx);
  void linear_weight_gradient(matrix_view<bf16 const> dy,
                              matrix_view<bf16 const> x,
                              std::span<float> dw,
                              bool accumulate);

 private:
  [[nodiscard]] matrix_view<float> widen(matrix_view<bf16 const> x, aligned_buffer<float>& into);

  execution on_;
  std::unique_ptr<bf16_matmul> native_;  // null: widened
  aligned_buffer<bf16> weights_;         // native: the parameters in bf16
  linear_operations<float> wide_;        // widened: products, and the parameters …
  aligned_buffer<float> wide_weights_;   // … rounded to bf16, as floats
  aligned_buffer<float> wide_x_;
  aligned_buffer<float> wide_y_;
};

}  // namespace bert::cpu

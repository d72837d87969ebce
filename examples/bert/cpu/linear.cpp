// SPDX-License-Identifier: Apache-2.0
#include "linear.hpp"

#include "storage.hpp"  // for as_float, store

#include <gradlane/error.hpp>  // for error

#include <oneapi/dnnl/dnnl.h>  // for dnnl_sgemm

#include <algorithm>  // for copy, fill
#include <string>     // for to_string

namespace bert::cpu {

namespace {

// C (m, n) = A B + beta C, row-major; the strides are those of the matrices as stored.
void multiply(char transpose_a,
              char transpose_b,
              std::size_t m,
              std::size_t n,
              std::size_t k,
              float const* a,
              std::size_t stride_a,
              float const* b,
              std::size_t stride_b,
              float beta,
              float* c,
              std::size_t stride_c) {
  auto const dim    = [](std::size_t extent) { return static_cast<dnnl_dim_t>(extent); };
  auto const status = dnnl_sgemm(transpose_a,
                                 transpose_b,
                                 dim(m),
                                 dim(n),
                                 dim(k),
                                 1.0F,
                                 a,
                                 dim(stride_a),
                                 b,
                                 dim(stride_b),
                                 beta,
                                 c,
                                 dim(stride_c));
  if (status != dnnl_success) {
    throw gradlane::error{"dnnl_sgemm failed with status " +
                          std::to_string(static_cast<int>(status))};
  }
}

}  // namespace

void linear_operations<float>::linear(matrix_view<float const> x,
                                      weight_matrix w,
                                      std::span<float const> bias,
                                      matrix_view<float> y) const {
  if (x.empty()) { return; }
  for_parts(on_, bias.empty() ? 0 : y.rows, [&](std::size_t first, std::size_t last, std::size_t) {
    for (auto i = first; i < last; ++i) { std::copy(bias.begin(), bias.end(), y.row(i)); }
  });
  auto const beta     = bias.empty() ? 0.0F : 1.0F;
  auto const* weights = parameters_.data() + w.offset;
  multiply('N', 'T', x.rows, w.out, w.in, x.data, x.stride, weights, w.in, beta, y.data, y.stride);
}

void linear_operations<float>::linear_input_gradient(matrix_view<float const> dy,
                                                     weight_matrix w,
                                                     matrix_view<float> dx) const {
  if (dy.empty()) { return; }
  auto const* weights = parameters_.data() + w.offset;
  multiply(
      'N', 'N', dy.rows, w.in, w.out, dy.data, dy.stride, weights, w.in, 0, dx.data, dx.stride);
}

void linear_operations<float>::linear_weight_gradient(matrix_view<float const> dy,
                                                      matrix_view<float const> x,
                                                      std::span<float> dw,
                                                      bool accumulate) const {
  if (dy.empty()) {
    if (!accumulate) { std::fill(dw.begin(), dw.end(), 0.0F); }
    return;
  }
  auto const beta = accumulate ? 1.0F : 0.0F;
  multiply('T',
           'N',
           dy.cols,
           x.cols,
           dy.rows,
           dy.data,
           dy.stride,
           x.data,
           x.stride,
           beta,
           dw.data(),
           x.cols);
}

linear_operations<gradlane::bf16>::linear_operations(execution const& on, bf16_products products)
    : on_{on}, wide_{on} {
  if (products == bf16_products::automatic) {
    products = bf16_matmul::has_amx() ? bf16_products::native : bf16_products::widened;
  }
  if (products == bf16_products::native) { native_ = std::make_unique<bf16_matmul>(on); }
}

void linear_operations<gradlane::bf16>::load(std::span<float const> parameters) {
  if (native_ != nullptr) {
    weights_.grow(parameters.size());
  } else {
    wide_weights_.grow(parameters.size());
    wide_.load({wide_weights_.data(), parameters.size()});
  }
  load_part(parameters, 0, parameters.size());
}

void linear_operations<gradlane::bf16>::load_part(std::span<float const> loaded,
                                                  std::size_t begin,
                                                  std::size_t size) {
  for_parts(on_, size, [&](std::size_t first, std::size_t last, std::size_t) {
    auto const* from = loaded.data() + begin;
    if (native_ != nullptr) {
      auto* to = weights_.data() + begin;
#pragma omp simd
      for (std::size_t i = first; i < last; ++i) { store(from[i], to[i]); }
    } else {
      auto* to = wide_weights_.data() + begin;
#pragma omp simd
      for (std::size_t i = first; i < last; ++i) { to[i] = as_float(bf16{from[i]}); }
    }
  });
}

matrix_view<float> linear_operations<gradlane::bf16>::widen(matrix_view<bf16 const> x,
                                                            aligned_buffer<float>& into) {
  into.grow(x.rows * x.cols);
  auto const result = matrix_view<float>{into.data(), x.rows, x.cols};
  for_parts(on_, x.rows, [&](std::size_t first, std::size_t last, std::size_t) {
    for (auto i = first; i < last; ++i) {
      auto const* from = x.row(i);
      auto* to         = result.row(i);
#pragma omp simd
      for (std::size_t j = 0; j < x.cols; ++j) { to[j] = as_float(from[j]); }
    }
  });
  return result;
}

namespace {

void narrow(execution const& on, matrix_view<float const> x, matrix_view<gradlane::bf16> y) {
  for_parts(on, x.rows, [&](std::size_t first, std::size_t last, std::size_t) {
    for (auto i = first; i < last; ++i) {
      auto const* from = x.row(i);
      auto* to         = y.row(i);
#pragma omp simd
      for (std::size_t j = 0; j < x.cols; ++j) { store(from[j], to[j]); }
    }
  });
}

void add_bias(execution const& on, std::span<float const> bias, matrix_view<gradlane::bf16> y) {
  for_parts(on, y.rows, [&](std::size_t first, std::size_t last, std::size_t) {
    auto const* b = bias.data();
    for (auto i = first; i < last; ++i) {
      auto* row = y.row(i);
#pragma omp simd
      for (std::size_t j = 0; j < y.cols; ++j) { store(as_float(row[j]) + b[j], row[j]); }
    }
  });
}

}  // namespace

void linear_operations<gradlane::bf16>::linear(matrix_view<bf16 const> x,
                                               weight_matrix w,
                                               std::span<float const> bias,
                                               matrix_view<bf16> y) {
  if (x.empty()) { return; }
  if (native_ != nullptr) {
    native_->multiply_transposed(x, {weights_.data() + w.offset, w.out, w.in}, y);
    if (!bias.empty()) { add_bias(on_, bias, y); }
    return;
  }
  wide_y_.grow(y.rows * y.cols);
  auto const wide_y = matrix_view<float>{wide_y_.data(), y.rows, y.cols};
  wide_.linear(widen(x, wide_x_), w, bias, wide_y);
  narrow(on_, wide_y, y);
}

void linear_operations<gradlane::bf16>::linear_input_gradient(matrix_view<bf16 const> dy,
                                                              weight_matrix w,
                                                              matrix_view<bf16> dx) {
  if (dy.empty()) { return; }
  if (native_ != nullptr) {
    native_->multiply(dy, {weights_.data() + w.offset, w.out, w.in}, dx);
    return;
  }
  wide_x_.grow(dx.rows * dx.cols);
  auto const wide_dx = matrix_view<float>{wide_x_.data(), dx.rows, dx.cols};
  wide_.linear_input_gradient(widen(dy, wide_y_), w, wide_dx);
  narrow(on_, wide_dx, dx);
}

void linear_operations<gradlane::bf16>::linear_weight_gradient(matrix_view<bf16 const> dy,
                                                               matrix_view<bf16 const> x,
                                                               std::span<float> dw,
                                                               bool accumulate) {
  if (native_ != nullptr && !dy.empty()) {
    native_->multiply_sum_rows(dy, x, {dw.data(), dy.cols, x.cols}, accumulate);
    return;
  }
  wide_.linear_weight_gradient(widen(dy, wide_y_), widen(x, wide_x_), dw, accumulate);
}

}  // namespace bert::cpu

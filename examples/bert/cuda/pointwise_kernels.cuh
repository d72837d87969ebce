// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../matrix_view.hpp"   // for matrix_view
#include "partial_kernels.cuh"  // for partial_sums
#include "quads.cuh"            // for load_vector, quad, store, store_vector
#include "tuning.hpp"           // for map_threads

#include <cstddef>  // for size_t
#include <cstdint>  // for int32_t

// Functions of single elements, sums of columns and moves of rows. A thread owns four columns of
// the rows blockIdx.y * rows_per_block …, and takes four rows at once.
namespace bert::cuda {

/// z Φ(z)
struct gelu_function {
  [[nodiscard]] __device__ static float normal_cdf(float z) {
    return 0.5F + 0.5F * erff(z * 0.707106781F);
  }
  [[nodiscard]] __device__ float operator()(float z) const { return z * normal_cdf(z); }
};
struct gelu_slope {
  [[nodiscard]] __device__ float operator()(float z) const {
    auto const density = 0.398942280F * expf(-0.5F * z * z);
    return gelu_function::normal_cdf(z) + z * density;
  }
};
struct tanh_function {
  [[nodiscard]] __device__ float operator()(float z) const { return tanhf(z); }
};
struct tanh_slope {  // in terms of y = tanh(z)
  [[nodiscard]] __device__ float operator()(float y) const { return 1.0F - y * y; }
};

[[nodiscard]] __device__ inline int own_column() {
  return static_cast<int>(4 * (blockIdx.x * blockDim.x + threadIdx.x));
}

/// y = f(x + bias)
template <class Function, class Value>
__global__ void __launch_bounds__(tuning::map_threads) map_rows(Function f,
                                                                matrix_view<Value const> x,
                                                                float const* bias,
                                                                matrix_view<Value> y,
                                                                int rows_per_block) {
  auto const column  = own_column();
  auto const columns = static_cast<int>(x.cols);
  if (column >= columns) { return; }
  auto const b     = load_vector(bias, column, columns);
  auto const begin = static_cast<int>(blockIdx.y) * rows_per_block;
  auto const end   = min(begin + rows_per_block, static_cast<int>(x.rows));
  for (auto first = begin; first < end; first += 4) {
    quad z[4]{};
    for (auto r = 0; r < 4; ++r) {
      if (first + r < end) { z[r] = load_vector(x.row(first + r), column, columns); }
    }
    for (auto r = 0; r < 4; ++r) {
      if (first + r >= end) { continue; }
      for (auto e = 0; e < 4; ++e) { z[r].x[e] = f(z[r].x[e] + b.x[e]); }
      store_vector(z[r], y.row(first + r), column, columns);
    }
  }
}

/// Values to be summed: the elements of a matrix.
template <class Value>
struct elements {
  matrix_view<Value const> dy;

  using loaded = quad;
  [[nodiscard]] __device__ quad parameters(int) const { return {}; }
  [[nodiscard]] __device__ loaded at(int row, int column) const {
    return load_vector(dy.row(row), column, static_cast<int>(dy.cols));
  }
  [[nodiscard]] __device__ quad value(loaded const& own, quad const&, int, int) const {
    return own;
  }
};

/// Values to be summed: dx = dy slope(x + bias), which is stored too.
template <class Slope, class Value>
struct slopes {
  Slope slope;
  matrix_view<Value const> x;
  float const* bias;  // or null
  matrix_view<Value const> dy;
  matrix_view<Value> dx;

  struct loaded {
    quad x;
    quad dy;
  };
  [[nodiscard]] __device__ quad parameters(int column) const {
    return load_vector(bias, column, static_cast<int>(x.cols));
  }
  [[nodiscard]] __device__ loaded at(int row, int column) const {
    auto const columns = static_cast<int>(x.cols);
    return {load_vector(x.row(row), column, columns), load_vector(dy.row(row), column, columns)};
  }
  [[nodiscard]] __device__ quad value(loaded const& own, quad const& b, int row, int column) const {
    auto result = own.dy;
    for (auto e = 0; e < 4; ++e) { result.x[e] *= slope(own.x.x[e] + b.x[e]); }
    store_vector(result, dx.row(row), column, static_cast<int>(dx.cols));
    return result;
  }
};

/// Leaves the sums of values over each block's rows.
template <class Values>
__global__ void __launch_bounds__(tuning::map_threads)
    sum_columns(Values values, int rows, int columns, partial_sums sums, int rows_per_block) {
  auto const column = own_column();
  if (column >= columns) { return; }
  auto const parameters = values.parameters(column);
  auto const begin      = static_cast<int>(blockIdx.y) * rows_per_block;
  auto const end        = min(begin + rows_per_block, rows);
  auto sum              = quad{};
  for (auto first = begin; first < end; first += 4) {
    typename Values::loaded own[4]{};
    for (auto r = 0; r < 4; ++r) {
      if (first + r < end) { own[r] = values.at(first + r, column); }
    }
    for (auto r = 0; r < 4; ++r) {
      if (first + r < end) { sum += values.value(own[r], parameters, first + r, column); }
    }
  }
  store(sum, sums.at(blockIdx.y, 0) + column);  // whose rows have room for it
}

/// y[i] = x[rows[i]], or zeros for a row of -1; one block a row
template <class Value>
__global__ void __launch_bounds__(tuning::map_threads)
    gather_rows(matrix_view<Value const> x, std::int32_t const* rows, matrix_view<Value> y) {
  auto const row         = rows[blockIdx.x];
  auto const* const from = x.row(static_cast<std::size_t>(max(row, 0)));
  auto* const to         = y.row(blockIdx.x);
  auto const columns     = static_cast<int>(x.cols);
  for (auto column = static_cast<int>(4 * threadIdx.x); column < columns;
       column += static_cast<int>(4 * blockDim.x)) {
    store_vector(row < 0 ? quad{} : load_vector(from, column, columns), to, column, columns);
  }
}

/// x[rows[i]] += y[i], one block a row; nothing for a row of -1
template <class Value>
__global__ void __launch_bounds__(tuning::map_threads)
    scatter_add_rows(matrix_view<Value const> y, std::int32_t const* rows, matrix_view<Value> x) {
  auto const row = rows[blockIdx.x];
  if (row < 0) { return; }
  auto const* const from = y.row(blockIdx.x);
  auto* const to         = x.row(static_cast<std::size_t>(row));
  auto const columns     = static_cast<int>(x.cols);
  for (auto column = static_cast<int>(4 * threadIdx.x); column < columns;
       column += static_cast<int>(4 * blockDim.x)) {
    auto sum = load_vector(to, column, columns);
    sum += load_vector(from, column, columns);
    store_vector(sum, to, column, columns);
  }
}

}  // namespace bert::cuda

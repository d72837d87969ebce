// SPDX-License-Identifier: Apache-2.0
#include "pointwise.hpp"

#include "storage.hpp"      // for as_float, store
#include "vector_math.hpp"  // for normal_fast

#include <cmath>  // for tanh

namespace bert::cpu {

template <class Value>
void pointwise_operations<Value>::gelu(in x, reals bias, out y) const {
  for_parts(on_, x.rows, [&](std::size_t first, std::size_t last, std::size_t) {
    auto const* b = bias.data();
    for (auto i = first; i < last; ++i) {
      auto const* from = x.row(i);
      auto* to         = y.row(i);
#pragma omp simd
      for (std::size_t j = 0; j < x.cols; ++j) {
        auto const z = as_float(from[j]) + b[j];
        store(z * normal_fast(z).cumulative, to[j]);
      }
    }
  });
}

template <class Value>
void pointwise_operations<Value>::gelu_gradient(
    in x, reals bias, in dy, out dx, std::span<float> dbias, bool accumulate) {
  constexpr auto inverse_root = 0.398942280F;  // 1 / √(2π)
  auto const columns          = x.cols;
  sums_.grow(on_.count() * columns);
  for_parts(on_, x.rows, [&](std::size_t first, std::size_t last, std::size_t thread) {
    auto* sum     = sums_.data() + thread * columns;
    auto const* b = bias.data();
    std::fill(sum, sum + columns, 0.0F);
    for (auto i = first; i < last; ++i) {
      auto const* from  = x.row(i);
      auto const* above = dy.row(i);
      auto* to          = dx.row(i);
#pragma omp simd
      for (std::size_t j = 0; j < columns; ++j) {
        auto const z     = as_float(from[j]) + b[j];
        auto const n     = normal_fast(z);
        auto const slope = n.cumulative + z * inverse_root * n.exponential;
        auto const value = as_float(above[j]) * slope;
        store(value, to[j]);
        sum[j] += value;
      }
    }
  });
  for (auto j = std::size_t{0}; j < columns; ++j) {
    auto total = accumulate ? dbias[j] : 0.0F;
    for (auto thread = std::size_t{0}; thread < on_.count(); ++thread) {
      total += sums_.data()[thread * columns + j];
    }
    dbias[j] = total;
  }
}

template <class Value>
void pointwise_operations<Value>::tanh(in x, reals bias, out y) const {
  for (auto i = std::size_t{0}; i < x.rows; ++i) {
    for (auto j = std::size_t{0}; j < x.cols; ++j) {
      store(std::tanh(as_float(x(i, j)) + bias[j]), y(i, j));
    }
  }
}

template <class Value>
void pointwise_operations<Value>::tanh_gradient(
    in y, in dy, out dx, std::span<float> dbias, bool accumulate) const {
  for (auto i = std::size_t{0}; i < y.rows; ++i) {
    for (auto j = std::size_t{0}; j < y.cols; ++j) {
      auto const value = as_float(y(i, j));
      store(as_float(dy(i, j)) * (1.0F - value * value), dx(i, j));
    }
  }
  column_sums(dx, dbias, accumulate);
}

/// Threads share the columns, so that each sum runs over the rows in order whatever their number.
template <class Value>
void pointwise_operations<Value>::column_sums(in dy, std::span<float> db, bool accumulate) const {
  for_parts(on_, dy.cols, [&](std::size_t first, std::size_t last, std::size_t) {
    if (!accumulate) { std::fill(db.data() + first, db.data() + last, 0.0F); }
    auto* sum = db.data();
    for (auto i = std::size_t{0}; i < dy.rows; ++i) {
      auto const* from = dy.row(i);
#pragma omp simd
      for (std::size_t j = first; j < last; ++j) { sum[j] += as_float(from[j]); }
    }
  });
}

template <class Value>
void pointwise_operations<Value>::gather(in x, std::span<std::int32_t const> rows, out y) const {
  for (auto i = std::size_t{0}; i < rows.size(); ++i) {
    if (rows[i] < 0) {
      std::fill_n(y.row(i), y.cols, Value{});
      continue;
    }
    auto const* from = x.row(static_cast<std::size_t>(rows[i]));
    std::copy(from, from + x.cols, y.row(i));
  }
}

template <class Value>
void pointwise_operations<Value>::scatter_add(in y,
                                              std::span<std::int32_t const> rows,
                                              out x) const {
  for (auto i = std::size_t{0}; i < rows.size(); ++i) {
    if (rows[i] < 0) { continue; }
    auto const* from = y.row(i);
    auto* to         = x.row(static_cast<std::size_t>(rows[i]));
#pragma omp simd
    for (std::size_t j = 0; j < x.cols; ++j) { store(as_float(to[j]) + as_float(from[j]), to[j]); }
  }
}

template class pointwise_operations<float>;
template class pointwise_operations<gradlane::bf16>;

}  // namespace bert::cpu

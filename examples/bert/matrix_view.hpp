// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/detail/host_device.hpp>  // for GRADLANE_HOST_DEVICE

#include <concepts>     // for same_as
#include <cstddef>      // for size_t
#include <type_traits>  // for is_const_v

namespace bert {

/// A row-major matrix that someone else owns. Element (i, j) is at data[i * stride + j].
template <class T>
struct matrix_view {
  T* data            = nullptr;
  std::size_t rows   = 0;
  std::size_t cols   = 0;
  std::size_t stride = 0;

  matrix_view() = default;
  matrix_view(T* first, std::size_t row_count, std::size_t column_count)
      : data{first}, rows{row_count}, cols{column_count}, stride{column_count} {}

  [[nodiscard]] GRADLANE_HOST_DEVICE T* row(std::size_t i) const { return data + i * stride; }
  [[nodiscard]] T& operator()(std::size_t i, std::size_t j) const { return data[i * stride + j]; }
  [[nodiscard]] bool empty() const { return rows == 0; }

  /// Columns first … first + count - 1 of every row.
  [[nodiscard]] matrix_view columns(std::size_t first, std::size_t count) const {
    auto part = *this;
    part.data += first;
    part.cols = count;
    return part;
  }

  template <class Other>  // a template: else nvcc warns of a conversion to itself
    requires(std::same_as<Other, T const> && !std::is_const_v<T>)
  operator matrix_view<Other>() const  // NOLINT(google-explicit-constructor): as T* to T const*
  {
    auto view   = matrix_view<T const>{data, rows, cols};
    view.stride = stride;
    return view;
  }
};

/// A weight matrix (out, in) by its place in the flat parameter vector.
struct weight_matrix {
  std::size_t offset;
  std::size_t out;
  std::size_t in;
};

/// What LayerNorm keeps for backward: (x - mean) / deviation, and 1 / deviation of every row.
template <class Value, class Real>
struct norm_state {
  matrix_view<Value> normalised;  // (rows, H)
  Real* inverse_deviation;        // (rows)
};

}  // namespace bert

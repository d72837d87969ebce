// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bert/matrix_view.hpp>
#include <bert/reference.hpp>

#include <cstddef>  // for size_t
#include <span>     // for span
#include <utility>  // for move
#include <vector>   // for vector

namespace bert::test {

/// Elements in host memory.
template <class E>
class host_memory {
 public:
  explicit host_memory(std::vector<E> values) : values_{std::move(values)} {}
  [[nodiscard]] std::span<E> span() { return values_; }
  [[nodiscard]] std::vector<E> const& values() const { return values_; }

 private:
  std::vector<E> values_;
};

/// (rows, cols) of a matrix in host memory, without the gaps between its rows.
template <class Real, class T>
[[nodiscard]] std::vector<Real> without_gaps(matrix_view<T const> m) {
  auto result = std::vector<Real>{};
  for (auto i = std::size_t{0}; i < m.rows; ++i) {
    for (auto j = std::size_t{0}; j < m.cols; ++j) { result.push_back(static_cast<Real>(m(i, j))); }
  }
  return result;
}

/// What operations.hpp, model_run.hpp and golden_run.hpp want to know of a device.
template <class T>
struct on_reference {
  using value  = T;
  using device = reference_device<T>;
  template <class E>
  using memory = host_memory<E>;
  [[nodiscard]] static device make() { return device{}; }
  [[nodiscard]] static std::vector<T> read(matrix_view<T const> m) { return without_gaps<T>(m); }
};

}  // namespace bert::test

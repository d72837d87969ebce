// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../matrix_view.hpp"  // for matrix_view
#include "parallel.hpp"        // for aligned_buffer, execution

#include <algorithm>  // for fill
#include <cstddef>    // for size_t
#include <cstdint>    // for int32_t
#include <span>       // for span

namespace bert::cpu {

/// Activation functions, sums of columns and moves of rows; see reference.hpp for their meaning.
template <class Value>
class pointwise_operations {
 public:
  using in    = matrix_view<Value const>;
  using out   = matrix_view<Value>;
  using reals = std::span<float const>;

  explicit pointwise_operations(execution const& on) : on_{on} {}

  template <class T>
  void zero(std::span<T> x) const {
    for_parts(on_, x.size(), [&](std::size_t first, std::size_t last, std::size_t) {
      std::fill(x.data() + first, x.data() + last, T{0.0F});
    });
  }
  void gelu(in x, reals bias, out y) const;
  void gelu_gradient(in x, reals bias, in dy, out dx, std::span<float> dbias, bool accumulate);
  void tanh(in x, reals bias, out y) const;
  void tanh_gradient(in y, in dy, out dx, std::span<float> dbias, bool accumulate) const;
  void column_sums(in dy, std::span<float> db, bool accumulate) const;
  void gather(in x, std::span<std::int32_t const> rows, out y) const;
  void scatter_add(in y, std::span<std::int32_t const> rows, out x) const;

 private:
  execution on_;
  aligned_buffer<float> sums_;  // (threads, I)
};

}  // namespace bert::cpu

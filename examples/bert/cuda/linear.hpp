// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../matrix_view.hpp"  // for matrix_view, weight_matrix
#include "execution.hpp"       // for execution
#include "matmul.hpp"          // for matmul
#include "memory.hpp"          // for device_buffer

#include <cstddef>  // for size_t
#include <span>     // for span

namespace bert::cuda {

/// The parameters in the type that products read: themselves, or a copy rounded to 16 bits.
template <class Value>
class working_copy {
 public:
  void load(execution const& on, std::span<float const> parameters);
  void load_part(execution const& on,
                 std::span<float const> parameters,
                 std::size_t begin,
                 std::size_t size);
  [[nodiscard]] std::span<Value> values() const { return {values_.data(), values_.size()}; }

 private:
  device_buffer<Value> values_;
};

template <>
class working_copy<float> {
 public:
  void load(execution const&, std::span<float const> parameters) { values_ = parameters; }
  void load_part(execution const&, std::span<float const>, std::size_t, std::size_t) {}
  [[nodiscard]] std::span<float const> values() const { return values_; }

 private:
  std::span<float const> values_;
};

/// Linear layers with sums in fp32; see reference.hpp for the meaning. In 16 bits a working copy of
/// the parameters is rounded by each load; gradients of weights stay fp32.
template <class Value>
class linear_operations {
 public:
  using in  = matrix_view<Value const>;
  using out = matrix_view<Value>;

  explicit linear_operations(execution const& on) : on_{on}, products_{on} {}

  void load(std::span<float const> parameters) {
    parameters_ = parameters;
    working_.load(on_, parameters);
  }
  /// The same for elements [begin, begin + size) of the vector that was loaded.
  void load_part(std::span<float const> loaded, std::size_t begin, std::size_t size) {
    working_.load_part(on_, loaded, begin, size);
  }
  /// @param bias  a part of the vector that was loaded, or empty.
  void linear(in x, weight_matrix w, std::span<float const> bias, out y);
  void linear_input_gradient(in dy, weight_matrix w, out dx);
  void linear_weight_gradient(in dy, in x, std::span<float> dw, bool accumulate);

  /// (total) what products read. An optimizer that writes it spares the load.
  [[nodiscard]] auto working() const { return working_.values(); }

 private:
  [[nodiscard]] in weights(weight_matrix w) const {
    return {working_.values().data() + w.offset, w.out, w.in};
  }

  execution on_;
  matmul<Value> products_;
  std::span<float const> parameters_;
  working_copy<Value> working_;
};

}  // namespace bert::cuda

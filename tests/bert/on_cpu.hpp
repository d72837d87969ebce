// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "on_reference.hpp"  // for host_memory, without_gaps

#include <bert/cpu/device.hpp>
#include <bert/matrix_view.hpp>

#include <vector>  // for vector

namespace bert::test {

/// What operations.hpp, model_run.hpp and golden_run.hpp want to know of a device.
template <class T>
struct on_cpu {
  using value  = T;
  using device = cpu::device<T>;
  template <class E>
  using memory = host_memory<E>;
  [[nodiscard]] static device make() { return device{}; }
  [[nodiscard]] static std::vector<float> read(matrix_view<T const> m) {
    return without_gaps<float>(m);
  }
};

}  // namespace bert::test

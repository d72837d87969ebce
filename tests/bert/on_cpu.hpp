// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bert/cpu/device.hpp>
#include <bert/reference.hpp>

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

/// What operations.hpp and model_run.hpp want to know of a device.
template <class T>
struct on_cpu {
  using value  = T;
  using device = cpu::device<T>;
  template <class E>
  using memory = host_memory<E>;
  [[nodiscard]] static device make() { return device{}; }
};

template <class T>
struct on_reference {
  using value  = T;
  using device = reference_device<T>;
  template <class E>
  using memory = host_memory<E>;
};

}  // namespace bert::test

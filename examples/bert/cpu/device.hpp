// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../batch_index.hpp"  // for batch_index
#include "attention.hpp"       // for attention_operations
#include "bf16_matmul.hpp"     // for bf16_matmul::capacity
#include "cross_entropy.hpp"   // for cross_entropy_operations
#include "linear.hpp"          // for linear_operations
#include "norms.hpp"           // for norm_operations
#include "parallel.hpp"        // for aligned_buffer, execution
#include "pointwise.hpp"       // for pointwise_operations

#include <gradlane/types.hpp>  // for bf16

#include <concepts>  // for same_as
#include <cstddef>   // for size_t
#include <utility>   // for move

namespace bert::cpu {

/// The operations of a model on the CPU, with OpenMP's threads as they are when it is made.
///
/// Value float: fp32 throughout. Value bf16: activations and the inputs of products in bf16; sums,
/// statistics, parameters and their gradients in fp32. Results are the same in every run with the
/// same number of threads. One device serves one model; not thread-safe.
template <class Value>
class device : public linear_operations<Value>,
               public norm_operations<Value>,
               public pointwise_operations<Value>,
               public attention_operations<Value>,
               public cross_entropy_operations<Value> {
 public:
  using value = Value;
  using real  = float;
  using index = batch_index;
  template <class T>
  using buffer = aligned_buffer<T>;

  device()
    requires(std::same_as<Value, float>)
      : device{execution{}, linear_operations<float>{execution{}}} {}

  explicit device(bf16_products products = bf16_products::automatic)
    requires(std::same_as<Value, gradlane::bf16>)
      : device{execution{}, linear_operations<gradlane::bf16>{execution{}, products}} {}

  [[nodiscard]] static std::size_t capacity(std::size_t rows) {
    return bf16_matmul::capacity(rows);
  }
  [[nodiscard]] static std::size_t stride(std::size_t columns) { return columns; }
  void assign(batch const& data, index& rows) const { rows.assign(data); }
  /// What operations work in is small, and grows as it is needed.
  std::size_t reserve(model_config const&, batch_shape const&, index const&) const { return 0; }

 private:
  device(execution const& on, linear_operations<Value>&& products)
      : linear_operations<Value>{std::move(products)},
        norm_operations<Value>{on},
        pointwise_operations<Value>{on},
        attention_operations<Value>{on},
        cross_entropy_operations<Value>{on} {}
};

}  // namespace bert::cpu

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attention.hpp"      // for attention_operations
#include "cross_entropy.hpp"  // for cross_entropy_operations
#include "execution.hpp"      // for execution
#include "index.hpp"          // for index
#include "linear.hpp"         // for linear_operations
#include "memory.hpp"         // for device_buffer
#include "norms.hpp"          // for norm_operations
#include "pointwise.hpp"      // for pointwise_operations
#include "tuning.hpp"         // for matmul_workspace, scratch_floats

#include <gradlane/cuda/stream.hpp>  // for stream

#include <cstddef>  // for size_t

namespace bert::cuda {

/// The operations of a model on a GPU, enqueued on one stream.
///
/// Value float: fp32 throughout. Value bf16 or fp16: activations and the inputs of products in
/// that; sums, statistics, parameters and their gradients in fp32. fp16 wants a loss scale
/// (loss_scaler): what it cannot hold becomes Inf, or NaN further on, and reaches the gradients of
/// parameters, so that the pipeline skips the step. Results are the same in every run. No operation
/// waits, but those called sync; none allocates, once it has seen the largest batch. One device
/// serves one model; the stream must outlive it and be of the current device.
template <class Value>
class device : public linear_operations<Value>,
               public norm_operations<Value>,
               public pointwise_operations<Value>,
               public attention_operations<Value>,
               public cross_entropy_operations<Value> {
 public:
  using value = Value;
  using real  = float;
  using index = cuda::index;
  template <class T>
  using buffer = device_buffer<T>;

  explicit device(gradlane::cuda::stream const& stream) : device{stream, execution{stream}} {}

  [[nodiscard]] static std::size_t capacity(std::size_t rows) { return rows; }
  /// Rows begin at multiples of 16 bytes, as tensor cores want it.
  [[nodiscard]] static std::size_t stride(std::size_t columns) { return (columns + 7) / 8 * 8; }
  void assign(batch const& data, index& rows) const { rows.assign(data, stream_); }
  /// Makes room for batches up to this size; returns the bytes of what operations work in.
  std::size_t reserve(model_config const& config, batch_shape const& largest, index& rows) {
    return norm_operations<Value>::reserve(largest.tokens, config.hidden_size) +
           attention_operations<Value>::reserve(largest.tokens, config.num_attention_heads) +
           rows.reserve(largest, stream_) + tuning::scratch_floats * sizeof(float) +
           tuning::matmul_workspace;
  }

 private:
  device(gradlane::cuda::stream const& stream, execution const& on)
      : linear_operations<Value>{on},
        norm_operations<Value>{on},
        pointwise_operations<Value>{on},
        attention_operations<Value>{on},
        cross_entropy_operations<Value>{on},
        stream_{stream} {}

  gradlane::cuda::stream const& stream_;
};

}  // namespace bert::cuda

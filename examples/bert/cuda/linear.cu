// SPDX-License-Identifier: Apache-2.0
#include "cast_kernels.cuh"  // for round_elements
#include "launch.cuh"        // for ceil_div, launch
#include "linear.hpp"
#include "tuning.hpp"  // for map_threads

#include <gradlane/cuda/error.hpp>  // for check
#include <gradlane/types.hpp>       // for bf16, fp16

namespace bert::cuda {

template <class Value>
void working_copy<Value>::load(execution const& on, std::span<float const> parameters) {
  values_.grow(parameters.size());
  load_part(on, parameters, 0, parameters.size());
}

template <class Value>
void working_copy<Value>::load_part(execution const& on,
                                    std::span<float const> parameters,
                                    std::size_t begin,
                                    std::size_t size) {
  launch(round_elements<tuning::map_threads, Value>,
         dim3(ceil_div(size, 4 * tuning::map_threads)),
         dim3(tuning::map_threads),
         on.stream(),
         parameters.data() + begin,
         values_.data() + begin,
         size);
}

template <class Value>
void linear_operations<Value>::linear(in x, weight_matrix w, std::span<float const> bias, out y) {
  auto const* const b =
      bias.empty() ? nullptr : working_.values().data() + (bias.data() - parameters_.data());
  products_.multiply_transposed(x, weights(w), b, y);
}

template <class Value>
void linear_operations<Value>::linear_input_gradient(in dy, weight_matrix w, out dx) {
  products_.multiply(dy, weights(w), dx);
}

template <class Value>
void linear_operations<Value>::linear_weight_gradient(in dy,
                                                      in x,
                                                      std::span<float> dw,
                                                      bool accumulate) {
  if (!dy.empty()) {
    products_.multiply_sum_rows(dy, x, {dw.data(), dy.cols, x.cols}, accumulate);
  } else if (!accumulate) {
    gradlane::cuda::check(cudaMemsetAsync(dw.data(), 0, dw.size_bytes(), on_.stream()));
  }
}

template class working_copy<gradlane::bf16>;
template class working_copy<gradlane::fp16>;
template class linear_operations<float>;
template class linear_operations<gradlane::bf16>;
template class linear_operations<gradlane::fp16>;

}  // namespace bert::cuda

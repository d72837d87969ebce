// SPDX-License-Identifier: Apache-2.0
#include "cross_entropy.hpp"
#include "cross_entropy_kernels.cuh"  // for entropy_rows, add_entropies, differentiate_entropy
#include "launch.cuh"                 // for extent, launch
#include "tuning.hpp"                 // for entropy_threads

#include <gradlane/cuda/error.hpp>  // for check
#include <gradlane/error.hpp>       // for expects
#include <gradlane/types.hpp>       // for bf16, fp16

namespace bert::cuda {

using tuning::entropy_threads;

template <class Value>
cross_entropy_operations<Value>::cross_entropy_operations(execution const& on)
    : on_{on}, landing_{on.device_index(), sizeof(entropy)} {}

template <class Value>
void cross_entropy_operations<Value>::cross_entropy(in logits,
                                                    std::span<std::int32_t const> labels,
                                                    std::span<float> lse,
                                                    entropy* target) const {
  auto const rows = labels.size();
  gradlane::expects(2 * rows <= on_.scratch().size(),
                    "bert::cuda: a batch has too many predictions");
  static_cast<void>(extent(logits.cols));
  auto const losses  = on_.scratch().first(rows);
  auto const correct = on_.scratch().subspan(rows, rows);
  launch(entropy_rows<entropy_threads, Value>,
         dim3(static_cast<unsigned>(rows)),
         dim3(entropy_threads),
         on_.stream(),
         logits,
         labels.data(),
         lse.data(),
         losses.data(),
         correct.data());
  launch(add_entropies<entropy_threads>,
         dim3(1),
         dim3(entropy_threads),
         on_.stream(),
         losses.data(),
         correct.data(),
         extent(rows),
         target);
}

template <class Value>
void cross_entropy_operations<Value>::cross_entropy_gradient(out logits,
                                                             std::span<std::int32_t const> labels,
                                                             std::span<float const> lse,
                                                             step_value<double> scale) const {
  launch(differentiate_entropy<entropy_threads, Value>,
         dim3(static_cast<unsigned>(labels.size())),
         dim3(entropy_threads),
         on_.stream(),
         logits,
         labels.data(),
         lse.data(),
         scale);
}

template <class Value>
entropy cross_entropy_operations<Value>::sync_read(entropy const* target) const {
  using gradlane::cuda::check;
  check(cudaMemcpyAsync(
      landing_.data(), target, sizeof(entropy), cudaMemcpyDeviceToHost, on_.stream()));
  check(cudaStreamSynchronize(on_.stream()));
  return *reinterpret_cast<entropy const*>(landing_.data());
}

template class cross_entropy_operations<float>;
template class cross_entropy_operations<gradlane::bf16>;
template class cross_entropy_operations<gradlane::fp16>;

}  // namespace bert::cuda

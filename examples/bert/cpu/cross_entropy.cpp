// SPDX-License-Identifier: Apache-2.0
#include "cross_entropy.hpp"

#include "storage.hpp"      // for as_float, store
#include "vector_math.hpp"  // for exp_fast

#include <algorithm>  // for fill_n
#include <cmath>      // for log

namespace bert::cpu {

template <class Value>
void cross_entropy_operations<Value>::cross_entropy(in logits,
                                                    std::span<std::int32_t const> labels,
                                                    std::span<float> lse,
                                                    entropy* target) {
  rows_.resize(labels.size());
  for_parts(on_, labels.size(), [&](std::size_t first, std::size_t last, std::size_t) {
    for (auto i = first; i < last; ++i) {
      auto const* row = logits.row(i);
      auto largest    = as_float(row[0]);
#pragma omp simd reduction(max : largest)
      for (std::size_t j = 0; j < logits.cols; ++j) {
        auto const value = as_float(row[j]);
        largest          = value > largest ? value : largest;
      }
      auto sum = 0.0F;
#pragma omp simd reduction(+ : sum)
      for (std::size_t j = 0; j < logits.cols; ++j) { sum += exp_fast(as_float(row[j]) - largest); }
      auto const log_sum = largest + std::log(sum);
      lse[i]             = log_sum;
      rows_[i]           = {};
      if (labels[i] < 0) { continue; }
      auto const hit   = as_float(row[labels[i]]);
      rows_[i].loss    = static_cast<double>(log_sum - hit);
      rows_[i].correct = hit == largest ? 1 : 0;
    }
  });
  auto total = entropy{};
  for (auto const& row : rows_) {
    total.loss += row.loss;
    total.correct += row.correct;
  }
  *target = total;
}

template <class Value>
void cross_entropy_operations<Value>::cross_entropy_gradient(out logits,
                                                             std::span<std::int32_t const> labels,
                                                             std::span<float const> lse,
                                                             step_value<double> scale) const {
  for_parts(on_, labels.size(), [&](std::size_t first, std::size_t last, std::size_t) {
    auto const factor = static_cast<float>(scale.read());
    for (auto i = first; i < last; ++i) {
      auto* row = logits.row(i);
      if (labels[i] < 0) {
        std::fill_n(row, logits.cols, Value{});
        continue;
      }
      auto const shift = lse[i];
      auto const label = static_cast<std::size_t>(labels[i]);
      auto const hit   = exp_fast(as_float(row[label]) - shift);
#pragma omp simd
      for (std::size_t j = 0; j < logits.cols; ++j) {
        store(factor * exp_fast(as_float(row[j]) - shift), row[j]);
      }
      store(factor * (hit - 1.0F), row[label]);
    }
  });
}

template class cross_entropy_operations<float>;
template class cross_entropy_operations<gradlane::bf16>;

}  // namespace bert::cpu

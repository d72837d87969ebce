// SPDX-License-Identifier: Apache-2.0
#include "../attention/attention.cuh"  // for forward, backward, ragged_batch, row_terms
#include "attention.hpp"
#include "elements.cuh"  // for cuda_type

#include <gradlane/error.hpp>  // for expects
#include <gradlane/types.hpp>  // for bf16, fp16

#include <type_traits>  // for conditional_t, is_const_v, remove_const_t

namespace bert::cuda {

namespace {

/// The elements of a matrix without gaps, under the names that CUDA has for their type.
template <class T>
auto whole(matrix_view<T> m) {
  using value   = cuda_type<std::remove_const_t<T>>;
  using element = std::conditional_t<std::is_const_v<T>, value const, value>;
  gradlane::expects(m.stride == m.cols, "bert::cuda: attention takes matrices without gaps");
  return std::span<element>{reinterpret_cast<element*>(m.data), m.rows * m.cols};
}

attention::ragged_batch batch_of(index const& rows, std::size_t heads, std::size_t hidden) {
  gradlane::expects(hidden == heads * attention::head_size,
                    "bert::cuda: attention needs heads of 64 columns");
  return {rows.starts(), rows.samples(), rows.tiles(), heads};
}

}  // namespace

template <class Value>
std::size_t attention_operations<Value>::reserve(std::size_t tokens, std::size_t heads) {
  terms_.grow(tokens * heads * sizeof(attention::row_terms));
  return terms_.size();
}

template <class Value>
void attention_operations<Value>::attention(index const& rows,
                                            in qkv,
                                            std::size_t heads,
                                            dropout const& drop,
                                            out context,
                                            std::span<float> lse) const {
  auto const input = whole(qkv);
  using value      = typename std::remove_const_t<typename decltype(input)::element_type>;
  attention::forward(on_.stream(),
                     attention::forward_arguments<value>{
                         batch_of(rows, heads, context.cols), drop, input, whole(context), lse});
}

template <class Value>
void attention_operations<Value>::attention_gradient(index const& rows,
                                                     in qkv,
                                                     std::size_t heads,
                                                     dropout const& drop,
                                                     in context,
                                                     reals lse,
                                                     in dcontext,
                                                     out dqkv) {
  using attention::row_terms;
  auto const input = whole(qkv);
  using value      = typename std::remove_const_t<typename decltype(input)::element_type>;
  auto const count = heads * qkv.rows;
  reserve(qkv.rows, heads);
  attention::backward(on_.stream(),
                      attention::backward_arguments<value>{
                          batch_of(rows, heads, context.cols),
                          drop,
                          input,
                          whole(context),
                          lse,
                          whole(dcontext),
                          whole(dqkv),
                          std::span{reinterpret_cast<row_terms*>(terms_.data()), count}});
}

template class attention_operations<float>;
template class attention_operations<gradlane::bf16>;
template class attention_operations<gradlane::fp16>;

}  // namespace bert::cuda

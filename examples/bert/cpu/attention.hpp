// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../batch_index.hpp"  // for batch_index
#include "../dropout.hpp"      // for dropout
#include "../matrix_view.hpp"  // for matrix_view
#include "parallel.hpp"        // for aligned_buffer, execution

#include <cstddef>  // for size_t
#include <cstdint>  // for uint8_t
#include <span>     // for span
#include <vector>   // for vector

namespace bert::cpu {

/// Attention inside each sequence; see reference.hpp for the meaning.
///
/// One task is one head of one sequence, longest sequences first, on whichever thread is free. A
/// task copies its part of q, k and v to dense fp32 matrices, and forms scores and products there
/// in both precisions. Backward forms the probabilities again, from lse: nothing quadratic in the
/// length is kept. A task sees only its own sequence, so results do not depend on the batch.
template <class Value>
class attention_operations {
 public:
  using in    = matrix_view<Value const>;
  using out   = matrix_view<Value>;
  using reals = std::span<float const>;

  explicit attention_operations(execution const& on) : on_{on} {}

  void attention(batch_index const& rows,
                 in qkv,
                 std::size_t heads,
                 dropout const& drop,
                 out context,
                 std::span<float> lse);
  void attention_gradient(batch_index const& rows,
                          in qkv,
                          std::size_t heads,
                          dropout const& drop,
                          in context,
                          reals lse,
                          in dcontext,
                          out dqkv);

 private:
  struct task;
  template <class Work>
  void for_each_head(batch_index const& rows,
                     std::size_t heads,
                     std::size_t hidden,
                     dropout const& drop,
                     Work const& work);

  execution on_;
  aligned_buffer<float> space_;         // (threads, room for one task)
  aligned_buffer<std::uint8_t> bytes_;  // (threads, 32, longest length rounded up)
  std::vector<std::size_t> by_length_;  // (B) sequences, longest first
};

}  // namespace bert::cpu

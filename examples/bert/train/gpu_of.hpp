// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../errors.hpp"  // for input_error

#include <string>  // for to_string

namespace bert {

/// The GPU of a rank: that of its own number on its node.
/// @throws input_error where a node has fewer GPUs than ranks.
[[nodiscard]] inline int gpu_of(int rank_on_node, int ranks_on_node, int gpus_on_node) {
  if (gpus_on_node == 0) {
    throw input_error{"CUDA finds no GPU here; bert_train trains on the CPU"};
  }
  if (ranks_on_node > gpus_on_node) {
    throw input_error{"a node has " + std::to_string(ranks_on_node) + " ranks and only " +
                      std::to_string(gpus_on_node) + (gpus_on_node == 1 ? " GPU" : " GPUs") +
                      ": start one rank a GPU"};
  }
  return rank_on_node;
}

}  // namespace bert

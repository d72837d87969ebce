// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "parameters.hpp"   // for parameter_list
#include "safetensors.hpp"  // for safetensors, write_safetensors

#include <cstddef>     // for size_t
#include <filesystem>  // for path
#include <span>        // for span
#include <vector>      // for vector

namespace bert {

/// The tensors of a flat vector (parameters, gradients or moments) under Hugging Face's names.
[[nodiscard]] inline std::vector<tensor_out> named_tensors(parameter_list const& list,
                                                           std::span<float const> flat) {
  auto result = std::vector<tensor_out>{};
  for (auto i = std::size_t{0}; i < list.size(); ++i) {
    result.push_back(float_tensor(list[i].name, list[i].shape, list.slice(flat, i)));
  }
  return result;
}

/// Writes a model.safetensors that transformers' BertForPreTraining loads.
/// @throws file_system_error
inline void save_weights(std::filesystem::path const& file,
                         parameter_list const& list,
                         std::span<float const> flat) {
  write_safetensors(file, named_tensors(list, flat));
}

/// Reads fp32 weights under Hugging Face's names; further tensors in the file are ignored.
/// @throws file_system_error, damaged_file_error naming the tensor that is absent or of another
/// shape.
inline void load_weights(std::filesystem::path const& file,
                         parameter_list const& list,
                         std::span<float> flat) {
  auto const in = safetensors{file};
  for (auto i = std::size_t{0}; i < list.size(); ++i) {
    in.read(list[i].name, "F32", list[i].shape, list.slice(flat, i));
  }
}

}  // namespace bert

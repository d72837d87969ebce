// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "optimizer_settings.hpp"  // for optimizer_settings, update_rule
#include "parameters.hpp"          // for parameter_list

#include <gradlane/error.hpp>  // for expects

#include <cstddef>  // for size_t
#include <vector>   // for vector

namespace bert {

/// Elements [begin, begin + size) of a tensor.
struct tensor_part {
  std::size_t tensor;
  std::size_t begin;
  std::size_t size;

  friend bool operator==(tensor_part const&, tensor_part const&) = default;
};

[[nodiscard]] inline std::vector<tensor_part> whole_tensors(parameter_list const& list) {
  auto result = std::vector<tensor_part>{};
  for (auto i = std::size_t{0}; i < list.size(); ++i) { result.push_back({i, 0, list[i].size}); }
  return result;
}

/// @throws gradlane::contract_error for what an optimizer cannot have moments for.
inline void check_part(parameter_list const& list,
                       optimizer_settings const& settings,
                       tensor_part const& part) {
  gradlane::expects(part.tensor < list.size() && part.begin <= list[part.tensor].size &&
                        part.size <= list[part.tensor].size - part.begin,
                    "optimizer: a part lies outside of its tensor");
  gradlane::expects(settings.rule != update_rule::lamb || part.size == list[part.tensor].size,
                    "optimizer: LAMB needs whole tensors, whose norms it takes");
}

}  // namespace bert

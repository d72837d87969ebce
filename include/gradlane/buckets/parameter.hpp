// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/buffer_view.hpp>            // for buffer_view
#include <gradlane/detail/sorted_indices.hpp>  // for sorted
#include <gradlane/error.hpp>                  // for contract_error, expects
#include <gradlane/types.hpp>                  // for dtype

#include <cstddef>  // for size_t
#include <cstdint>  // for uintptr_t
#include <span>     // for span
#include <string>   // for string, to_string
#include <utility>  // for move
#include <vector>   // for vector

namespace gradlane {

/// One parameter of the model, as the plan sees its gradient.
struct parameter {
  std::string name;         ///< unique and not empty
  std::size_t count{};      ///< elements; 0 is legal, such a parameter is never reduced
  dtype type{dtype::fp32};  ///< of the gradient; floating
  std::size_t uses{1};      ///< times that ready() is called a step; at least 1
  bool trainable{true};     ///< false: frozen, in no bucket
  std::string tied_to{};    ///< name of the parameter whose storage this one shares
};

/// Declares as tied (`tied_to`) those parameters whose gradients are the same memory.
///
/// `tensors[i]` is the gradient of `parameters[i]`, in a trainer that owns its gradients. A tied
/// gradient is counted in the norm, and reduced, once. Frozen and empty parameters are left out.
/// @throws contract_error where sizes or dtypes disagree with the parameters, and where two
///   tensors overlap without being the same range; the message names both parameters.
inline void detect_ties(std::vector<parameter>& parameters, std::span<buffer_view const> tensors) {
  expects(parameters.size() == tensors.size(),
          "detect_ties: give one tensor for each parameter, in the same order");
  auto order = std::vector<std::size_t>{};
  for (auto i = std::size_t{0}; i < parameters.size(); ++i) {
    auto const& described = parameters[i];
    if (!described.trainable || described.count == 0) { continue; }
    if (described.count != tensors[i].count() || described.type != tensors[i].type()) {
      throw contract_error{"detect_ties: the tensor of '" + described.name + "' has " +
                           std::to_string(tensors[i].count()) + " elements of " +
                           std::string{name_of(tensors[i].type())} + ", the parameter " +
                           std::to_string(described.count) + " of " +
                           std::string{name_of(described.type)}};
    }
    order.push_back(i);
  }
  auto const start = [&](std::size_t i) {
    return reinterpret_cast<std::uintptr_t>(tensors[i].data());
  };
  order      = detail::sorted(std::move(order),
                         [&](std::size_t a, std::size_t b) { return start(a) < start(b); });
  auto owner = std::size_t{0};  // index into `order` of the last range that was not a copy
  for (auto k = std::size_t{1}; k < order.size(); ++k) {
    auto const& held   = tensors[order[owner]];
    auto const& next   = tensors[order[k]];
    auto const& name   = parameters[order[owner]].name;
    auto& candidate    = parameters[order[k]];
    auto const overlap = start(order[k]) < start(order[owner]) + held.size_bytes();
    auto const same =
        next.data() == held.data() && next.count() == held.count() && next.type() == held.type();
    if (same) {
      candidate.tied_to = name;
    } else if (overlap) {
      throw contract_error{"detect_ties: the gradients of '" + name + "' and '" + candidate.name +
                           "' overlap but are not the same range; tie whole parameters, or give "
                           "each its own memory"};
    } else {
      owner = k;
    }
  }
}

}  // namespace gradlane

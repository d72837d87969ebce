// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>  // for uint64_t
#include <span>     // for span

namespace bert {

/// Weights and optimizer, in host memory: flat vectors of a parameter_list.
struct model_state {
  std::uint64_t steps = 0;  // that the optimizer has made
  std::span<float const> parameters;
  std::span<float const> first;  // moments
  std::span<float const> second;
};

}  // namespace bert

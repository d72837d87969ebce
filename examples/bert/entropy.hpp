// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>  // for uint64_t

namespace bert {

/// What a cross-entropy leaves in the memory of its device.
struct entropy {
  double loss;            // summed over rows, not averaged
  std::uint64_t correct;  // rows whose label has the largest logit
};

}  // namespace bert

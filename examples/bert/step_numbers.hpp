// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>  // for uint32_t

namespace bert {

/// What differs from step to step besides the batches, and what all ranks agree on.
struct step_numbers {
  double masked_lm_scale     = 0;  // of the sum of losses: 1 / count over ranks and micro-steps
  double next_sentence_scale = 0;
  double learning_rate       = 0;
  std::uint32_t step         = 0;  // keys dropout
};

}  // namespace bert

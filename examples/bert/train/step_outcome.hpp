// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../model.hpp"  // for losses

#include <gradlane/clip/report.hpp>  // for step_record

namespace bert {

/// What a step left on this rank.
struct step_outcome {
  losses sums;                    // over its micro-steps
  gradlane::step_record numbers;  // of the pipeline
};

}  // namespace bert

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "step_options.hpp"  // for step_options
#include "step_rig.hpp"      // for reduction_calls, step_case, step_times

#include <gradlane/cuda/stream.hpp>  // for stream

#include <optional>  // for optional
#include <string>    // for string

namespace bert::bench {

/// Times steps of a model on a GPU, by events between its operations.
[[nodiscard]] step_times sync_time_on_cuda(step_case of,
                                           std::string const& precision,
                                           step_options const& wanted,
                                           gradlane::cuda::stream& compute,
                                           reduction_calls const& calls);

[[nodiscard]] std::string cuda_device_name(int device);

/// TFLOP/s that a GPU of this name has in products, as its maker gives them: dense, and for fp32
/// outside of tensor cores.
[[nodiscard]] std::optional<double> peak_of(std::string const& device,
                                            std::string const& precision);

}  // namespace bert::bench

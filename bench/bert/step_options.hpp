// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>   // for size_t
#include <optional>  // for optional
#include <string>    // for string
#include <vector>    // for vector

namespace bert::bench {

/// What to measure: every model with every precision, workload and number of sequences.
struct step_options {
  std::vector<std::string> models{"base"};  // presets, or paths of a config.json
  std::vector<std::string> precisions{"bf16"};
  std::vector<std::string> workloads{"full", "natural", "padded"};
  std::vector<std::size_t> sequences{32};  // a step and rank
  std::string lengths;                     // file; empty: a formula
  std::size_t longest    = 0;              // sequence; 0: what the model takes
  std::size_t warm_up    = 3;
  std::size_t steps      = 20;
  std::size_t bucket_mib = 25;
  std::optional<double> peak_tflops;
  bool lamb = false;

  // of the GPU's program
  bool nccl              = false;
  double link_latency_us = 0;
  double link_gigabytes  = 0;  // a second; 0: no wire at all
};

/// @param gpu  whether the program is the GPU's.
/// @return nothing if the program is to end at once, with `exit_code`; what there was to say is
/// said.
[[nodiscard]] std::optional<step_options> parse_step_options(int argc,
                                                             char** argv,
                                                             bool gpu,
                                                             int& exit_code);

}  // namespace bert::bench

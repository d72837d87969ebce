// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../errors.hpp"  // for input_error

#include <cstddef>  // for size_t
#include <cstdint>  // for uint32_t
#include <span>     // for span
#include <string>   // for to_string
#include <vector>   // for vector

namespace bert {

/// Who computes what in one step: shares[micro_step * ranks + rank] are sample numbers.
using shares = std::vector<std::vector<std::uint32_t>>;

/// Deals the samples of a step to micro-batches, as cards: to every rank and micro-step in turn.
///
/// Any dealing gives the same training, up to the order of sums; this is the place to balance work
/// by the samples' lengths. Shares differ by one sample at most, and may be empty at an epoch's
/// end.
[[nodiscard]] inline shares deal(std::span<std::uint32_t const> samples,
                                 std::size_t ranks,
                                 std::size_t micro_steps) {
  auto result = shares(ranks * micro_steps);
  for (auto i = std::size_t{0}; i < samples.size(); ++i) {
    result[i % result.size()].push_back(samples[i]);
  }
  return result;
}

/// @throws input_error unless every rank gets a sample in every micro-step of a full batch.
inline void expect_dealable(std::size_t batch_size, std::size_t ranks, std::size_t micro_steps) {
  if (batch_size < ranks * micro_steps) {
    throw input_error{"a batch of " + std::to_string(batch_size) +
                      " sequences cannot be dealt to " + std::to_string(ranks) + " ranks in " +
                      std::to_string(micro_steps) + " micro-batches: it needs " +
                      std::to_string(ranks * micro_steps) + " sequences at least"};
  }
}

}  // namespace bert

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>    // for log
#include <cstdint>  // for uint64_t
#include <span>     // for span

namespace bert {

/// The entropy, in nats, of tokens that occur so often: the least mean loss of a model that knows
/// their frequencies and nothing else. 0 for no token at all.
[[nodiscard]] inline double unigram_entropy(std::span<std::uint64_t const> counts) {
  auto total = 0.0;
  auto sum   = 0.0;
  for (auto const count : counts) {
    if (count == 0) { continue; }
    auto const n = static_cast<double>(count);
    total += n;
    sum += n * std::log(n);
  }
  return total > 0 ? std::log(total) - sum / total : 0;
}

}  // namespace bert

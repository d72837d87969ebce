// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/balance/histogram.hpp>

#include <cstdint>
#include <vector>

namespace gradlane::test {

/// The shape of the Wikipedia lengths in a few numbers: the paper's shares of four strata, flat in
/// each, and 23.4 % at 512.
[[nodiscard]] inline balance::length_histogram like_wikipedia() {
  auto entries = std::vector<balance::length_count>{};
  auto flat    = [&](std::uint32_t first, std::uint32_t last, std::uint64_t count) {
    for (auto length = first; length <= last; ++length) {
      entries.push_back({length, count / (last - first + 1)});
    }
  };
  flat(5, 128, 373'000);
  flat(129, 256, 197'000);
  flat(257, 384, 117'000);
  flat(385, 511, 79'000);
  entries.push_back({512, 234'000});
  return balance::length_histogram{entries};
}

}  // namespace gradlane::test

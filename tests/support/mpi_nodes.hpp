// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>  // for min
#include <cstdlib>    // for getenv, strtol

namespace gradlane::test {

/// Over how many nodes MPICH pretends that `size` ranks are dealt out.
[[nodiscard]] inline int nodes_of_mpi(int size) {
  auto const* const cliques =
      std::getenv("MPIR_CVAR_NUM_CLIQUES");  // NOLINT(concurrency-mt-unsafe)
  if (cliques == nullptr) { return 1; }
  return std::min(size, static_cast<int>(std::strtol(cliques, nullptr, 10)));
}

}  // namespace gradlane::test

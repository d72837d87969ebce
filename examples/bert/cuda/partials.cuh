// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "execution.hpp"        // for execution
#include "launch.cuh"           // for launch, ceil_div, extent, round_up
#include "partial_kernels.cuh"  // for add_partials, partial_sums, sum_targets
#include "tuning.hpp"           // for partial_columns, partial_slices

#include <cstddef>  // for size_t
#include <span>     // for span

namespace bert::cuda {

/// How many blocks have room for their sums.
[[nodiscard]] inline std::size_t partial_room(execution const& on,
                                              std::size_t columns,
                                              std::size_t targets) {
  return on.scratch().size() / (round_up(columns, 8) * targets);
}

[[nodiscard]] inline partial_sums partials_of(execution const& on,
                                              std::size_t columns,
                                              std::size_t targets) {
  return {on.scratch().data(), static_cast<int>(round_up(columns, 8)), static_cast<int>(targets)};
}

/// What follows a kernel that left sums: targets of equal size become, or get added, their totals.
inline void launch_add_partials(execution const& on,
                                partial_sums const& from,
                                unsigned blocks,
                                std::span<std::span<float> const> to,
                                bool accumulate) {
  auto const vector  = [&](std::size_t i) { return i < to.size() ? to[i].data() : nullptr; };
  auto const targets = sum_targets{vector(0), vector(1), vector(2)};
  auto const columns = to.front().size();
  launch(add_partials<tuning::partial_columns, tuning::partial_slices>,
         dim3(ceil_div(columns, tuning::partial_columns), static_cast<unsigned>(to.size())),
         dim3(tuning::partial_columns, tuning::partial_slices),
         on.stream(),
         from,
         blocks,
         extent(columns),
         targets,
         accumulate);
}

}  // namespace bert::cuda

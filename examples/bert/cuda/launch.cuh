// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/cuda/error.hpp>  // for check
#include <gradlane/error.hpp>       // for expects

#include <cstddef>  // for size_t
#include <limits>   // for numeric_limits

namespace bert::cuda {

/// Launches a kernel, unless the grid is empty.
/// @throws gradlane::cuda::error where the launch is refused.
template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...),
            dim3 grid,
            dim3 block,
            cudaStream_t stream,
            Arguments const&... arguments) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) { return; }
  kernel<<<grid, block, 0, stream>>>(arguments...);
  gradlane::cuda::check(cudaGetLastError());
}

[[nodiscard]] constexpr unsigned ceil_div(std::size_t a, std::size_t b) {
  return static_cast<unsigned>((a + b - 1) / b);
}
[[nodiscard]] constexpr unsigned round_up(std::size_t a, std::size_t b) {
  return ceil_div(a, b) * static_cast<unsigned>(b);
}

/// Kernels count rows and columns in int.
[[nodiscard]] inline int extent(std::size_t value) {
  gradlane::expects(value <= static_cast<std::size_t>(std::numeric_limits<int>::max()),
                    "bert::cuda: a matrix has too many rows or columns");
  return static_cast<int>(value);
}

}  // namespace bert::cuda

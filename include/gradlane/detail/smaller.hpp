// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>  // for size_t

namespace gradlane::detail {

/// std::min without <algorithm>, which alone takes a tenth of a second to parse.
[[nodiscard]] constexpr std::size_t smaller(std::size_t a, std::size_t b) noexcept {
  return b < a ? b : a;
}

}  // namespace gradlane::detail

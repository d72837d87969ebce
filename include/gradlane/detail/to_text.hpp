// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>     // for array
#include <charconv>  // for to_chars
#include <string>    // for string

namespace gradlane::detail {

/// The shortest text that reads back as `value`: the same on every machine and in every locale.
[[nodiscard]] inline std::string to_text(double value) {
  auto digits       = std::array<char, 32>{};
  auto const result = std::to_chars(digits.data(), digits.data() + digits.size(), value);
  return {digits.data(), result.ptr};
}

}  // namespace gradlane::detail

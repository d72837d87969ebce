// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/error.hpp>  // for communication_error

#include <nccl.h>

#include <source_location>  // for source_location
#include <string>           // for string
#include <string_view>      // for string_view

namespace gradlane::nccl {

/// NCCL reported an error; what() holds the call and NCCL's own text.
class error : public communication_error {
 public:
  error(std::string_view message,
        int code,
        std::source_location at = std::source_location::current())
      : communication_error{message, at}, code_{code} {}

  /// An ncclResult_t.
  [[nodiscard]] int code() const noexcept { return code_; }

 private:
  int code_;
};

}  // namespace gradlane::nccl

namespace gradlane::nccl::detail {

/// What NCCL says about a result and, where it has one, its latest message.
[[nodiscard]] inline std::string text_of(ncclResult_t code) {
  auto text               = std::string{ncclGetErrorString(code)};
  auto const* const cause = ncclGetLastError(nullptr);
  if (cause != nullptr && *cause != '\0') { text.append(": ").append(cause); }
  return text;
}

/// Calls that are not complete yet (ncclInProgress) are no errors.
[[nodiscard]] constexpr bool is_error(ncclResult_t code) noexcept {
  return code != ncclSuccess && code != ncclInProgress;
}

/// @throws error where is_error(code).
inline void check(ncclResult_t code,
                  std::string_view what,
                  std::source_location at = std::source_location::current()) {
  if (is_error(code)) { throw error{std::string{what} + ": " + text_of(code), code, at}; }
}

}  // namespace gradlane::nccl::detail

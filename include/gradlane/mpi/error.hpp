// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/error.hpp>  // for communication_error

#include <mpi.h>

#include <array>            // for array
#include <cstddef>          // for size_t
#include <source_location>  // for source_location
#include <string>           // for string
#include <string_view>      // for string_view

namespace gradlane::mpi {

/// MPI reported an error; what() holds the operation, the rank and MPI's own text.
class error : public communication_error {
 public:
  error(std::string_view message,
        int code,
        std::source_location at = std::source_location::current())
      : communication_error{message, at}, code_{code} {}

  /// As MPI returned it; MPI_Error_class tells its class.
  [[nodiscard]] int code() const noexcept { return code_; }

 private:
  int code_;
};

}  // namespace gradlane::mpi

namespace gradlane::mpi::detail {

/// What MPI says about an error code.
[[nodiscard]] inline std::string text_of(int code) {
  auto text   = std::array<char, MPI_MAX_ERROR_STRING>{};
  auto length = 0;
  if (MPI_Error_string(code, text.data(), &length) != MPI_SUCCESS) {
    return "MPI error " + std::to_string(code);
  }
  return {text.data(), static_cast<std::size_t>(length)};
}

/// @throws error unless `code` is MPI_SUCCESS.
inline void check(int code,
                  std::string_view what,
                  std::source_location at = std::source_location::current()) {
  if (code != MPI_SUCCESS) { throw error{std::string{what} + ": " + text_of(code), code, at}; }
}

}  // namespace gradlane::mpi::detail

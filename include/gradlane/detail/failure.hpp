// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdlib>          // for abort
#include <source_location>  // for source_location
#include <string>           // for string
#include <utility>          // for move

namespace gradlane::detail {

/// What a communicator remembers of its first error, to throw it from every later call.
///
/// Each throw makes a new exception: threads never share one.
class failure {
 public:
  /// No failure.
  failure() = default;

  /// @tparam Error  constructed from (message, at).
  template <class Error>
  [[nodiscard]] static failure of(std::string message, std::source_location at) {
    return {std::move(message), 0, at, [](failure const& self) {
              throw Error{self.message_, self.at_};
            }};
  }

  /// @tparam Error  constructed from (message, code, at).
  template <class Error>
  [[nodiscard]] static failure of(std::string message, int code, std::source_location at) {
    return {std::move(message), code, at, [](failure const& self) {
              throw Error{self.message_, self.code_, self.at_};
            }};
  }

  [[nodiscard]] explicit operator bool() const noexcept { return throw_ != nullptr; }
  [[nodiscard]] std::string const& message() const noexcept { return message_; }

  /// Throws the error. Must hold one.
  [[noreturn]] void raise() const {
    throw_(*this);
    std::abort();  // unreachable: throw_ throws
  }

 private:
  using thrower = void (*)(failure const&);

  failure(std::string message, int code, std::source_location at, thrower as) noexcept
      : message_{std::move(message)}, code_{code}, at_{at}, throw_{as} {}

  std::string message_;
  int code_{};
  std::source_location at_;
  thrower throw_{};
};

}  // namespace gradlane::detail

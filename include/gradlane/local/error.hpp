// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/error.hpp>  // for communication_error

#include <source_location>  // for source_location
#include <string_view>      // for string_view

namespace gradlane::local {

/// Ranks whose calls do not fit together: another operation, count, dtype, reduction or root.
/// Thrown on every rank, naming two of them and both calls.
class mismatch_error : public communication_error {
 public:
  explicit mismatch_error(std::string_view message,
                          std::source_location at = std::source_location::current())
      : communication_error{message, at} {}
};

/// The script told this rank to fail here.
class scripted_error : public communication_error {
 public:
  explicit scripted_error(std::string_view message,
                          std::source_location at = std::source_location::current())
      : communication_error{message, at} {}
};

}  // namespace gradlane::local

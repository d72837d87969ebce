// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>          // for size_t
#include <source_location>  // for source_location
#include <stdexcept>        // for runtime_error
#include <string>           // for string, to_string
#include <string_view>      // for string_view
#include <utility>          // for move

namespace gradlane {

/// Root of every exception that gradlane throws. what() begins with "file:line: " of where().
class error : public std::runtime_error {
 public:
  explicit error(std::string_view message,
                 std::source_location at = std::source_location::current())
      : std::runtime_error{prefix(at).append(message)}, where_{at} {}

  /// The place in the caller's code, or in gradlane where the caller cannot be known.
  [[nodiscard]] std::source_location where() const noexcept { return where_; }

  /// what() without the place, for people who use a program rather than write it.
  [[nodiscard]] std::string_view message() const noexcept {
    return std::string_view{what()}.substr(prefix(where_).size());
  }

 private:
  [[nodiscard]] static std::string prefix(std::source_location at) {
    return std::string{at.file_name()} + ":" + std::to_string(at.line()) + ": ";
  }

  std::source_location where_;
};

// Each class below spells its constructor out: where constructors with a default argument of
// source_location are inherited, nvcc 13.0 fails with an internal error.

/// An argument that breaks a documented precondition: a bound that is NaN, an unknown parameter.
class contract_error : public error {
 public:
  explicit contract_error(std::string_view message,
                          std::source_location at = std::source_location::current())
      : error{message, at} {}
};

/// A call made in the wrong state: ready twice, finish without begin, a report before finish.
class state_error : public contract_error {
 public:
  explicit state_error(std::string_view message,
                       std::source_location at = std::source_location::current())
      : contract_error{message, at} {}
};

/// Ranks that were built with different plans or policies; thrown on every rank alike.
class plan_mismatch_error : public error {
 public:
  explicit plan_mismatch_error(std::string_view message,
                               std::source_location at = std::source_location::current())
      : error{message, at} {}
};

/// A peer, or the library that talks to it, failed; the communicator can only be aborted.
class communication_error : public error {
 public:
  explicit communication_error(std::string_view message,
                               std::source_location at = std::source_location::current())
      : error{message, at} {}
};

/// A deadline passed. Buffers of the operation that was waited for are undefined until abort().
class timeout_error : public communication_error {
 public:
  explicit timeout_error(std::string_view message,
                         std::source_location at = std::source_location::current())
      : communication_error{message, at} {}
};

/// The communicator was aborted, here or on a peer.
class aborted_error : public communication_error {
 public:
  explicit aborted_error(std::string_view message,
                         std::source_location at = std::source_location::current())
      : communication_error{message, at} {}
};

/// A gradient held Inf or NaN under the policy non_finite::fail.
class non_finite_error : public error {
 public:
  /// @param parameter  name, or empty where the value was found on another rank.
  /// @param offset     element inside the parameter; 0 where the parameter is not known.
  non_finite_error(std::string_view message,
                   std::size_t bucket,
                   std::string parameter,
                   std::size_t offset,
                   std::source_location at = std::source_location::current())
      : error{message, at}, bucket_{bucket}, parameter_{std::move(parameter)}, offset_{offset} {}

  [[nodiscard]] std::size_t bucket() const noexcept { return bucket_; }
  [[nodiscard]] std::string const& parameter() const noexcept { return parameter_; }
  [[nodiscard]] std::size_t offset() const noexcept { return offset_; }

 private:
  std::size_t bucket_;
  std::string parameter_;
  std::size_t offset_;
};

/// The update of reduce::deltas threw; that exception is nested in this one. The step's
/// communicator was aborted.
class update_error : public error {
 public:
  update_error(std::string_view message,
               std::size_t bucket,
               std::source_location at = std::source_location::current())
      : error{message, at}, bucket_{bucket} {}

  [[nodiscard]] std::size_t bucket() const noexcept { return bucket_; }

 private:
  std::size_t bucket_;
};

/// @throws contract_error with `message` unless `condition` holds.
inline void expects(bool condition,
                    std::string_view message,
                    std::source_location at = std::source_location::current()) {
  if (!condition) { throw contract_error{message, at}; }
}

}  // namespace gradlane

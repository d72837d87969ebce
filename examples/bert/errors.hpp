// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/error.hpp>  // for error

#include <cerrno>           // for ENOSPC, EDQUOT
#include <filesystem>       // for path
#include <source_location>  // for source_location
#include <string>           // for string
#include <string_view>      // for string_view

namespace bert {

/// What the user gave cannot be used: a file that is not there, text too short, wrong settings.
class input_error : public gradlane::error {
 public:
  explicit input_error(std::string_view message,
                       std::source_location at = std::source_location::current())
      : error{message, at} {}
};

/// Gradients are not finite any more; no setting of the machine will help, the run must change.
class diverged_error : public gradlane::error {
 public:
  explicit diverged_error(std::string_view message,
                          std::source_location at = std::source_location::current())
      : error{message, at} {}
};

/// A fault of one file; the message begins with its path.
class file_error : public gradlane::error {
 public:
  file_error(std::filesystem::path const& path,
             std::string_view message,
             std::source_location at = std::source_location::current())
      : gradlane::error{path.string() + ": " + std::string{message}, at}, path_{path} {}

  [[nodiscard]] std::filesystem::path const& path() const noexcept { return path_; }

 private:
  std::filesystem::path path_;
};

/// A file that is truncated, damaged, or of another kind or version than its name says.
class damaged_file_error : public file_error {
 public:
  damaged_file_error(std::filesystem::path const& path,
                     std::string_view message,
                     std::source_location at = std::source_location::current())
      : file_error{path, message, at} {}
};

/// A file that the system cannot open, read, write, sync or rename.
class file_system_error : public file_error {
 public:
  /// @param code  errno.
  file_system_error(std::filesystem::path const& path,
                    std::string_view message,
                    int code,
                    std::source_location at = std::source_location::current())
      : file_error{path, message, at}, code_{code} {}

  [[nodiscard]] int code() const noexcept { return code_; }
  [[nodiscard]] bool disk_full() const noexcept { return code_ == ENOSPC || code_ == EDQUOT; }

 private:
  int code_;
};

}  // namespace bert

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bert/files.hpp>  // for output_file

#include <cstdlib>      // for mkdtemp
#include <filesystem>   // for path, remove_all
#include <string>       // for string
#include <string_view>  // for string_view

namespace bert::test {

/// An empty directory that goes with its object.
class temporary_directory {
 public:
  temporary_directory() {
    auto name = (std::filesystem::temp_directory_path() / "gradlane-XXXXXX").string();
    path_     = ::mkdtemp(name.data());
  }
  temporary_directory(temporary_directory const&)            = delete;
  temporary_directory& operator=(temporary_directory const&) = delete;
  ~temporary_directory() {
    auto code = std::error_code{};
    std::filesystem::remove_all(path_, code);
  }

  [[nodiscard]] std::filesystem::path const& path() const { return path_; }

  std::filesystem::path write(std::string const& name, std::string_view content) const {
    auto const file = path_ / name;
    std::filesystem::create_directories(file.parent_path());
    output_file{file}.write(content);
    return file;
  }

 private:
  std::filesystem::path path_;
};

}  // namespace bert::test

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>     // for uint64_t
#include <filesystem>  // for path
#include <span>        // for span
#include <vector>      // for vector

namespace bert {

/// The part of a text file that is read at once, and by one thread.
struct text_source {
  std::filesystem::path path;
  std::uint64_t begin;  // bytes of the file
  std::uint64_t end;
  bool html;

  friend bool operator==(text_source const&, text_source const&) = default;
};

/// Of directories all files that end in .txt, .html and .htm, as find_files() has it; a file is
/// HTML where its name says so, else plain text.
[[nodiscard]] std::vector<std::filesystem::path> find_text_files(
    std::span<std::filesystem::path const> inputs);

/// Plain text longer than `part` bytes is cut into parts of about that size, at empty lines where
/// there are any nearby, else at ends of lines; so that memory is bounded and threads share work.
[[nodiscard]] std::vector<text_source> split_sources(std::span<std::filesystem::path const> files,
                                                     std::uint64_t part = std::uint64_t{4} << 20U);

/// Names, sizes and times of change of the files: differs when they must be read again.
[[nodiscard]] std::uint64_t fingerprint(std::span<std::filesystem::path const> files);

}  // namespace bert

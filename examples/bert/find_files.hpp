// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "errors.hpp"  // for input_error

#include <algorithm>    // for sort, transform, find
#include <cctype>       // for tolower
#include <filesystem>   // for path, recursive_directory_iterator
#include <set>          // for set
#include <span>         // for span
#include <string>       // for string
#include <string_view>  // for string_view
#include <vector>       // for vector

namespace bert {

/// A file's extension in lower case, with its dot.
[[nodiscard]] inline std::string lower_extension(std::filesystem::path const& file) {
  auto result = file.extension().string();
  std::transform(result.begin(), result.end(), result.begin(), [](unsigned char c) {
    return static_cast<char>(std::tolower(c));
  });
  return result;
}

/// The files that `inputs` name, in an order that does not depend on the file system.
///
/// Of a directory all with one of the extensions, at any depth, by path; of files whichever is
/// named. A file that is named twice counts once.
/// @param what  names the kind of input in messages.
/// @throws input_error if an input does not exist, or there is no file in all of them.
[[nodiscard]] inline std::vector<std::filesystem::path> find_files(
    std::span<std::filesystem::path const> inputs,
    std::span<std::string_view const> extensions,
    std::string const& what) {
  namespace fs = std::filesystem;
  auto result  = std::vector<fs::path>{};
  auto seen    = std::set<fs::path>{};
  auto take    = [&](fs::path const& file) {
    if (seen.insert(fs::canonical(file)).second) { result.push_back(file); }
  };
  auto const take_directory = [&](fs::path const& directory) {
    auto found = std::vector<std::string>{};
    for (auto const& entry : fs::recursive_directory_iterator{directory}) {
      auto const known =
          std::find(extensions.begin(), extensions.end(), lower_extension(entry.path()));
      if (known != extensions.end() && entry.is_regular_file()) {
        found.push_back(entry.path().string());
      }
    }
    std::sort(found.begin(), found.end());
    for (auto const& file : found) { take(file); }
  };
  try {
    for (auto const& input : inputs) {
      if (!fs::exists(input)) {
        throw input_error{what + " " + input.string() + ": there is no such file or directory"};
      }
      if (fs::is_directory(input)) {
        take_directory(input);
      } else {
        take(input);
      }
    }
  } catch (fs::filesystem_error const& problem) { throw input_error{what + ": " + problem.what()}; }
  if (!result.empty()) { return result; }
  if (inputs.empty()) { throw input_error{"no " + what + " to read: name a file or directory"}; }
  auto message = "no " + what + " to read: there is no";
  for (auto const extension : extensions) { message.append(" ").append(extension); }
  message += " file in";
  for (auto const& input : inputs) { message += " " + input.string(); }
  throw input_error{message};
}

}  // namespace bert

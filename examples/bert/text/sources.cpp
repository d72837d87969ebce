// SPDX-License-Identifier: Apache-2.0
#include "sources.hpp"

#include "../checksum.hpp"  // for checksum
#include "../errors.hpp"    // for input_error
#include "../files.hpp"     // for read_file

#include <algorithm>    // for sort, transform
#include <cctype>       // for tolower
#include <set>          // for set
#include <string>       // for string
#include <string_view>  // for string_view

namespace bert {

namespace fs = std::filesystem;

namespace {

[[nodiscard]] std::string lower_extension(fs::path const& file) {
  auto result = file.extension().string();
  std::transform(result.begin(), result.end(), result.begin(), [](unsigned char c) {
    return static_cast<char>(std::tolower(c));
  });
  return result;
}

[[nodiscard]] bool is_html(fs::path const& file) {
  auto const extension = lower_extension(file);
  return extension == ".html" || extension == ".htm";
}

[[nodiscard]] std::vector<fs::path> files_below(fs::path const& directory) {
  auto result = std::vector<fs::path>{};
  for (auto const& entry : fs::recursive_directory_iterator{directory}) {
    auto const wanted = is_html(entry.path()) || lower_extension(entry.path()) == ".txt";
    if (wanted && entry.is_regular_file()) { result.push_back(entry.path()); }
  }
  std::sort(result.begin(), result.end(), [](fs::path const& a, fs::path const& b) {
    return a.generic_string() < b.generic_string();
  });
  return result;
}

/// The end of the part that begins at `begin`.
[[nodiscard]] std::uint64_t part_end(fs::path const& file,
                                     std::uint64_t begin,
                                     std::uint64_t size,
                                     std::uint64_t part) {
  if (size - begin <= part + part / 4) { return size; }
  auto const wanted = begin + part;
  auto const window = read_file(file, wanted, part / 4);
  auto const empty  = window.find("\n\n");
  auto const dos    = window.find("\r\n\r\n");
  if (empty < dos) { return wanted + empty + 2; }
  if (dos != std::string::npos) { return wanted + dos + 4; }
  auto const line = window.find('\n');
  if (line != std::string::npos) { return wanted + line + 1; }
  auto const space = window.find(' ');
  return space != std::string::npos ? wanted + space + 1 : size;
}

}  // namespace

std::vector<fs::path> find_text_files(std::span<fs::path const> inputs) {
  auto result = std::vector<fs::path>{};
  auto seen   = std::set<fs::path>{};
  auto take   = [&](fs::path const& file) {
    if (seen.insert(fs::canonical(file)).second) { result.push_back(file); }
  };
  try {
    for (auto const& input : inputs) {
      if (!fs::exists(input)) {
        throw input_error{"text " + input.string() + ": there is no such file or directory"};
      }
      if (fs::is_directory(input)) {
        for (auto const& file : files_below(input)) { take(file); }
      } else {
        take(input);
      }
    }
  } catch (fs::filesystem_error const& problem) {
    throw input_error{std::string{"text: "} + problem.what()};
  }
  if (result.empty()) {
    auto message = std::string{"no text to read: there is no .txt, .html or .htm file in"};
    for (auto const& input : inputs) { message += " " + input.string(); }
    throw input_error{inputs.empty() ? "no text to read: name a file or directory" : message};
  }
  return result;
}

std::vector<text_source> split_sources(std::span<fs::path const> files, std::uint64_t part) {
  auto result = std::vector<text_source>{};
  for (auto const& file : files) {
    auto const size = static_cast<std::uint64_t>(fs::file_size(file));
    auto const html = is_html(file);
    for (auto begin = std::uint64_t{0}; begin < size;) {
      auto const end = html ? size : part_end(file, begin, size, part);
      result.push_back({file, begin, end, html});
      begin = end;
    }
  }
  return result;
}

std::uint64_t fingerprint(std::span<fs::path const> files) {
  auto result = checksum{};
  for (auto const& file : files) {
    auto const name = fs::canonical(file).generic_string();
    result.add(static_cast<std::uint64_t>(name.size()));
    result.add(name);
    result.add(static_cast<std::uint64_t>(fs::file_size(file)));
    result.add(static_cast<std::uint64_t>(fs::last_write_time(file).time_since_epoch().count()));
  }
  return result.value();
}

}  // namespace bert

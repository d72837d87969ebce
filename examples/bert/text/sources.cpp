// SPDX-License-Identifier: Apache-2.0
#include "sources.hpp"

#include "../checksum.hpp"    // for checksum
#include "../files.hpp"       // for read_file
#include "../find_files.hpp"  // for find_files, lower_extension

#include <array>        // for array
#include <string>       // for string
#include <string_view>  // for string_view

namespace bert {

namespace fs = std::filesystem;

namespace {

[[nodiscard]] bool is_html(fs::path const& file) {
  auto const extension = lower_extension(file);
  return extension == ".html" || extension == ".htm";
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
  constexpr auto extensions = std::array<std::string_view, 3>{".txt", ".html", ".htm"};
  return find_files(inputs, extensions, "text");
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

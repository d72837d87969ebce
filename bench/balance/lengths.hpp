// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/balance/histogram.hpp>  // for length_count, length_histogram

#include <charconv>      // for from_chars
#include <cstddef>       // for size_t
#include <cstdint>       // for uint32_t, uint64_t
#include <fstream>       // for ifstream
#include <stdexcept>     // for runtime_error
#include <string>        // for getline, string, to_string
#include <system_error>  // for errc
#include <utility>       // for move
#include <vector>        // for vector

namespace simulation {

using gradlane::balance::length_count;
using gradlane::balance::length_histogram;

/// Wikipedia's sequence lengths in a few numbers, for where the exact ones are not at hand: the
/// paper's shares of four strata, each flat, but 23.4 % of all at 512.
[[nodiscard]] inline length_histogram paper_model() {
  auto entries = std::vector<length_count>{};
  auto flat    = [&](std::uint32_t first, std::uint32_t last, std::uint64_t samples) {
    for (auto length = first; length <= last; ++length) {
      entries.push_back({length, samples / (last - first + 1)});
    }
  };
  flat(5, 128, 37'300'000);
  flat(129, 256, 19'700'000);
  flat(257, 384, 11'700'000);
  flat(385, 511, 31'400'000 - 23'400'000);
  entries.push_back({512, 23'400'000});
  return length_histogram{std::move(entries)};
}

/// Reads lines "length,count" by rising length; lines that begin with # or a letter are skipped.
/// @throws std::runtime_error naming file and line.
[[nodiscard]] inline length_histogram read_histogram(std::string const& path) {
  auto file = std::ifstream{path};
  if (!file) { throw std::runtime_error{path + ": cannot be read"}; }
  auto entries = std::vector<length_count>{};
  auto line    = std::string{};
  for (std::size_t number = 1; std::getline(file, line); ++number) {
    if (line.empty() || line[0] == '#' || (line[0] >= 'a' && line[0] <= 'z')) { continue; }
    auto entry        = length_count{};
    auto const* end   = line.data() + line.size();
    auto const length = std::from_chars(line.data(), end, entry.length);
    auto const comma  = length.ec == std::errc{} && length.ptr != end && *length.ptr == ',';
    auto const count  = std::from_chars(comma ? length.ptr + 1 : end, end, entry.count);
    if (count.ec != std::errc{}) {
      throw std::runtime_error{path + ":" + std::to_string(number) + ": not \"length,count\""};
    }
    entries.push_back(entry);
  }
  auto result = length_histogram{std::move(entries)};
  if (result.samples() == 0) { throw std::runtime_error{path + ": counts no sequences"}; }
  return result;
}

}  // namespace simulation

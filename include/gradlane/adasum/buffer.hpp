// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/buffer_view.hpp>    // for buffer_view
#include <gradlane/element_range.hpp>  // for element_range
#include <gradlane/error.hpp>          // for contract_error
#include <gradlane/types.hpp>          // for is_floating, name_of

#include <cstddef>  // for size_t
#include <span>     // for span
#include <string>   // for string, to_string
#include <vector>   // for vector

namespace gradlane {

/// A buffer that is communicated as a whole, and the segments of it, one a parameter, that are
/// combined each by itself.
struct adasum_buffer {
  buffer_view memory;                   ///< floating, on the device
  std::vector<element_range> segments;  ///< ascending, disjoint; may be empty, may leave gaps
};

namespace detail {

/// @throws contract_error for a dtype that is not floating and segments that are not as said.
inline void check_buffers(std::span<adasum_buffer const> buffers) {
  for (auto b = std::size_t{0}; b < buffers.size(); ++b) {
    auto const& [memory, segments] = buffers[b];
    auto const fail                = [&](std::string const& what) {
      throw contract_error{"adasum_all_reduce: buffer " + std::to_string(b) + what};
    };
    if (!is_floating(memory.type())) {
      fail(" is of " + std::string{name_of(memory.type())} + ", which is not floating");
    }
    auto end = std::size_t{0};
    for (auto t = std::size_t{0}; t < segments.size(); ++t) {
      auto const& [first, last] = segments[t];
      if (first < end || last < first || last > memory.count()) {
        fail(": segment " + std::to_string(t) + ", elements [" + std::to_string(first) + ", " +
             std::to_string(last) + "), is not behind the one before it, or not inside the " +
             std::to_string(memory.count()) + " elements of the buffer");
      }
      end = last;
    }
  }
}

/// What ranks that hold the same buffers must have alike, line by line.
[[nodiscard]] inline std::string layout_text(std::span<adasum_buffer const> buffers) {
  auto result = std::string{};
  for (auto b = std::size_t{0}; b < buffers.size(); ++b) {
    auto const& [memory, segments] = buffers[b];
    auto const name                = "buffer " + std::to_string(b);
    result += name + ": " + std::to_string(memory.count()) + " x " +
              std::string{name_of(memory.type())} + "\n";
    for (auto t = std::size_t{0}; t < segments.size(); ++t) {
      result += name + ", segment " + std::to_string(t) + ": elements [" +
                std::to_string(segments[t].begin) + ", " + std::to_string(segments[t].end) + ")\n";
    }
  }
  return result;
}

/// What ranks that hold other shards of the same buffers must have alike, line by line.
/// @param rank,ranks  in the group of those that hold the same shard.
[[nodiscard]] inline std::string shards_text(std::span<adasum_buffer const> buffers,
                                             int rank,
                                             int ranks) {
  auto result = "place " + std::to_string(rank) + " of " + std::to_string(ranks) + "\n";
  for (auto b = std::size_t{0}; b < buffers.size(); ++b) {
    result += "buffer " + std::to_string(b) + ": " + std::to_string(buffers[b].segments.size()) +
              " segments of " + std::string{name_of(buffers[b].memory.type())} + "\n";
  }
  return result;
}

}  // namespace detail
}  // namespace gradlane

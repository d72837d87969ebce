// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/buffer_view.hpp>        // for buffer_view, const_buffer_view
#include <gradlane/concepts.hpp>           // for timeout, no_deadline
#include <gradlane/detail/collective.hpp>  // for operation, has_reduction, text_of
#include <gradlane/types.hpp>              // for reduction, name_of

#include <cstddef>          // for size_t
#include <cstdint>          // for uint64_t
#include <memory>           // for shared_ptr
#include <source_location>  // for source_location
#include <string>           // for string, to_string
#include <vector>           // for vector

namespace gradlane::local::detail {

using gradlane::detail::operation;

class group;

/// One call of one rank. The other ranks read it, and write to `out`, while they meet.
struct call {
  operation what{};
  reduction op{};
  const_buffer_view in{};
  buffer_view out{};
  float const* coefficient{};  // read when the stream gets there, into factor
  float factor{1.0F};
  int peer{-1};                        // root or other rank
  std::vector<std::size_t> send{};     // elements to each rank; capacity is kept for later calls
  std::vector<std::size_t> receive{};  // elements from each rank
  std::uint64_t sequence{};            // among the collectives, or messages of a pair
  std::uint64_t index{};               // among all calls of the rank: the script's number
  timeout deadline{no_deadline};
  std::source_location at{};

  int color{};  // split only
  int key{};
  std::shared_ptr<group> joined{};
  int joined_rank{};
};

/// What decides whether calls fit together: "all_reduce(sum) of 17 fp32".
[[nodiscard]] inline std::string describe(call const& c) {
  auto text = std::string{name_of(c.what)};
  if (has_reduction(c.what)) { text.append("(").append(name_of(c.op)).append(")"); }
  auto const& view = c.what == operation::broadcast || c.what == operation::receive ||
                             c.what == operation::all_gather_v
                         ? const_buffer_view{c.out}
                         : c.in;
  if (c.what != operation::split) { text.append(" of ").append(gradlane::detail::text_of(view)); }
  if (c.what == operation::all_gather_v) {
    text.append(" as");
    for (auto const count : c.receive) { text.append(" ").append(std::to_string(count)); }
  }
  if (c.what == operation::broadcast) { text.append(" from rank ").append(std::to_string(c.peer)); }
  return text;
}

/// Whether two ranks' calls may meet. Counts that only the pair of ranks knows are not compared.
[[nodiscard]] inline bool fit(call const& a, call const& b) {
  if (gradlane::detail::is_point_to_point(a.what)) {
    auto const& sent     = a.what == operation::send ? a : b;
    auto const& received = a.what == operation::send ? b : a;
    return sent.in.count() == received.out.count() && sent.in.type() == received.out.type();
  }
  if (a.what != b.what || a.out.type() != b.out.type()) { return false; }
  switch (a.what) {
    case operation::all_to_all_v:
    case operation::split:
      return true;
    case operation::all_gather_v:
      return a.receive == b.receive;
    case operation::broadcast:
      return a.out.count() == b.out.count() && a.peer == b.peer;
    case operation::all_reduce:
    case operation::reduce_scatter:
      return a.out.count() == b.out.count() && a.op == b.op;
    default:
      return a.out.count() == b.out.count();
  }
}

}  // namespace gradlane::local::detail

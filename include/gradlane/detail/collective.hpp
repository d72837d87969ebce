// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/buffer_view.hpp>  // for buffer_view, const_buffer_view
#include <gradlane/error.hpp>        // for contract_error
#include <gradlane/types.hpp>        // for dtype, is_floating, name_of, reduction

#include <cstddef>          // for size_t
#include <cstdint>          // for uint8_t, uintptr_t
#include <source_location>  // for source_location
#include <span>             // for span
#include <string>           // for string, to_string
#include <string_view>      // for string_view

// What all communicators say and check alike about their operations.
namespace gradlane::detail {

enum class operation : std::uint8_t {
  all_reduce,
  all_reduce_scaled,
  reduce_scatter,
  all_gather,
  all_gather_v,
  broadcast,
  all_to_all_v,
  send,
  receive,
  split
};

[[nodiscard]] constexpr std::string_view name_of(operation what) noexcept {
  switch (what) {
    case operation::all_reduce:
      return "all_reduce";
    case operation::all_reduce_scaled:
      return "all_reduce_scaled";
    case operation::reduce_scatter:
      return "reduce_scatter";
    case operation::all_gather:
      return "all_gather";
    case operation::all_gather_v:
      return "all_gather_v";
    case operation::broadcast:
      return "broadcast";
    case operation::all_to_all_v:
      return "all_to_all_v";
    case operation::send:
      return "send";
    case operation::receive:
      return "receive";
    case operation::split:
      return "split";
  }
  return "unknown";
}

[[nodiscard]] constexpr bool is_point_to_point(operation what) noexcept {
  return what == operation::send || what == operation::receive;
}

[[nodiscard]] constexpr bool has_reduction(operation what) noexcept {
  return what == operation::all_reduce || what == operation::reduce_scatter;
}

/// Integers have no average.
[[nodiscard]] constexpr bool reduces(reduction op, dtype type) noexcept {
  return op != reduction::average || is_floating(type);
}

[[nodiscard]] inline std::size_t sum_of(std::span<std::size_t const> counts) noexcept {
  auto sum = std::size_t{0};
  for (auto const count : counts) { sum += count; }
  return sum;
}

[[nodiscard]] inline std::string text_of(const_buffer_view x) {
  return std::to_string(x.count()) + " " + std::string{name_of(x.type())};
}

/// "all_reduce(sum) of 17 fp32", "broadcast of 17 fp32 from rank 0"
[[nodiscard]] inline std::string text_of(
    operation what, reduction op, const_buffer_view in, const_buffer_view out, int peer) {
  auto text = std::string{name_of(what)};
  if (has_reduction(what)) { text.append("(").append(name_of(op)).append(")"); }
  auto const writes =
      what == operation::broadcast || what == operation::receive || what == operation::all_gather_v;
  if (what != operation::split) { text.append(" of ").append(text_of(writes ? out : in)); }
  switch (what) {
    case operation::broadcast:
    case operation::receive:
      return text.append(" from rank ").append(std::to_string(peer));
    case operation::send:
      return text.append(" to rank ").append(std::to_string(peer));
    default:
      return text;
  }
}

/// Checks of arguments, each naming the operation and both values. They allocate only to throw.
class argument_check {
 public:
  argument_check(operation what, int rank, int size, std::source_location at) noexcept
      : what_{what}, rank_{rank}, size_{size}, at_{at} {}

  void reduction_of(reduction op, dtype type) const {
    if (!reduces(op, type)) {
      fail(std::string{name_of(op)} + " of " + std::string{name_of(type)} + " is not supported");
    }
  }

  void floating(dtype type) const {
    if (!is_floating(type)) { fail("needs a floating type, not " + std::string{name_of(type)}); }
  }

  /// `out` holds `out_parts` blocks where `in` holds `in_parts`, of one dtype.
  void shapes(const_buffer_view in,
              buffer_view out,
              std::size_t in_parts  = 1,
              std::size_t out_parts = 1) const {
    if (in.type() != out.type() || in.count() * out_parts != out.count() * in_parts) {
      fail("in is " + text_of(in) + ", out is " + text_of(out) + " on " + std::to_string(size_) +
           " ranks");
    }
  }

  void same_type(const_buffer_view in, buffer_view out) const {
    if (in.type() != out.type()) { fail("in is " + text_of(in) + ", out is " + text_of(out)); }
  }

  /// `counts` has one entry a rank, and they sum up to `total`.
  void counts(std::string_view name, std::span<std::size_t const> counts, std::size_t total) const {
    if (counts.size() != static_cast<std::size_t>(size_)) {
      fail(std::string{name} + " has " + std::to_string(counts.size()) + " entries for " +
           std::to_string(size_) + " ranks");
    }
    if (sum_of(counts) != total) {
      fail(std::string{name} + " sum up to " + std::to_string(sum_of(counts)) +
           " elements, the buffer has " + std::to_string(total));
    }
  }

  void own_count(std::span<std::size_t const> counts, const_buffer_view in) const {
    auto const own = counts[static_cast<std::size_t>(rank_)];
    if (own != in.count()) {
      fail("in has " + text_of(in) + ", counts[rank] is " + std::to_string(own));
    }
  }

  void peer(int rank) const {
    if (rank < 0 || rank >= size_) {
      fail("rank " + std::to_string(rank) + " is not in a group of " + std::to_string(size_));
    }
  }

  /// In place means that `in` is exactly where the rank's part of `out` lies (or the reverse).
  void in_place_or_apart(const_buffer_view in, buffer_view out, bool in_place) const {
    auto const a = reinterpret_cast<std::uintptr_t>(in.data());
    auto const b = reinterpret_cast<std::uintptr_t>(out.data());
    if (!in_place && a < b + out.size_bytes() && b < a + in.size_bytes()) {
      fail("in and out overlap, but are not in place");
    }
  }

 private:
  [[noreturn]] void fail(std::string const& message) const {
    throw contract_error{
        std::string{name_of(what_)} + " on rank " + std::to_string(rank_) + ": " + message, at_};
  }

  operation what_;
  int rank_;
  int size_;
  std::source_location at_;
};

}  // namespace gradlane::detail

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/buffer_view.hpp>        // for buffer_view, const_buffer_view
#include <gradlane/detail/collective.hpp>  // for operation, sum_of
#include <gradlane/detail/combine.hpp>     // for accumulator_t, add, greater_of, with_element
#include <gradlane/local/detail/call.hpp>  // for call
#include <gradlane/types.hpp>              // for element, is_floating, reduction, size_of

#include <algorithm>    // for min
#include <array>        // for array
#include <cstddef>      // for size_t, byte
#include <cstring>      // for memmove
#include <span>         // for span
#include <type_traits>  // for is_floating_point_v, type_identity

// What each rank does once all have arrived: its part of the result, for all ranks.
namespace gradlane::local::detail {

/// The calls of all ranks, by rank.
using calls_of_ranks = std::span<call* const>;

/// Copies `count` elements between views of one dtype; in place is no copy.
inline void copy(const_buffer_view in,
                 std::size_t in_begin,
                 buffer_view out,
                 std::size_t out_begin,
                 std::size_t count) {
  auto const* const from = in.data() + in_begin * size_of(in.type());
  auto* const to         = out.data() + out_begin * size_of(out.type());
  if (count > 0 && from != to) { std::memmove(to, from, count * size_of(in.type())); }
}

/// Elements of `in` to reduce, and where they go in `out`.
struct part {
  std::size_t begin;
  std::size_t count;
  std::size_t out_begin;
};

/// A block of elements on its way through the ranks: summed, or the greatest found, in the
/// accumulator's type and rounded once.
template <element T>
class block_reduction {
 public:
  static constexpr std::size_t size = 512;
  using accumulator                 = gradlane::detail::accumulator_t<T>;

  /// The next n elements, n <= size: nothing yet.
  void begin(std::size_t n) noexcept {
    n_     = n;
    empty_ = true;
    result_.fill(accumulator{});
  }

  void take(T const* in, reduction op) noexcept {
    auto const value = [in](std::size_t i) { return static_cast<accumulator>(in[i]); };
    if (empty_) {
      each([&](accumulator, std::size_t i) { return value(i); });
    } else if (op == reduction::max) {
      each([&](accumulator x, std::size_t i) { return gradlane::detail::greater_of(x, value(i)); });
    } else {
      each([&](accumulator x, std::size_t i) { return gradlane::detail::add(x, value(i)); });
    }
    empty_ = false;
  }

  /// A factor of 0 adds exactly nothing, even from NaN.
  void take_scaled(T const* in, float factor) noexcept {
    if constexpr (std::is_floating_point_v<accumulator>) {
      if (factor == 0.0F) { return; }
      auto const wide = static_cast<accumulator>(factor);
      each(
          [&](accumulator x, std::size_t i) { return x + wide * static_cast<accumulator>(in[i]); });
    }
  }

  void divide(std::size_t ranks) noexcept {
    if constexpr (std::is_floating_point_v<accumulator>) {
      auto const divisor = static_cast<accumulator>(ranks);
      each([&](accumulator x, std::size_t) { return x / divisor; });
    }
  }

  [[nodiscard]] std::span<T const> rounded() noexcept {
    for (std::size_t i = 0; i < n_; ++i) { rounded_[i] = static_cast<T>(result_[i]); }
    return {rounded_.data(), n_};
  }

 private:
  template <class F>
  void each(F f) noexcept {
    for (std::size_t i = 0; i < n_; ++i) { result_[i] = f(result_[i], i); }
  }

  std::size_t n_{0};
  bool empty_{true};
  std::array<accumulator, size> result_{};
  std::array<T, size> rounded_{};
};

/// To each destination: the reduction over ranks 0, 1, …, W-1 in this order.
template <element T>
void reduce(calls_of_ranks calls, part where, calls_of_ranks destinations) {
  auto const op     = calls[0]->op;
  auto const scaled = calls[0]->what == operation::all_reduce_scaled;
  auto block        = block_reduction<T>{};
  for (std::size_t at = 0; at < where.count; at += block.size) {
    auto const n = std::min(block.size, where.count - at);
    block.begin(n);
    for (auto const* c : calls) {
      auto const* const in = reinterpret_cast<T const*>(c->in.data()) + where.begin + at;
      if (scaled) {
        block.take_scaled(in, c->factor);
      } else {
        block.take(in, op);
      }
    }
    if (op == reduction::average) { block.divide(calls.size()); }
    auto const result = block.rounded();
    for (auto const* c : destinations) { copy(result, 0, c->out, where.out_begin + at, n); }
  }
}

inline void reduce(calls_of_ranks calls, part where, calls_of_ranks destinations) {
  gradlane::detail::with_element(calls[0]->in.type(), [&]<class T>(std::type_identity<T>) {
    reduce<T>(calls, where, destinations);
  });
}

/// Does rank `rank`'s part of a collective; no two ranks' parts touch the same bytes.
inline void do_part(calls_of_ranks calls, std::size_t rank) {
  auto const size = calls.size();
  auto& mine      = *calls[rank];
  switch (mine.what) {
    case operation::all_reduce:
    case operation::all_reduce_scaled: {  // this rank's 1/W of the elements, to every rank
      auto const count = mine.in.count();
      auto const share = count / size;
      auto const extra = count % size;
      auto const begin = rank * share + std::min(rank, extra);
      auto const n     = share + (rank < extra ? 1 : 0);
      reduce(calls, {begin, n, begin}, calls);
      return;
    }
    case operation::reduce_scatter: {
      auto const count = mine.out.count();
      reduce(calls, {rank * count, count, 0}, calls.subspan(rank, 1));
      return;
    }
    case operation::all_gather:
      for (std::size_t r = 0; r < size; ++r) {
        copy(calls[r]->in, 0, mine.out, r * mine.in.count(), mine.in.count());
      }
      return;
    case operation::all_gather_v:
      for (std::size_t r = 0, at = 0; r < size; at += mine.receive[r], ++r) {
        copy(calls[r]->in, 0, mine.out, at, mine.receive[r]);
      }
      return;
    case operation::broadcast:
      copy(calls[static_cast<std::size_t>(mine.peer)]->in, 0, mine.out, 0, mine.out.count());
      return;
    case operation::all_to_all_v:
      for (std::size_t r = 0, at = 0; r < size; at += mine.receive[r], ++r) {
        auto const before = gradlane::detail::sum_of(std::span{calls[r]->send}.first(rank));
        copy(calls[r]->in, before, mine.out, at, mine.receive[r]);
      }
      return;
    case operation::send:
    case operation::split:
      return;
    case operation::receive:  // the seats of a message: sender, receiver
      copy(calls[0]->in, 0, mine.out, 0, mine.out.count());
      return;
  }
}

}  // namespace gradlane::local::detail

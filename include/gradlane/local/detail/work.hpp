// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/buffer_view.hpp>        // for buffer_view, const_buffer_view
#include <gradlane/detail/collective.hpp>  // for operation, sum_of
#include <gradlane/detail/combine.hpp>     // for accumulator_t, add, greater_of, with_element
#include <gradlane/detail/smaller.hpp>     // for smaller
#include <gradlane/local/detail/call.hpp>  // for call
#include <gradlane/types.hpp>              // for dtype_of, element, reduction, size_of

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

/// Adds the elements of one rank to `sums`, or takes their maximum; the first ones stand alone.
template <class A>
void join(std::span<A> sums, std::span<A> terms, call const& c, bool first) {
  if constexpr (std::is_floating_point_v<A>) {
    if (c.what == operation::all_reduce_scaled) {
      for (auto& term : terms) { term *= static_cast<A>(c.factor); }
    }
  }
  auto const n = sums.size();
  if (first) {
    for (std::size_t i = 0; i < n; ++i) { sums[i] = terms[i]; }
  } else if (c.op == reduction::max) {
    for (std::size_t i = 0; i < n; ++i) {
      sums[i] = gradlane::detail::greater_of(sums[i], terms[i]);
    }
  } else {
    for (std::size_t i = 0; i < n; ++i) { sums[i] = gradlane::detail::add(sums[i], terms[i]); }
  }
}

/// The elements from `begin` on, joined over ranks 0, 1, …, W-1 in this order.
template <element T, class A>
void join_ranks(calls_of_ranks calls, std::size_t begin, std::span<A> sums, std::span<A> terms) {
  auto first = true;
  for (auto const* c : calls) {
    auto const* const in = reinterpret_cast<T const*>(c->in.data()) + begin;
    for (std::size_t i = 0; i < terms.size(); ++i) { terms[i] = static_cast<A>(in[i]); }
    join(sums, terms, *c, first);
    first = false;
  }
  for (auto& sum : sums) {
    if constexpr (std::is_floating_point_v<A>) {
      if (calls[0]->op == reduction::average) { sum /= static_cast<A>(calls.size()); }
    }
  }
}

/// To each destination: Σ or max over the ranks, rounded once at the end.
template <element T>
void reduce(calls_of_ranks calls, part where, calls_of_ranks destinations) {
  using accumulator           = gradlane::detail::accumulator_t<T>;
  constexpr std::size_t block = 512;
  accumulator sums[block];
  accumulator terms[block];
  T rounded[block];
  for (std::size_t at = 0; at < where.count; at += block) {
    auto const n = gradlane::detail::smaller(block, where.count - at);
    join_ranks<T>(calls, where.begin + at, std::span{sums, n}, std::span{terms, n});
    for (std::size_t i = 0; i < n; ++i) { rounded[i] = static_cast<T>(sums[i]); }
    auto const result = const_buffer_view{reinterpret_cast<std::byte*>(rounded), n, dtype_of<T>};
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
      auto const begin = rank * share + gradlane::detail::smaller(rank, extra);
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

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/buffer_view.hpp>        // for buffer_view, const_buffer_view
#include <gradlane/detail/collective.hpp>  // for argument_check, operation, reduces, sum_of
#include <gradlane/types.hpp>              // for dtype, reduction, size_of

#include <cstddef>          // for size_t
#include <source_location>  // for source_location
#include <span>             // for span
#include <utility>          // for forward

namespace gradlane::detail {

/// The collectives of a communicator whose Derived class has `rank`, `size` and
///
///     issue(stream, operation, in, out, peer, at, fill)
///
/// which makes a call, lets `fill(call)` set its `op`, `send` and `receive`, and enqueues it. What
/// can be checked on this rank is checked here, before anything is issued.
template <class Derived, class Stream>
class collective_calls {
 public:
  /// All but the average of integers. Integer sums wrap around.
  [[nodiscard]] static constexpr bool supports(reduction op, dtype type) noexcept {
    return reduces(op, type);
  }

  void all_reduce(Stream& on,
                  const_buffer_view in,
                  buffer_view out,
                  reduction op,
                  std::source_location at = std::source_location::current()) {
    auto const check = checking(operation::all_reduce, at);
    check.reduction_of(op, in.type());
    check.shapes(in, out);
    check.in_place_or_apart(in, out, in.data() == out.data());
    self().issue(
        on, operation::all_reduce, in, out, no_peer, at, [op](auto& call) { call.op = op; });
  }

  void reduce_scatter(Stream& on,
                      const_buffer_view in,
                      buffer_view out,
                      reduction op,
                      std::source_location at = std::source_location::current()) {
    auto const check = checking(operation::reduce_scatter, at);
    check.reduction_of(op, in.type());
    check.shapes(in, out, ranks(), 1);
    check.in_place_or_apart(in, out, own_part(in.data(), out.size_bytes()) == out.data());
    self().issue(
        on, operation::reduce_scatter, in, out, no_peer, at, [op](auto& call) { call.op = op; });
  }

  void all_gather(Stream& on,
                  const_buffer_view in,
                  buffer_view out,
                  std::source_location at = std::source_location::current()) {
    auto const check = checking(operation::all_gather, at);
    check.shapes(in, out, 1, ranks());
    check.in_place_or_apart(in, out, own_part(out.data(), in.size_bytes()) == in.data());
    self().issue(on, operation::all_gather, in, out, no_peer, at, nothing);
  }

  void all_gather_v(Stream& on,
                    const_buffer_view in,
                    buffer_view out,
                    std::span<std::size_t const> counts,
                    std::source_location at = std::source_location::current()) {
    auto const check = checking(operation::all_gather_v, at);
    check.same_type(in, out);
    check.counts("counts", counts, out.count());
    check.own_count(counts, in);
    auto const before =
        sum_of(counts.first(static_cast<std::size_t>(self().rank()))) * size_of(in.type());
    check.in_place_or_apart(in, out, out.data() + before == in.data());
    self().issue(on, operation::all_gather_v, in, out, no_peer, at, [counts](auto& call) {
      call.receive.assign(counts.begin(), counts.end());
    });
  }

  void broadcast(Stream& on,
                 buffer_view x,
                 int root,
                 std::source_location at = std::source_location::current()) {
    checking(operation::broadcast, at).peer(root);
    self().issue(on, operation::broadcast, x, x, root, at, nothing);
  }

  void all_to_all_v(Stream& on,
                    const_buffer_view in,
                    std::span<std::size_t const> send,
                    buffer_view out,
                    std::span<std::size_t const> receive,
                    std::source_location at = std::source_location::current()) {
    auto const check = checking(operation::all_to_all_v, at);
    check.same_type(in, out);
    check.counts("send", send, in.count());
    check.counts("receive", receive, out.count());
    check.in_place_or_apart(in, out, false);
    self().issue(on, operation::all_to_all_v, in, out, no_peer, at, [send, receive](auto& call) {
      call.send.assign(send.begin(), send.end());
      call.receive.assign(receive.begin(), receive.end());
    });
  }

  void send(Stream& on,
            const_buffer_view in,
            int peer,
            std::source_location at = std::source_location::current()) {
    checking(operation::send, at).peer(peer);
    self().issue(on, operation::send, in, {}, peer, at, nothing);
  }

  void receive(Stream& on,
               buffer_view out,
               int peer,
               std::source_location at = std::source_location::current()) {
    checking(operation::receive, at).peer(peer);
    self().issue(on, operation::receive, {}, out, peer, at, nothing);
  }

  /// Where calls wait for no other ones, there is nothing to do.
  template <class F>
  void group(F&& calls) {
    std::forward<F>(calls)();
  }

 protected:
  [[nodiscard]] argument_check checking(operation what, std::source_location at) const noexcept {
    return {what, self().rank(), self().size(), at};
  }

 private:
  friend Derived;
  static constexpr int no_peer  = -1;
  static constexpr auto nothing = [](auto&) {};

  collective_calls() = default;  // for Derived alone

  [[nodiscard]] Derived& self() noexcept { return static_cast<Derived&>(*this); }
  [[nodiscard]] Derived const& self() const noexcept { return static_cast<Derived const&>(*this); }
  [[nodiscard]] std::size_t ranks() const noexcept {
    return static_cast<std::size_t>(self().size());
  }

  /// Where this rank's part of equal parts begins.
  template <class Byte>
  [[nodiscard]] Byte* own_part(Byte* data, std::size_t bytes) const noexcept {
    return data + static_cast<std::size_t>(self().rank()) * bytes;
  }
};

}  // namespace gradlane::detail

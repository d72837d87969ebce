// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/buffer_view.hpp>  // for buffer_view, const_buffer_view
#include <gradlane/types.hpp>        // for dtype, reduction, stream_priority

#include <chrono>    // for nanoseconds
#include <concepts>  // for same_as, convertible_to
#include <cstddef>   // for size_t, byte
#include <cstdint>   // for uint64_t
#include <span>      // for span

namespace gradlane {

/// How long a call that waits for other work may take; `no_deadline` waits for ever.
using timeout                        = std::chrono::nanoseconds;
inline constexpr timeout no_deadline = timeout::max();

/// What first_non_finite writes, on the device: an index into the tensor_list and an element of
/// that tensor. `tensor` is `none` where every value was finite.
struct non_finite_location {
  static constexpr std::uint64_t none = ~std::uint64_t{0};
  std::uint64_t tensor{none};
  std::uint64_t offset{};
};

namespace detail {

struct probe_function {  // what invoke() must accept: trivially copyable, at most 64 bytes
  void operator()() const {}
};

}  // namespace detail

/// A place where memory lives and work runs in stream order without blocking the host.
///
/// `stream`: an in-order queue of work; destruction drains it. Streams run concurrently. A stream
/// is used by one host thread at a time. `event`: `record` marks a point of a stream; `wait` makes
/// a stream wait for the latest record made before the call, and is a no-op before any record; an
/// event may be recorded again, or destroyed, while streams still wait for it. A mark is `done`
/// once the work before it has finished, with or without an error. `buffer`: owns bytes of device
/// memory, 256-byte aligned, uninitialised. `tensor_list`: a list of buffer_views that share one
/// dtype, kept where the device can read it. All four are movable, not copyable.
///
/// Blocking, on the host: `sync` returns once all work of the stream (or the mark of the event) is
/// done; it throws the first error that the stream's work met, which then skips all later work of
/// that stream ("sticky"), or timeout_error after `deadline`. `is_done` never blocks.
///
/// Stream-ordered, never blocking the host; views, lists and scalars must live until the stream
/// has passed the call. `double*`, `float const*` are scalars in device memory.
/// - `zero(s, x)`; `copy(s, in, out)`: same dtype and count.
/// - `upload(s, host, x)`: copies `host` before it returns; at most 64 KiB. `download(s, x, host)`:
///   `host` is written when the stream gets there.
/// - `cast(s, in, out, c)`: out[i] = in[i] · *c, rounded once to out's dtype; c may be null (1);
///   where *c is 0, out becomes 0 even over Inf and NaN.
/// - `scale(s, x, c)`: x[i] *= *c; 0 as in cast; where *c is 1, x is left alone.
/// - `accumulate(s, in, out)`: out[i] += in[i], out fp32 or fp64.
/// - `sum_of_squares(s, list, sum)`: *sum = Σ x², accumulated in fp64 in a fixed order, so that
///   equal input gives equal bits; Inf or NaN where an element is.
/// - `pack(s, in, out, sum)`: out[i] = in[i] tensor by tensor (dtypes may differ), and *sum as
///   above over `in`, in the same pass, with the same bits; sum may be null (plain copy).
/// - `first_non_finite(s, list, sum, where)`: where *sum is finite, *where = {} without reading the
///   list; else the first Inf or NaN in list order.
/// - `invoke(s, f)`: calls f() once, on the device; f is trivially copyable, ≤ 64 bytes.
template <class D>
concept device = requires(D& d,
                          typename D::stream& s,
                          typename D::event& e,
                          typename D::buffer& b,
                          typename D::tensor_list& list,
                          buffer_view x,
                          const_buffer_view in,
                          std::span<buffer_view const> views,
                          std::span<std::byte const> host_in,
                          std::span<std::byte> host_out,
                          float const* coefficient,
                          double* sum,
                          non_finite_location* where,
                          timeout deadline) {
  { d.make_stream(stream_priority::high) } -> std::same_as<typename D::stream>;
  { d.make_event() } -> std::same_as<typename D::event>;
  { d.allocate(std::size_t{}) } -> std::same_as<typename D::buffer>;
  { d.make_tensor_list(views) } -> std::same_as<typename D::tensor_list>;
  { b.data() } -> std::same_as<std::byte*>;
  { b.size() } -> std::convertible_to<std::size_t>;
  { d.record(e, s) } -> std::same_as<void>;
  { d.wait(s, e) } -> std::same_as<void>;
  { d.is_done(e) } -> std::same_as<bool>;
  { d.sync(s) } -> std::same_as<void>;
  { d.sync(s, deadline) } -> std::same_as<void>;
  { d.sync(e, deadline) } -> std::same_as<void>;
  { d.zero(s, x) } -> std::same_as<void>;
  { d.copy(s, in, x) } -> std::same_as<void>;
  { d.upload(s, host_in, x) } -> std::same_as<void>;
  { d.download(s, in, host_out) } -> std::same_as<void>;
  { d.cast(s, in, x, coefficient) } -> std::same_as<void>;
  { d.scale(s, x, coefficient) } -> std::same_as<void>;
  { d.accumulate(s, in, x) } -> std::same_as<void>;
  { d.sum_of_squares(s, list, sum) } -> std::same_as<void>;
  { d.pack(s, list, list, sum) } -> std::same_as<void>;
  { d.first_non_finite(s, list, sum, where) } -> std::same_as<void>;
  { d.invoke(s, detail::probe_function{}) } -> std::same_as<void>;
};

/// What a communicator can do beyond the collectives that every one has.
struct capability_set {
  /// all_reduce_scaled: each rank's input is multiplied by a scalar in device memory on the way.
  bool premultiplied_sum{false};
  /// After a failure, buffers of the operations that were under way may still be written to: they
  /// must not be freed.
  bool writes_after_failure{false};
};

/// A group of ranks whose collectives are enqueued on the streams of device D.
///
/// Every function below but the last group is stream-ordered and never blocks the host. All ranks
/// of the group call the same collectives in the same order, also over different streams. Views
/// are contiguous and live until the stream has passed the call; in and out of one call are equal
/// (in place, as said below) or do not overlap. Counts of 0 are legal and move nothing; a group of
/// one rank moves nothing and copies in to out.
/// - `all_reduce(s, in, out, op)`: same count and dtype on all ranks; same bits on all ranks;
///   bf16 and fp16 are accumulated in fp32.
/// - `all_reduce_scaled(s, in, out, c)`: out = Σ_r c_r · in_r, where capabilities say so and for
/// the
///   dtypes of `supports_scaled`. 0 · Inf and 0 · NaN are NaN: device.scale clears such input.
/// - `reduce_scatter(s, in, out, op)`: in.count() = size() · out.count(); in place where out is the
///   rank's own part of in.
/// - `all_gather(s, in, out)`: out.count() = size() · in.count(); in place as above.
/// - `all_gather_v(s, in, out, counts)`: in.count() = counts[rank()], out.count() = Σ counts.
/// - `broadcast(s, x, root)`.
/// - `all_to_all_v(s, in, send, out, receive)`: blocks back to back in rank order, in elements.
/// - `send(s, in, peer)`, `receive(s, out, peer)`: matched in order per pair of ranks; neither may
///   be relied on to buffer. A communicator may carry out its calls one after the other, also those
///   on different streams, but for those of one group.
/// - `group(f)`: the calls that f() issues may wait for peers at the same time. Those that wait for
///   each other's counterparts, such as a send and a receive with one peer, need different streams.
/// An error (peer failed, deadline passed, aborted) becomes the error of the stream. Once one
/// collective failed, the communicator stays failed.
///
/// On the host: `set_deadline(t)` bounds each later collective, counted from its start on the
/// stream; `deadline()` is what it was set to, `no_deadline` at first. `poll()` makes progress
/// where the communicator needs the caller's thread for it, and throws the first asynchronous
/// error; it never blocks. `abort()` fails all work under way and to come, here and, where the
/// transport allows, on the peers; it is idempotent and never throws. `split(color, key)` and
/// `node_group()` are collective, block, and give a new group (all ranks give a color >= 0).
/// Destructors never communicate.
template <class C, class D>
concept communicator_for = device<D> && requires(C& c,
                                                 C const& constant,
                                                 typename D::stream& s,
                                                 buffer_view x,
                                                 const_buffer_view in,
                                                 std::span<std::size_t const> counts,
                                                 timeout deadline) {
  { C::capabilities } -> std::convertible_to<capability_set>;
  { C::supports(reduction::sum, dtype::fp32) } -> std::same_as<bool>;  // constexpr
  { constant.rank() } noexcept -> std::same_as<int>;
  { constant.size() } noexcept -> std::same_as<int>;
  { c.all_reduce(s, in, x, reduction::sum) } -> std::same_as<void>;
  { c.reduce_scatter(s, in, x, reduction::sum) } -> std::same_as<void>;
  { c.all_gather(s, in, x) } -> std::same_as<void>;
  { c.all_gather_v(s, in, x, counts) } -> std::same_as<void>;
  { c.broadcast(s, x, 0) } -> std::same_as<void>;
  { c.all_to_all_v(s, in, counts, x, counts) } -> std::same_as<void>;
  { c.send(s, in, 0) } -> std::same_as<void>;
  { c.receive(s, x, 0) } -> std::same_as<void>;
  { c.group(detail::probe_function{}) } -> std::same_as<void>;
  { c.set_deadline(deadline) } -> std::same_as<void>;
  { constant.deadline() } -> std::same_as<timeout>;
  { c.poll() } -> std::same_as<void>;
  { c.abort() } noexcept -> std::same_as<void>;
  { c.split(0, 0) } -> std::same_as<C>;
  { c.node_group() } -> std::same_as<C>;
};

/// A communicator for D that scales each rank's input while it reduces.
template <class C, class D>
concept scaling_communicator_for =
    communicator_for<C, D> && C::capabilities.premultiplied_sum &&
    requires(C& c, typename D::stream& s, const_buffer_view in, buffer_view x, float const* k) {
      { C::supports_scaled(dtype::fp32) } -> std::same_as<bool>;  // constexpr
      { c.all_reduce_scaled(s, in, x, k) } -> std::same_as<void>;
    };

}  // namespace gradlane

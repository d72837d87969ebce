// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/buffer_view.hpp>  // for buffer_view, const_buffer_view
#include <gradlane/concepts.hpp>     // for capability_set, scaling_communicator_for, timeout
#include <gradlane/detail/collective_calls.hpp>  // for collective_calls
#include <gradlane/detail/failure.hpp>           // for failure
#include <gradlane/error.hpp>                    // for aborted_error, expects
#include <gradlane/host/device.hpp>              // for device
#include <gradlane/host/stream.hpp>              // for stream
#include <gradlane/local/detail/call.hpp>        // for operation
#include <gradlane/local/detail/member.hpp>      // for member, ticket
#include <gradlane/local/world.hpp>              // for world
#include <gradlane/types.hpp>                    // for dtype, is_floating

#include <cstdint>          // for uint64_t
#include <memory>           // for shared_ptr, make_shared
#include <source_location>  // for source_location
#include <string>           // for string, to_string
#include <utility>          // for move

namespace gradlane::local {

/// A rank that is a thread of this process; its peers are other threads.
///
/// Sums and averages add the ranks 0, 1, …, W-1 in this order, bf16 and fp16 in fp32, and round
/// once: equal input gives equal bits on all ranks and in every run. `max` is NaN where one input
/// is. Each rank reduces 1/W of the elements straight from all ranks' buffers into all ranks'
/// buffers: no temporaries. Nothing is allocated per call once as many have been under way before.
///
/// Calls that do not fit together throw mismatch_error on all ranks. A rank whose communicator is
/// gone while others wait for it, or that hits a deadline, fails the group on all ranks.
///
/// Used by one host thread at a time, with streams of the device it was made for, which it must
/// not outlive.
class communicator : public gradlane::detail::collective_calls<communicator, host::stream> {
 public:
  static constexpr capability_set capabilities{.premultiplied_sum = true};

  /// Made once for each rank.
  /// @throws contract_error where `rank` is not one of `where`.
  communicator(world const& where,
               host::device& device,
               int rank,
               std::source_location at = std::source_location::current())
      : device_{&device} {
    expects(rank >= 0 && rank < where.size(), "local::communicator: no such rank in the world", at);
    member_ = std::make_shared<detail::member>(where.group_, rank);
  }

  [[nodiscard]] int rank() const noexcept { return member_->rank(); }
  [[nodiscard]] int size() const noexcept { return member_->where().size(); }

  /// Collectives issued so far, splits included; the same on all ranks of a correct program.
  [[nodiscard]] std::uint64_t collectives() const noexcept { return member_->collectives(); }

  [[nodiscard]] static constexpr bool supports_scaled(dtype type) noexcept {
    return is_floating(type);
  }

  /// @param coefficient  read when the stream gets there.
  void all_reduce_scaled(host::stream& on,
                         const_buffer_view in,
                         buffer_view out,
                         float const* coefficient,
                         std::source_location at = std::source_location::current()) {
    auto const check = this->checking(operation::all_reduce_scaled, at);
    check.floating(in.type());
    check.shapes(in, out);
    check.in_place_or_apart(in, out, in.data() == out.data());
    issue(
        on, operation::all_reduce_scaled, in, out, no_peer, at, [coefficient](detail::call& call) {
          call.coefficient = coefficient;
        });
  }

  void set_deadline(timeout t) noexcept { member_->set_deadline(t); }
  [[nodiscard]] timeout deadline() const noexcept { return member_->deadline(); }
  void poll() { member_->check(); }

  void abort() noexcept {
    auto why = gradlane::detail::failure{};
    try {
      why = gradlane::detail::failure::of<aborted_error>(
          "aborted by rank " + std::to_string(rank()), std::source_location::current());
    } catch (...) {  // no memory for the text
      why = gradlane::detail::failure::of<aborted_error>({}, std::source_location::current());
    }
    member_->where().fail(std::move(why));
  }

  [[nodiscard]] communicator split(int color,
                                   int key,
                                   std::source_location at = std::source_location::current()) {
    expects(color >= 0, "local::communicator::split: color must not be negative", at);
    auto const call = make(operation::split, {}, {}, at);
    call->color     = color;
    call->key       = key;
    call();
    return {device_, std::make_shared<detail::member>(std::move(call->joined), call->joined_rank)};
  }

  /// The ranks of this group that share a pretend node, in the order of their ranks.
  [[nodiscard]] communicator node_group(std::source_location at = std::source_location::current()) {
    auto const& where = member_->where();
    return split(where.world_rank(rank()) / where.world().ranks_per_node, rank(), at);
  }

 private:
  friend class gradlane::detail::collective_calls<communicator, host::stream>;
  using operation = detail::operation;

  communicator(host::device* device, std::shared_ptr<detail::member> made) noexcept
      : device_{device}, member_{std::move(made)} {}

  [[nodiscard]] detail::ticket make(operation what,
                                    const_buffer_view in,
                                    buffer_view out,
                                    std::source_location at,
                                    int peer = -1) {
    auto made = detail::ticket{member_, member_->make_call(what, peer)};
    made->in  = in;
    made->out = out;
    made->at  = at;
    return made;
  }

  template <class Fill>
  void issue(host::stream& on,
             operation what,
             const_buffer_view in,
             buffer_view out,
             int peer,
             std::source_location at,
             Fill fill) {
    auto call = make(what, in, out, at, peer);
    fill(*call);
    device_->enqueue(on, std::move(call));
  }

  host::device* device_;
  std::shared_ptr<detail::member> member_;
};

static_assert(scaling_communicator_for<communicator, host::device>);

}  // namespace gradlane::local

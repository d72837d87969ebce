// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/balance/cost.hpp>          // for cost_model
#include <gradlane/balance/deal.hpp>          // for deal, deal_rules, dealing
#include <gradlane/concepts.hpp>              // for communicator_for, device, timeout
#include <gradlane/detail/agreement.hpp>      // for sync_agree
#include <gradlane/detail/failure.hpp>        // for failure
#include <gradlane/detail/fnv1a.hpp>          // for fnv1a
#include <gradlane/detail/presort_index.hpp>  // for group_index, header, …
#include <gradlane/detail/presort_plan.hpp>   // for presort_planner, repeated_id
#include <gradlane/detail/presort_slot.hpp>   // for presort_slot
#include <gradlane/error.hpp>                 // for expects, state_error, timeout_error, …
#include <gradlane/sample_window.hpp>         // for presorted_window, sample_array, sample_window
#include <gradlane/types.hpp>                 // for dtype, stream_priority

#include <array>            // for array
#include <chrono>           // for minutes
#include <cstddef>          // for byte, size_t
#include <cstdint>          // for uint32_t, uint64_t
#include <exception>        // for exception
#include <source_location>  // for source_location
#include <span>             // for as_bytes, as_writable_bytes, span
#include <string>           // for string, to_string
#include <string_view>      // for string_view
#include <utility>          // for move
#include <vector>           // for vector

namespace gradlane {

/// How a presort deals, as balance::deal_rules say it; the same on all ranks.
struct presort_options {
  balance::dealing method{balance::dealing::lpt};
  balance::cost_model cost{};
  std::size_t swaps{balance::deal_rules{}.swaps};
  std::size_t micro_steps{1};  ///< parts of a step that a rank computes in turn
  timeout construction_deadline{std::chrono::minutes{5}};
};

/// Deals the samples that the ranks of a group hold among them, so that all have the same work.
///
/// Each rank submits the samples that it has for the next steps, a window. Every rank learns the
/// lengths of all of them, computes the same balance::deal, and only samples that change owner
/// move, without padding, in one all-to-all; each rank then has its samples of every step, back to
/// back. Made for a node's ranks (comm.node_group()), between which bytes are cheap; any group
/// will do. A window is prepared while the window before is trained on:
///
///     submit(0)  sync_take(0)  submit(1)  steps of 0, advance() in each  release(0)  sync_take(1)
///     … own stream  gather ▶ deal ▶ exchange (0)      gather ▶ deal ▶ exchange (1)
///
/// How much a rank receives follows from the lengths, which come from the other ranks; so the
/// exchange can be enqueued only after the host has seen them. That is what `advance` does: in a
/// step or two after `submit` it looks whether the lengths are there and, once they are, deals and
/// enqueues the rest. It never waits; where nobody calls it, sync_take does the same and waits.
/// Over a transport where collectives of two communicators may block each other unless all ranks
/// launch them in the same order (NCCL), call sync_advance at a fixed place instead.
///
/// What a step is given depends on which samples the window holds, not on their order, so a window
/// should be a small part of an epoch: else the same samples meet in every epoch.
///
/// Ranks whose windows do not fit together all get the same error from sync_take, and no sample has
/// moved; the next window may follow. After an error of the communicator the presort stays failed.
///
/// Two windows can be held: one that is trained on and one on its way. Their memory grows to the
/// largest and is then used again, once the streams given to `release` have come so far.
///
/// The communicator must be of its own, and outlive it, as must the device. Not thread-safe. A
/// presort that is destroyed with a window that was not taken, or whose exchange failed, aborts its
/// communicator, else peers could wait for ever: do not submit what the run will not need.
///
/// Source: node-local presorting, Kim et al. 2024, arXiv 2402.02447, section 4.3, where padded
/// samples are gathered on every rank; the window and the exchange of moved samples are ours.
template <device Device, communicator_for<Device> Comm>
class presort {
 public:
  using stream = typename Device::stream;

  /// Collective; blocks.
  /// @param arrays  that a sample consists of.
  /// @throws contract_error for arrays of no bytes or options that do not fit; plan_mismatch_error
  ///   on every rank where ranks were given different ones; timeout_error.
  presort(Device& device,
          Comm& comm,
          std::vector<sample_array> arrays,
          presort_options options = {})
      : device_{device}, comm_{comm}, arrays_{std::move(arrays)}, options_{options} {
    check_options();
    auto const text = describe();
    auto sum        = detail::fnv1a{};
    sum.feed(text);
    detail::sync_agree(
        device_,
        stream_,
        comm_,
        sum.value(),
        [&] { return text; },
        "presort: ranks were made with different arrays or options: ",
        options_.construction_deadline);
  }
  presort(presort const&)            = delete;
  presort& operator=(presort const&) = delete;
  ~presort() {
    if (is_on_its_way() || phase_ == phase::enqueued) { comm_.abort(); }
    try {
      device_.sync(stream_);
    } catch (...) {
      comm_.abort();
      if constexpr (Comm::capabilities.writes_after_failure) {
        index_.leave_memory();
        for (auto& slot : slots_) { slot.leave_memory(); }
      }
    }
  }

  /// Begins to prepare a window; returns at once. Collective.
  ///
  /// @param producer  the stream that writes `window.arrays`, which must stay as they are until the
  ///   stream given to sync_take has passed it; all else of the window is copied.
  /// @throws state_error unless the window before has been taken, and the one before that released.
  void submit(stream& producer, sample_window const& window) {
    check_not_failed("submit");
    if (phase_ != phase::idle) {
      throw state_error{"submit: the window before has not been taken; call sync_take first"};
    }
    if (held_ == slots_.size()) {
      throw state_error{
          "submit: two windows are held; call release for the older one, once no more work that "
          "reads it will be enqueued"};
    }
    guarded([&] {
      steps_ = window.steps;
      own_   = window.arrays;
      device_.record(written_, producer);
      index_.announce(stream_, window, number_);
    });
    phase_ = phase::announced;
  }

  /// Does what can be done now for the window on its way, without waiting; cheap otherwise.
  /// @return whether sync_take would not block.
  /// @throws communication_error where a peer is known to have failed.
  bool advance() {
    check_not_failed("advance");
    guarded([&] {
      comm_.poll();
      while (is_on_its_way() && index_.is_there()) { proceed(); }
    });
    return phase_ == phase::enqueued || phase_ == phase::refused;
  }

  /// The same, but waits for the lengths: the exchange has then been enqueued. At most twice the
  /// deadline; blocks.
  /// @throws timeout_error, communication_error: the presort has then failed.
  void sync_advance(timeout deadline = no_deadline) {
    check_not_failed("sync_advance");
    guarded([&] {
      while (is_on_its_way()) {
        index_.sync(deadline);
        proceed();
      }
    });
  }

  /// sync_advance, then makes `reader` wait for the samples of the window that was submitted last.
  /// Blocks no longer than that.
  /// @return this rank's part; valid until it is released.
  /// @throws state_error where no window was submitted; plan_mismatch_error or contract_error, on
  ///   every rank, where windows do not fit together or to their arrays; as sync_advance.
  [[nodiscard]] presorted_window const& sync_take(stream& reader, timeout deadline = no_deadline) {
    sync_advance(deadline);
    if (phase_ == phase::idle) { throw state_error{"sync_take: no window was submitted"}; }
    auto const refused = phase_ == phase::refused;
    phase_             = phase::idle;
    if (refused) { problem_.raise(); }
    auto const slot = number_ % slots_.size();
    slots_[slot].admit(reader);
    ++number_;
    ++held_;
    return windows_[slot];
  }

  /// Lets the memory of the oldest window that is held be used again, once `reader` has come here.
  /// @throws state_error where none is held.
  void release(stream& reader) {
    if (held_ == 0) { throw state_error{"release: no window is held"}; }
    slots_[(number_ - held_) % slots_.size()].release(reader);
    --held_;
  }

  /// What all ranks agree on, line by line.
  [[nodiscard]] std::string describe() const {
    auto text = "presort: W = " + std::to_string(comm_.size()) + "\n";
    text.append("  deal: ").append(name_of(options_.method));
    text += ", cost " + options_.cost.describe() + ", swaps " + std::to_string(options_.swaps) +
            ", micro-steps " + std::to_string(options_.micro_steps) + "\n";
    for (auto const& array : arrays_) {
      text.append("  array '").append(array.name).append("': ").append(name_of(array.rows));
      text += ", rows of " + std::to_string(array.row_bytes) + " B\n";
    }
    return text;
  }

 private:
  enum class phase : unsigned char {
    idle,
    announced,  // it is not known yet whether the windows of all ranks fit together
    described,  // the samples of other ranks are not known yet
    enqueued,   // the exchange
    refused,    // windows do not fit together
    failed
  };

  [[nodiscard]] bool is_on_its_way() const noexcept {
    return phase_ == phase::announced || phase_ == phase::described;
  }

  void check_options() const {
    expects(options_.micro_steps > 0, "presort: there must be at least one micro-step");
    rules(1).check();
    for (auto const& array : arrays_) {
      expects(array.row_bytes > 0, "presort: an array has rows of no bytes");
    }
  }

  [[nodiscard]] balance::deal_rules rules(std::size_t steps) const {
    return {.method = options_.method,
            .ranks  = static_cast<std::size_t>(comm_.size()) * options_.micro_steps,
            .steps  = steps,
            .cost   = options_.cost,
            .swaps  = options_.swaps};
  }

  /// What has arrived is there: goes on to the next phase.
  void proceed() {
    index_.sync(no_deadline);  // which tells its error
    if (phase_ == phase::announced) {
      if (auto problem = index_.find_fault()) {
        refuse(std::move(*problem));
      } else if (index_.describe(stream_)) {
        phase_ = phase::described;
      } else {
        deal_and_exchange();
      }
    } else {
      index_.collect();
      deal_and_exchange();
    }
  }

  void refuse(detail::failure problem) {
    problem_ = std::move(problem);
    phase_   = phase::refused;
  }

  void deal_and_exchange() {
    auto const refuse_for = [&](std::string const& why) {
      refuse(detail::failure::of<contract_error>("presort: " + why + "; nothing was moved",
                                                 std::source_location::current()));
    };
    auto const& group = index_.group();
    auto const how    = rules(steps_);
    try {
      how.check();
    } catch (contract_error const& bad) { return refuse_for(bad.what()); }
    if (auto const why = detail::repeated_id(group)) { return refuse_for(*why); }
    auto const dealt = balance::deal(group.samples, how);
    auto planner =
        detail::presort_planner{group, dealt, arrays_, static_cast<std::size_t>(comm_.rank())};
    if (auto const why = planner.oversized_batch()) { return refuse_for(*why); }

    auto plan       = planner.plan();
    auto const slot = number_ % slots_.size();
    device_.wait(stream_, written_);
    slots_[slot].exchange(stream_, comm_, plan, arrays_, own_);
    auto sent = std::uint64_t{0};
    for (auto const bytes : plan.send) { sent += bytes; }
    auto const traffic = presort_traffic{.samples       = group.samples.size(),
                                         .moved_samples = plan.moved_samples,
                                         .sent          = sent,
                                         .moved         = plan.moved,
                                         .described     = index_.exchanged_bytes()};
    windows_[slot]     = presorted_window{std::move(plan.result), slots_[slot].memory(), traffic};
    phase_             = phase::enqueued;
  }

  void check_not_failed(std::string_view call) const {
    if (phase_ == phase::failed) {
      throw state_error{std::string{call} +
                        ": an earlier window failed and its communicator was aborted"};
    }
  }

  /// Calls `action`; where it throws, peers may wait in vain: aborts, and says which window it was.
  template <class Action>
  void guarded(Action action) {
    try {
      action();
    } catch (timeout_error const& cause) {
      throw timeout_error{fail("is late", cause)};
    } catch (aborted_error const& cause) {
      throw aborted_error{fail("was aborted", cause)};
    } catch (communication_error const& cause) {
      throw communication_error{fail("failed", cause)};
    } catch (std::exception const& cause) {
      static_cast<void>(fail("failed", cause));
      throw;
    }
  }

  [[nodiscard]] std::string fail(std::string_view what, std::exception const& cause) {
    phase_ = phase::failed;
    comm_.abort();
    auto text = "presort: rank " + std::to_string(comm_.rank()) + ": window " +
                std::to_string(number_) + " ";
    return text.append(what).append(" (").append(cause.what()).append(")");
  }

  Device& device_;
  Comm& comm_;
  std::vector<sample_array> arrays_;
  presort_options options_;

  phase phase_{phase::idle};
  std::uint64_t number_{0};  // of the window that is submitted next, or on its way
  std::size_t held_{0};      // windows that were taken and not released
  std::size_t steps_{1};
  std::vector<std::span<std::byte const>> own_;  // the arrays of the window on its way
  detail::failure problem_;

  std::array<presorted_window, 2> windows_;
  std::array<detail::presort_slot<Device>, 2> slots_{detail::presort_slot<Device>{device_},
                                                     detail::presort_slot<Device>{device_}};
  detail::presort_index<Device, Comm> index_{device_, comm_, arrays_};
  typename Device::event written_{device_.make_event()};
  stream stream_{device_.make_stream(stream_priority::normal)};  // last: drains first
};

}  // namespace gradlane

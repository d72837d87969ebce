// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/detail/collective.hpp>      // for is_point_to_point
#include <gradlane/detail/failure.hpp>         // for failure
#include <gradlane/detail/sorted_indices.hpp>  // for indices, sorted
#include <gradlane/error.hpp>                  // for aborted_error, timeout_error
#include <gradlane/local/detail/call.hpp>      // for call, describe, fit
#include <gradlane/local/detail/work.hpp>      // for do_part
#include <gradlane/local/error.hpp>            // for mismatch_error
#include <gradlane/local/script.hpp>           // for script, draw

#include <atomic>              // for atomic
#include <chrono>              // for steady_clock, nanoseconds, duration
#include <condition_variable>  // for condition_variable
#include <cstddef>             // for size_t
#include <cstdint>             // for uint64_t
#include <list>                // for list
#include <memory>              // for shared_ptr, weak_ptr
#include <mutex>               // for mutex, unique_lock, scoped_lock
#include <source_location>     // for source_location
#include <string>              // for string, to_string
#include <utility>             // for move, pair
#include <vector>              // for vector

namespace gradlane::local::detail {

using gradlane::detail::failure;
using clock      = std::chrono::steady_clock;
using time_point = clock::time_point;

class group;

/// What all groups of a world share.
struct world_state {
  world_state(int rank_count, int per_node, script faults)
      : ranks{rank_count},
        ranks_per_node{per_node},
        plan{std::move(faults)},
        calls(static_cast<std::size_t>(rank_count)) {}

  int const ranks;
  int const ranks_per_node;
  script const plan;
  std::vector<std::atomic<std::uint64_t>> calls;  // made so far, by rank

  std::mutex mutex;                          // guards what follows
  std::vector<std::weak_ptr<group>> groups;  // every group ever made
  failure aborted;                           // by world::abort
};

/// The place where the ranks of one communicator meet.
///
/// A collective is identified by its sequence number, a message by (from, to, sequence number).
/// Each rank's stream thread arrives, waits until all have, does its part straight from and to
/// the other ranks' buffers, and leaves once all are done. What is under way when the group fails
/// is completed; nobody leaves while others may still touch its buffers.
class group {
 public:
  /// @param members  the world ranks of ranks 0, 1, …
  group(std::shared_ptr<world_state> world, std::vector<int> members)
      : world_{std::move(world)}, members_{std::move(members)}, left_(members_.size(), false) {
    constexpr std::size_t open_at_once = 8;
    for (std::size_t i = 0; i < open_at_once; ++i) { add_meeting(); }
  }

  [[nodiscard]] int size() const noexcept { return static_cast<int>(members_.size()); }
  [[nodiscard]] int world_rank(int rank) const noexcept {
    return members_[static_cast<std::size_t>(rank)];
  }
  [[nodiscard]] world_state& world() const noexcept { return *world_; }

  /// Makes the group known to world::abort.
  static void enrol(std::shared_ptr<group> const& made) {
    auto& world  = *made->world_;
    auto aborted = failure{};
    {
      auto const lock = std::scoped_lock{world.mutex};
      world.groups.emplace_back(made);
      aborted = world.aborted;
    }
    if (aborted) { made->fail(std::move(aborted)); }
  }

  /// Carries out a call of `rank`: returns once its part is done on all ranks, or throws.
  void meet(int rank, call& mine) {
    auto const until = deadline_of(mine);
    auto lock        = std::unique_lock{mutex_};
    if (failure_) { failure_.raise(); }
    auto& here      = meeting_of(rank, mine);
    auto const seat = here.is_message() ? std::size_t{mine.what == operation::receive}
                                        : static_cast<std::size_t>(rank);
    wait_for_turn(lock, here, seat, mine, until);
    arrive(here, seat, rank, mine);
    if (!wait(here.changed, lock, until, [&] { return here.complete || failure_; })) {
      fail_locked(failure::of<timeout_error>(late_text(here, rank, mine), mine.at));
    }
    if (!here.complete) {
      here.calls[seat] = nullptr;  // nobody looks at this rank's buffers from here on
      failure_.raise();
    }
    lock.unlock();
    do_part(here.calls, seat);
    lock.lock();
    if (++here.done == here.calls.size()) { here.changed.notify_all(); }
    here.changed.wait(lock, [&] { return here.done == here.calls.size(); });
    if (++here.gone == here.calls.size()) { here.in_use = false; }
  }

  /// Sleeps, but not beyond a failure of the group.
  void pause(std::chrono::nanoseconds time) {
    auto lock = std::unique_lock{mutex_};
    failed_.wait_for(lock, time, [&] { return static_cast<bool>(failure_); });
  }

  /// Stands still until the group fails, and throws that.
  [[noreturn]] void play_dead() {
    auto lock = std::unique_lock{mutex_};
    failed_.wait(lock, [&] { return static_cast<bool>(failure_); });
    failure_.raise();
  }

  void check() {
    auto const lock = std::scoped_lock{mutex_};
    if (failure_) { failure_.raise(); }
  }

  /// Ends all waiting with this failure, unless the group has failed before.
  void fail(failure why) noexcept {
    auto const lock = std::scoped_lock{mutex_};
    fail_locked(std::move(why));
  }

  /// No call of this rank comes any more: whoever waits for one, now or later, is told.
  void leave(int rank) noexcept {
    auto const lock                       = std::scoped_lock{mutex_};
    left_[static_cast<std::size_t>(rank)] = true;
    for (auto const& m : meetings_) { fail_if_deserted(m); }
  }

 private:
  struct meeting {
    meeting() = default;

    std::condition_variable changed;
    std::vector<call*> calls;  // by seat; null before the arrival
    int from{-1};              // of a message: its two ranks
    int to{-1};
    std::uint64_t sequence{};
    std::size_t done{0};
    std::size_t gone{0};
    bool complete{false};  // all have arrived, and their calls fit
    bool in_use{false};

    [[nodiscard]] bool is_message() const noexcept { return from >= 0; }
    [[nodiscard]] int rank_of(std::size_t seat) const noexcept {
      if (!is_message()) { return static_cast<int>(seat); }
      return seat == 0 ? from : to;
    }
    [[nodiscard]] std::string name() const {
      if (!is_message()) { return "collective " + std::to_string(sequence); }
      return "message " + std::to_string(sequence) + " from rank " + std::to_string(from) +
             " to rank " + std::to_string(to);
    }
  };

  [[nodiscard]] static time_point deadline_of(call const& c) {
    auto const now = clock::now();
    return c.deadline < time_point::max() - now ? now + c.deadline : time_point::max();
  }

  template <class Predicate>
  static bool wait(std::condition_variable& changed,
                   std::unique_lock<std::mutex>& lock,
                   time_point until,
                   Predicate predicate) {
    if (until != time_point::max()) { return changed.wait_until(lock, until, predicate); }
    changed.wait(lock, predicate);
    return true;
  }

  meeting* add_meeting() {
    auto& made = meetings_.emplace_back();
    made.calls.reserve(members_.size() + 2);
    return &made;
  }

  /// The meeting that the call belongs to, opened by the first to arrive.
  [[nodiscard]] meeting& meeting_of(int rank, call const& c) {
    auto const message = gradlane::detail::is_point_to_point(c.what);
    auto const sends   = c.what == operation::send;
    auto from          = -1;
    auto to            = -1;
    if (message) {
      from = sends ? rank : c.peer;
      to   = sends ? c.peer : rank;
    }
    auto* unused = static_cast<meeting*>(nullptr);
    for (auto& m : meetings_) {
      if (m.in_use && m.from == from && m.to == to && m.sequence == c.sequence) { return m; }
      if (!m.in_use) { unused = &m; }
    }
    if (unused == nullptr) { unused = add_meeting(); }
    unused->calls.assign(message ? 2 : members_.size(), nullptr);
    unused->from     = from;
    unused->to       = to;
    unused->sequence = c.sequence;
    unused->done     = 0;
    unused->gone     = 0;
    unused->complete = false;
    unused->in_use   = true;
    return *unused;
  }

  /// Where the script says so, waits until those ranks have arrived that come first this time.
  void wait_for_turn(std::unique_lock<std::mutex>& lock,
                     meeting& here,
                     std::size_t seat,
                     call const& mine,
                     time_point until) {
    auto const& plan = world_->plan;
    if (!plan.reorder || here.is_message()) { return; }
    auto const order = [&](std::size_t s) {
      return std::pair{draw(~plan.seed, here.sequence, static_cast<std::uint64_t>(s)), s};
    };
    static_cast<void>(wait(here.changed, lock, until, [&] {
      if (failure_) { return true; }
      for (std::size_t s = 0; s < here.calls.size(); ++s) {
        auto const dead = is_dead_at(plan, world_rank(static_cast<int>(s)), mine.index);
        if (order(s) < order(seat) && here.calls[s] == nullptr && !dead) { return false; }
      }
      return true;
    }));
  }

  void arrive(meeting& here, std::size_t seat, int rank, call& mine) {
    here.calls[seat] = &mine;
    auto missing     = std::size_t{0};
    for (std::size_t s = 0; s < here.calls.size(); ++s) {
      auto const* const other = here.calls[s];
      if (other == nullptr) {
        ++missing;
      } else if (other != &mine && !fit(mine, *other)) {
        fail_locked(failure::of<mismatch_error>(
            "rank " + std::to_string(here.rank_of(s)) + " calls " + describe(*other) + ", rank " +
                std::to_string(rank) + " calls " + describe(mine) + " as " + here.name() +
                "; all ranks must make the same calls in the same order",
            mine.at));
        return;
      }
    }
    fail_if_deserted(here);
    if (missing == 0 && !failure_) { complete(here, mine); }
    here.changed.notify_all();
  }

  void complete(meeting& here, call& mine) {
    if (mine.what == operation::all_to_all_v && !blocks_fit(here, mine)) { return; }
    if (mine.what == operation::split) { form_groups(here); }
    here.complete = true;
  }

  [[nodiscard]] bool blocks_fit(meeting& here, call const& mine) {
    for (std::size_t s = 0; s < here.calls.size(); ++s) {
      for (std::size_t r = 0; r < here.calls.size(); ++r) {
        auto const sent     = here.calls[s]->send[r];
        auto const expected = here.calls[r]->receive[s];
        if (sent == expected) { continue; }
        fail_locked(failure::of<mismatch_error>(
            "all_to_all_v as " + here.name() + ": rank " + std::to_string(s) + " sends " +
                std::to_string(sent) + " elements to rank " + std::to_string(r) +
                ", which expects " + std::to_string(expected),
            mine.at));
        return false;
      }
    }
    return true;
  }

  /// One group a color, its ranks ordered by (key, rank).
  void form_groups(meeting& here) const {
    auto const& calls = here.calls;
    auto const order  = gradlane::detail::sorted(
        gradlane::detail::indices(calls.size()), [&](std::size_t a, std::size_t b) {
          return calls[a]->color != calls[b]->color ? calls[a]->color < calls[b]->color
                                                     : calls[a]->key < calls[b]->key;
        });
    for (std::size_t begin = 0, end = 0; begin < order.size(); begin = end) {
      auto const color = calls[order[begin]]->color;
      auto members     = std::vector<int>{};
      for (; end < order.size() && calls[order[end]]->color == color; ++end) {
        calls[order[end]]->joined_rank = static_cast<int>(end - begin);
        members.push_back(members_[order[end]]);
      }
      auto const made = std::make_shared<group>(world_, std::move(members));
      enrol(made);
      for (auto i = begin; i < end; ++i) { calls[order[i]]->joined = made; }
    }
  }

  void fail_locked(failure why) noexcept {
    if (failure_) { return; }
    failure_ = std::move(why);
    failed_.notify_all();
    for (auto& m : meetings_) { m.changed.notify_all(); }
  }

  void fail_if_deserted(meeting const& here) {
    if (!here.in_use || here.complete) { return; }
    for (std::size_t s = 0; s < here.calls.size(); ++s) {
      auto const rank = here.rank_of(s);
      if (here.calls[s] != nullptr || !left_[static_cast<std::size_t>(rank)]) { continue; }
      auto const* const waiting = first_arrival(here);
      if (waiting == nullptr) { continue; }
      fail_locked(failure::of<aborted_error>(
          "rank " + std::to_string(rank) + " has given up its communicator, while " +
              describe(*waiting) + " waits for it as " + here.name() +
              "; either its work failed, or it makes fewer calls than the others",
          waiting->at));
    }
  }

  [[nodiscard]] static call const* first_arrival(meeting const& here) noexcept {
    for (auto const* c : here.calls) {
      if (c != nullptr) { return c; }
    }
    return nullptr;
  }

  [[nodiscard]] std::string late_text(meeting const& here, int rank, call const& mine) const {
    auto missing = std::string{};
    for (std::size_t s = 0; s < here.calls.size(); ++s) {
      if (here.calls[s] == nullptr) {
        missing.append(missing.empty() ? "" : ", ").append(std::to_string(here.rank_of(s)));
      }
    }
    auto const seconds = std::chrono::duration<double>{mine.deadline}.count();
    return describe(mine) + " as " + here.name() + ": rank " + std::to_string(rank) + " waited " +
           std::to_string(seconds) + " s, not arrived: rank " + missing;
  }

  std::shared_ptr<world_state> world_;
  std::vector<int> members_;

  std::mutex mutex_;  // guards what follows
  std::condition_variable failed_;
  std::list<meeting> meetings_;  // as many as were ever open at once
  std::vector<bool> left_;
  failure failure_;
};

}  // namespace gradlane::local::detail

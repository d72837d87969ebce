// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/concepts.hpp>            // for timeout, no_deadline
#include <gradlane/local/detail/call.hpp>   // for call
#include <gradlane/local/detail/group.hpp>  // for group
#include <gradlane/local/error.hpp>         // for scripted_error
#include <gradlane/local/script.hpp>        // for delay_of, fails_at, is_dead_at
#include <gradlane/types.hpp>               // for reduction

#include <atomic>   // for atomic
#include <cstddef>  // for size_t
#include <cstdint>  // for uint64_t
#include <list>     // for list
#include <memory>   // for shared_ptr
#include <mutex>    // for mutex, scoped_lock
#include <string>   // for to_string
#include <utility>  // for move
#include <vector>   // for vector

namespace gradlane::local::detail {

/// One rank of a group: what its communicator and its calls under way share.
class member {
 public:
  member(std::shared_ptr<group> where, int rank)
      : group_{std::move(where)},
        rank_{rank},
        sent_(static_cast<std::size_t>(group_->size())),
        received_(static_cast<std::size_t>(group_->size())) {}
  member(member const&)            = delete;
  member& operator=(member const&) = delete;
  ~member() { group_->leave(rank_); }

  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] group& where() const noexcept { return *group_; }

  // --- by the host thread

  /// A call with its numbers, otherwise empty.
  [[nodiscard]] call* make_call(operation what, int peer) {
    auto* made = take();
    made->what = what;
    made->peer = peer;
    made->send.clear();
    made->receive.clear();
    made->op          = reduction::sum;
    made->coefficient = nullptr;
    made->factor      = 1.0F;
    made->deadline    = deadline_;
    auto& numbers     = group_->world().calls[static_cast<std::size_t>(world_rank())];
    made->index       = numbers.fetch_add(1, std::memory_order_relaxed);
    made->sequence    = counter(what, peer)++;
    return made;
  }

  [[nodiscard]] std::uint64_t collectives() const noexcept { return collectives_; }
  void set_deadline(timeout t) noexcept { deadline_ = t; }
  [[nodiscard]] timeout deadline() const noexcept { return deadline_; }

  void check() {
    {
      auto const lock = std::scoped_lock{mutex_};
      if (failure_) { failure_.raise(); }
    }
    group_->check();
  }

  // --- by any thread

  void give_back(call* used) noexcept {
    auto const lock = std::scoped_lock{mutex_};
    free_.push_back(used);  // has room: as much as there are calls
  }

  /// Carries out the call as the script says.
  void run(call& mine) {
    {
      auto const lock = std::scoped_lock{mutex_};
      if (failure_) { failure_.raise(); }
    }
    auto const& plan = group_->world().plan;
    auto const delay = delay_of(plan, world_rank(), mine.index);
    if (delay.count() > 0) { group_->pause(delay); }
    if (is_dead_at(plan, world_rank(), mine.index)) { group_->play_dead(); }
    if (fails_at(plan, world_rank(), mine.index)) {
      auto const lock = std::scoped_lock{mutex_};
      failure_ = failure::of<scripted_error>("rank " + std::to_string(rank_) + " fails in call " +
                                                 std::to_string(mine.index) + ", " +
                                                 describe(mine) + ", as its script says",
                                             mine.at);
      failure_.raise();
    }
    if (mine.coefficient != nullptr) { mine.factor = *mine.coefficient; }
    group_->meet(rank_, mine);
  }

 private:
  [[nodiscard]] int world_rank() const noexcept { return group_->world_rank(rank_); }

  [[nodiscard]] std::uint64_t& counter(operation what, int peer) {
    if (what == operation::send) { return sent_[static_cast<std::size_t>(peer)]; }
    if (what == operation::receive) { return received_[static_cast<std::size_t>(peer)]; }
    return collectives_;
  }

  [[nodiscard]] call* take() {
    auto const lock = std::scoped_lock{mutex_};
    if (free_.empty()) { add_calls(); }
    auto* const taken = free_.back();
    free_.pop_back();
    return taken;
  }

  void add_calls() {
    constexpr std::size_t batch = 32;
    free_.reserve(calls_.size() + batch);
    for (std::size_t i = 0; i < batch; ++i) {
      auto& made = calls_.emplace_back();
      made.send.reserve(sent_.size());
      made.receive.reserve(sent_.size());
      free_.push_back(&made);
    }
  }

  std::shared_ptr<group> group_;
  int rank_;
  timeout deadline_{no_deadline};  // this and the counters belong to the host thread
  std::uint64_t collectives_{0};
  std::vector<std::uint64_t> sent_;      // by peer
  std::vector<std::uint64_t> received_;  // by peer

  std::mutex mutex_;  // guards what follows
  std::list<call> calls_;
  std::vector<call*> free_;
  failure failure_;  // of this rank alone
};

/// A call on its way to a stream; gives it back to the member when it ends, run or not.
class ticket {
 public:
  ticket(std::shared_ptr<member> owner, call* held) noexcept
      : owner_{std::move(owner)}, call_{held} {}
  ticket(ticket const&)            = delete;
  ticket& operator=(ticket const&) = delete;
  ticket(ticket&& other) noexcept  = default;  // leaves it without an owner
  ticket& operator=(ticket&&)      = delete;
  ~ticket() {
    if (owner_) { owner_->give_back(call_); }
  }

  [[nodiscard]] call& operator*() const noexcept { return *call_; }
  [[nodiscard]] call* operator->() const noexcept { return call_; }
  void operator()() const { owner_->run(*call_); }

 private:
  std::shared_ptr<member> owner_;
  call* call_;
};

}  // namespace gradlane::local::detail

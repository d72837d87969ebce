// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/detail/failure.hpp>      // for failure
#include <gradlane/error.hpp>               // for expects, aborted_error
#include <gradlane/local/detail/group.hpp>  // for group, world_state
#include <gradlane/local/script.hpp>        // for script

#include <memory>           // for shared_ptr, make_shared
#include <mutex>            // for scoped_lock
#include <source_location>  // for source_location
#include <string>           // for string
#include <utility>          // for move
#include <vector>           // for vector

namespace gradlane::local {

struct world_options {
  /// Ranks 0 … ranks_per_node-1 share the first pretend node, and so on; 0: all share one.
  int ranks_per_node{0};
  script faults{};
};

/// W ranks that are threads of this process. Thread-safe.
///
/// `run` makes one; make one yourself to start the threads in your own way: each then makes its
/// communicator, once.
class world {
 public:
  /// @param ranks  at least 1.
  explicit world(int ranks,
                 world_options options   = {},
                 std::source_location at = std::source_location::current())
      : state_{make_state(ranks, std::move(options), at)} {
    auto members = std::vector<int>{};
    for (int rank = 0; rank < ranks; ++rank) { members.push_back(rank); }
    group_ = std::make_shared<detail::group>(state_, std::move(members));
    detail::group::enrol(group_);
  }

  [[nodiscard]] int size() const noexcept { return state_->ranks; }

  /// Fails all calls under way and to come of all communicators, with an aborted_error that says
  /// why.
  void abort(std::string why, std::source_location at = std::source_location::current()) {
    auto const reason = gradlane::detail::failure::of<aborted_error>(std::move(why), at);
    auto groups       = std::vector<std::weak_ptr<detail::group>>{};
    {
      auto const lock = std::scoped_lock{state_->mutex};
      if (state_->aborted) { return; }
      state_->aborted = reason;
      groups.swap(state_->groups);  // who enrols later fails at once
    }
    for (auto const& g : groups) {
      if (auto const alive = g.lock()) { alive->fail(reason); }
    }
  }

 private:
  friend class communicator;

  [[nodiscard]] static std::shared_ptr<detail::world_state> make_state(int ranks,
                                                                       world_options options,
                                                                       std::source_location at) {
    expects(ranks >= 1, "local::world: needs at least one rank", at);
    expects(options.ranks_per_node >= 0, "local::world: ranks_per_node is negative", at);
    auto const per_node = options.ranks_per_node == 0 ? ranks : options.ranks_per_node;
    return std::make_shared<detail::world_state>(ranks, per_node, std::move(options.faults));
  }

  std::shared_ptr<detail::world_state> state_;
  std::shared_ptr<detail::group> group_;
};

}  // namespace gradlane::local

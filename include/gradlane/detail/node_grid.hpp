// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/concepts.hpp>         // for communicator_for, device, timeout
#include <gradlane/detail/exchange.hpp>  // for sync_all_gather
#include <gradlane/error.hpp>            // for communication_error, contract_error
#include <gradlane/types.hpp>            // for stream_priority

#include <algorithm>  // for min
#include <cstddef>    // for size_t
#include <cstdint>    // for uint64_t
#include <optional>   // for optional
#include <string>     // for string, to_string
#include <vector>     // for vector

namespace gradlane::detail {

/// Bounds the calls to a communicator that are made meanwhile, beside what bounds them already.
template <class Comm>
class deadline_scope {
 public:
  deadline_scope(Comm& comm, timeout deadline) : comm_{comm}, before_{comm.deadline()} {
    comm.set_deadline(std::min(before_, deadline));
  }
  deadline_scope(deadline_scope const&)            = delete;
  deadline_scope& operator=(deadline_scope const&) = delete;
  ~deadline_scope() { comm_.set_deadline(before_); }

 private:
  Comm& comm_;
  timeout before_;
};

/// The ranks of a communicator as a grid: a row for each node, in the order of the nodes' lowest
/// ranks, a column for each place in a node, in the order of ranks.
template <class Comm>
class node_grid {
 public:
  /// Collective; blocks.
  /// @param node  that this rank is on, as reduce::adasum_hierarchical says.
  /// @throws contract_error, on all ranks alike, where nodes are not equally large; timeout_error,
  ///   communication_error: `comm` has been aborted.
  template <device Device>
    requires communicator_for<Comm, Device>
  node_grid(Device& device, Comm& comm, int node, timeout deadline) {
    auto const scope = deadline_scope{comm, deadline};
    try {
      form(device, comm, node, deadline);
    } catch (communication_error const&) {
      comm.abort();
      abort();
      throw;
    }
  }

  [[nodiscard]] Comm& node() noexcept { return *node_; }  ///< this rank's row
  [[nodiscard]] Comm const& node() const noexcept { return *node_; }
  [[nodiscard]] Comm& across() noexcept { return *across_; }  ///< this rank's column
  [[nodiscard]] std::size_t ranks_per_node() const noexcept {
    return static_cast<std::size_t>(node_->size());
  }

  void set_deadline(timeout t) {
    node_->set_deadline(t);
    across_->set_deadline(t);
  }
  void poll() {
    node_->poll();
    across_->poll();
  }
  void abort() noexcept {
    if (node_) { node_->abort(); }
    if (across_) { across_->abort(); }
  }

  /// "  nodes: N = 2, of L = 4 ranks each"
  [[nodiscard]] std::string describe() const {
    return "  nodes: N = " + std::to_string(across_->size()) +
           ", of L = " + std::to_string(node_->size()) + " ranks each\n";
  }

 private:
  template <device Device>
  void form(Device& device, Comm& comm, int node, timeout deadline) {
    auto s = device.make_stream(stream_priority::normal);
    node_.emplace(node < 0 ? comm.node_group() : comm.split(node, comm.rank()));
    auto const own    = static_cast<std::uint64_t>(comm.rank());
    auto const lowest = sync_all_gather(device, s, *node_, own, deadline)[0];
    check(sync_all_gather(device, s, comm, std::uint64_t{ranks_per_node()}, deadline));
    // the same key on all ranks of a node, so that all columns have the nodes in one order
    across_.emplace(comm.split(node_->rank(), static_cast<int>(lowest)));
  }

  static void check(std::vector<std::uint64_t> const& sizes) {
    for (auto r = std::size_t{1}; r < sizes.size(); ++r) {
      if (sizes[r] == sizes[0]) { continue; }
      throw contract_error{
          "reduce::adasum_hierarchical: the node of rank 0 has " + std::to_string(sizes[0]) +
          " ranks, that of rank " + std::to_string(r) + " has " + std::to_string(sizes[r]) +
          "; nodes must be equally large: group the ranks by adasum_hierarchical::node, or use "
          "reduce::adasum"};
    }
  }

  std::optional<Comm> node_;
  std::optional<Comm> across_;
};

}  // namespace gradlane::detail

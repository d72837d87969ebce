// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/adasum.hpp>                 // for adasum_all_reduce
#include <gradlane/adasum/device.hpp>          // for adasum_device
#include <gradlane/buckets/parts.hpp>          // for check_parts, equal_part
#include <gradlane/clip/policy.hpp>            // for adasum_hierarchical
#include <gradlane/clip/report.hpp>            // for step_record, step_report
#include <gradlane/clip/rules.hpp>             // for pipeline_rules
#include <gradlane/concepts.hpp>               // for communicator_for, timeout
#include <gradlane/detail/adasum_reducer.hpp>  // for adasum_buffers, fill_orthogonality
#include <gradlane/detail/bucket_reducer.hpp>  // for bucket_reducer, check_reductions
#include <gradlane/detail/node_grid.hpp>       // for node_grid
#include <gradlane/element_range.hpp>          // for element_range
#include <gradlane/gradient_buckets.hpp>       // for gradient_buckets

#include <cstddef>   // for size_t
#include <memory>    // for make_unique, unique_ptr
#include <optional>  // for optional
#include <string>    // for string
#include <utility>   // for move

namespace gradlane::detail {

/// By reduce-scatter inside the node, Adasum across the nodes on what each rank then holds, and
/// all-gather inside the node.
template <adasum_device Device, communicator_for<Device> Comm>
class hierarchical_reducer final : public bucket_reducer<Device> {
 public:
  using stream = typename Device::stream;

  /// @throws contract_error for a dtype that the communicator cannot reduce.
  hierarchical_reducer(gradient_buckets<Device>& buckets,
                       Comm& comm,
                       reduce::adasum_hierarchical policy)
      : buckets_{buckets}, comm_{comm}, policy_{policy} {
    check_reductions<Comm>(buckets, policy.in_node);
  }

  /// @throws contract_error, on all ranks, where nodes are not equally large, and where buckets do
  ///   not fall into as many equal parts.
  void sync_reset(timeout deadline) override {
    if (!grid_) { grid_.emplace(buckets_.device(), comm_, policy_.node, deadline); }
    check_parts(buckets_.plan(), grid_->ranks_per_node(), "ranks of a node");
    auto list = adasum_buffers(buckets_, [&](std::size_t b) { return shard(b); });
    reduction_.reset();
    reduction_.emplace(
        buckets_.device(), grid_->across(), grid_->node(), std::move(list), deadline);
  }

  [[nodiscard]] element_range own_part(std::size_t bucket) const override {
    return {.begin = 0, .end = buckets_.plan().buckets()[bucket].count};
  }

  void reduce(stream& s, std::size_t bucket, float const* /*none*/) override {
    auto const wire = buckets_.bucket(bucket).wire;
    auto const own  = shard(bucket);
    auto const part = wire.subview(own.begin, own.count());
    grid_->set_deadline(comm_.deadline());
    grid_->node().reduce_scatter(s, wire, part, policy_.in_node);
    reduction_->reduce(s, bucket);
    grid_->node().all_gather(s, part, wire);
  }

  void poll() override { grid_->poll(); }
  void abort() noexcept override {
    if (grid_) { grid_->abort(); }
  }

  void measure(stream& s, step_record* step) override {
    reduction_->add_up_orthogonality(s, step->orthogonality);
  }
  void download(stream& s) override { reduction_->download(s); }
  void fill(step_report& report) const override {
    fill_orthogonality(report, buckets_.plan(), *reduction_);
  }

  [[nodiscard]] std::string describe() const override { return grid_->describe(); }

 private:
  [[nodiscard]] element_range shard(std::size_t bucket) const {
    return equal_part(
        buckets_.plan().buckets()[bucket].count, grid_->node().rank(), grid_->node().size());
  }

  gradient_buckets<Device>& buckets_;
  Comm& comm_;
  reduce::adasum_hierarchical policy_;
  std::optional<node_grid<Comm>> grid_;  // made where all ranks are known to want one
  std::optional<adasum_all_reduce<Device, Comm>> reduction_;
};

template <adasum_device Device, communicator_for<Device> Comm>
[[nodiscard]] std::unique_ptr<bucket_reducer<Device>> make_reducer(
    gradient_buckets<Device>& buckets,
    Comm& comm,
    pipeline_rules const& /*rules*/,
    reduce::adasum_hierarchical const& policy) {
  return std::make_unique<hierarchical_reducer<Device, Comm>>(buckets, comm, policy);
}

}  // namespace gradlane::detail

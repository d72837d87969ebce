// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/buckets/parts.hpp>          // for bucket_parts, shard_by
#include <gradlane/buckets/plan.hpp>           // for bucket_plan
#include <gradlane/buffer_view.hpp>            // for buffer_view
#include <gradlane/concepts.hpp>               // for communicator_for, device
#include <gradlane/detail/leave_for_ever.hpp>  // for leave_for_ever
#include <gradlane/error.hpp>                  // for expects
#include <gradlane/gradient_buckets.hpp>       // for gradient_buckets
#include <gradlane/types.hpp>                  // for floating_element, size_of, stream_priority

#include <cstddef>  // for size_t
#include <span>     // for span
#include <utility>  // for move
#include <vector>   // for vector

namespace gradlane {

/// The parameters of a model in the layout of their gradients' plan, each rank updating its part of
/// every bucket: what goes with reduce::sharded.
///
/// After the optimizer has updated shard(b) of all buckets, gather() brings all parts to all ranks,
/// bucket by bucket in the order of the next forward, which waits for each one's own event alone:
///
///     compute      optimizer ──●gather ──wait(p)── layer of p ──wait(q)── layer of q ──▶
///     gather              wait ▶ all-gather, last bucket of the plan ▶ ... ▶ first bucket
///
/// Optimizer state of a rank: as many elements as its shards. Device and communicator must outlive
/// this object, which waits in its destructor for the work that it has enqueued. All ranks make the
/// same calls in the same order as other collectives of the communicator. Not thread-safe.
template <device Device, communicator_for<Device> Comm>
class parameter_shards {
 public:
  using stream = typename Device::stream;

  /// Blocks.
  /// @param plan  of the gradients; parameters have their dtypes, and start as zeros, as do gaps.
  /// @param by    as of reduce::sharded.
  /// @throws contract_error by elements, where a bucket does not fall into equal parts.
  parameter_shards(Device& device, Comm& comm, bucket_plan plan, shard_by by = shard_by::elements)
      : device_{device},
        comm_{comm},
        plan_{std::move(plan)},
        by_{by},
        parts_{plan_, comm.size(), by} {
    for (auto const& layout : plan_.buckets()) {
      memory_.push_back(device.allocate(layout.count * size_of(layout.type)));
      gathered_.push_back(device.make_event());
      device.zero(gather_, whole(memory_.size() - 1));
    }
    device.sync(gather_);
  }

  /// In the memory of bound gradients, so that it takes no more: from the time when the optimizer
  /// has read the gradients of a step until backward writes those of the next, which must wait for
  /// all parameters. What a model reads all the time lies elsewhere, and is copied from here. The
  /// buckets must outlive this object, and not be laid out anew.
  /// @throws contract_error also for gradients that are not bound.
  parameter_shards(gradient_buckets<Device>& gradients,
                   Comm& comm,
                   shard_by by = shard_by::elements)
      : device_{gradients.device()},
        comm_{comm},
        plan_{gradients.plan()},
        by_{by},
        parts_{plan_, comm.size(), by},
        lender_{&gradients} {
    expects(gradients.bound(), "parameter_shards: only bound gradients have memory to lend");
    for (auto b = std::size_t{0}; b < plan_.buckets().size(); ++b) {
      gathered_.push_back(device_.make_event());
    }
  }

  parameter_shards(parameter_shards const&)            = delete;
  parameter_shards& operator=(parameter_shards const&) = delete;

  ~parameter_shards() {
    try {
      device_.sync(gather_);
    } catch (...) {  // collectives were skipped, in which peers wait
      comm_.abort();
      if constexpr (Comm::capabilities.writes_after_failure) {
        detail::leave_for_ever(memory_);
        if (lender_ != nullptr) { lender_->leave_memory(); }
      }
    }
  }

  [[nodiscard]] bucket_plan const& plan() const noexcept { return plan_; }

  /// Where a parameter lies; empty for frozen and empty ones, shared by tied ones.
  /// @throws contract_error for an unknown parameter.
  [[nodiscard]] buffer_view parameter(std::size_t index) const {
    auto const& slot = plan_.slot(index);
    if (!slot) { return {nullptr, 0, plan_.parameters()[index].type}; }
    return whole(slot->bucket).subview(slot->offset, slot->count);
  }

  /// The same as a typed span. @throws contract_error also where T is not its dtype.
  template <floating_element T>
  [[nodiscard]] std::span<T> parameter(std::size_t index) const {
    return parameter(index).template as<T>();
  }

  /// Whether this rank updates a parameter, by shard_by::parameters: exactly one rank does, but
  /// nobody one without a slot of its own, so that tied ones are updated once.
  /// @throws contract_error for an unknown parameter.
  [[nodiscard]] bool owns(std::size_t index) const {
    auto const& slot = plan_.slot(index);
    if (!slot || plan_.owner(index) != index || by_ == shard_by::elements) { return false; }
    auto const own = parts_.part(slot->bucket, comm_.rank());
    return slot->offset >= own.begin && slot->offset < own.end;
  }

  /// This rank's part of a bucket, as an optimizer that works by elements updates it; beside it lie
  /// the same elements of gradients in reduction_pipeline::result(bucket).
  /// @throws contract_error for an unknown bucket.
  [[nodiscard]] buffer_view shard(std::size_t bucket) const {
    expects(bucket < gathered_.size(), "parameter_shards: no such bucket");
    auto const own = parts_.part(bucket, comm_.rank());
    return whole(bucket).subview(own.begin, own.count());
  }

  /// Enqueues the gathering of all parameters behind the work on `updated`. Until it has passed a
  /// parameter it reads and writes its bucket, so that shards are updated again only behind a
  /// wait() for all that lies in them, as a forward pass makes it.
  void gather(stream& updated) {
    device_.record(updated_, updated);
    device_.wait(gather_, updated_);
    for (auto b = gathered_.size(); b-- > 0;) {
      if (by_ == shard_by::elements) {
        comm_.all_gather(gather_, shard(b), whole(b));
      } else {
        comm_.all_gather_v(gather_, shard(b), whole(b), parts_.counts(b));
      }
      device_.record(gathered_[b], gather_);
    }
  }

  /// Makes `s` wait for a parameter as the last gather() brings it; at once for one without a slot.
  /// @throws contract_error for an unknown parameter.
  void wait(std::size_t parameter, stream& s) {
    if (auto const& slot = plan_.slot(parameter)) { device_.wait(s, gathered_[slot->bucket]); }
  }

 private:
  [[nodiscard]] buffer_view whole(std::size_t bucket) const {
    if (lender_ != nullptr) { return lender_->bucket(bucket).gradient; }
    auto const& layout = plan_.buckets()[bucket];
    return {memory_[bucket].data(), layout.count, layout.type};
  }

  Device& device_;
  Comm& comm_;
  bucket_plan plan_;
  shard_by by_;
  bucket_parts parts_;
  gradient_buckets<Device>* lender_{};            // of memory; null: it is our own
  std::vector<typename Device::buffer> memory_;   // by bucket
  std::vector<typename Device::event> gathered_;  // by bucket
  typename Device::event updated_{device_.make_event()};
  stream gather_{device_.make_stream(stream_priority::high)};  // last: it drains first
};

}  // namespace gradlane

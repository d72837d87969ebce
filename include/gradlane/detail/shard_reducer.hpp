// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/buckets/parts.hpp>          // for check_parts, equal_part, shard_by
#include <gradlane/clip/policy.hpp>            // for sharded
#include <gradlane/clip/rules.hpp>             // for pipeline_rules
#include <gradlane/concepts.hpp>               // for communicator_for, device, timeout
#include <gradlane/detail/bucket_reducer.hpp>  // for bucket_reducer, check_reductions
#include <gradlane/detail/owner_reducer.hpp>   // for owner_reducer
#include <gradlane/element_range.hpp>          // for element_range
#include <gradlane/gradient_buckets.hpp>       // for gradient_buckets
#include <gradlane/types.hpp>                  // for reduction

#include <cstddef>  // for size_t
#include <memory>   // for make_unique, unique_ptr

namespace gradlane::detail {

/// By the communicator's reduce_scatter: rank r gets part r of W equal parts of each bucket.
template <device Device, communicator_for<Device> Comm>
class shard_reducer final : public bucket_reducer<Device> {
 public:
  /// @throws contract_error for a dtype that the communicator cannot reduce.
  shard_reducer(gradient_buckets<Device>& buckets, Comm& comm, reduction operation)
      : buckets_{buckets}, comm_{comm}, operation_{operation} {
    check_reductions<Comm>(buckets, operation);
  }

  /// @throws contract_error, on all ranks, where a bucket does not fall into equal parts: another
  ///   order of the gradients makes other buckets.
  void sync_reset(timeout /*deadline*/) override {
    check_parts(buckets_.plan(), static_cast<std::size_t>(comm_.size()), "ranks");
  }

  [[nodiscard]] element_range own_part(std::size_t bucket) const override {
    return equal_part(buckets_.plan().buckets()[bucket].count, comm_.rank(), comm_.size());
  }

  void reduce(typename Device::stream& s,
              std::size_t bucket,
              float const* /*coefficient*/) override {
    auto const wire = buckets_.bucket(bucket).wire;
    auto const own  = own_part(bucket);
    comm_.reduce_scatter(s, wire, wire.subview(own.begin, own.count()), operation_);
  }

 private:
  gradient_buckets<Device>& buckets_;
  Comm& comm_;
  reduction operation_;
};

template <device Device, communicator_for<Device> Comm, class Average>
[[nodiscard]] std::unique_ptr<bucket_reducer<Device>> make_reducer(
    gradient_buckets<Device>& buckets,
    Comm& comm,
    pipeline_rules const& rules,
    reduce::sharded<Average> const& policy) {
  if (policy.by == shard_by::parameters) {
    return std::make_unique<owner_reducer<Device, Comm>>(buckets, comm, rules.operation);
  }
  return std::make_unique<shard_reducer<Device, Comm>>(buckets, comm, rules.operation);
}

}  // namespace gradlane::detail

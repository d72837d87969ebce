// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/clip/report.hpp>       // for step_record, step_report
#include <gradlane/clip/rules.hpp>        // for pipeline_rules
#include <gradlane/concepts.hpp>          // for communicator_for, device, timeout
#include <gradlane/element_range.hpp>     // for element_range
#include <gradlane/error.hpp>             // for contract_error
#include <gradlane/gradient_buckets.hpp>  // for gradient_buckets
#include <gradlane/types.hpp>             // for name_of, reduction

#include <cstddef>  // for size_t
#include <memory>   // for make_unique, unique_ptr
#include <string>   // for string

namespace gradlane::detail {

/// @throws contract_error for a wire's dtype that the communicator cannot reduce.
template <class Comm, device Device>
void check_reductions(gradient_buckets<Device>& buckets, reduction operation) {
  for (auto b = std::size_t{0}; b < buckets.plan().buckets().size(); ++b) {
    auto const type = buckets.bucket(b).wire.type();
    if (!Comm::supports(operation, type)) {
      throw contract_error{"clip_allreduce: the communicator has no " +
                           std::string{name_of(operation)} + " of " + std::string{name_of(type)} +
                           "; set storage_options::reduce"};
    }
  }
}

/// How a pipeline joins its buckets over the ranks: what a reduction policy comes to.
template <device Device>
class bucket_reducer {
 public:
  using stream = typename Device::stream;

  bucket_reducer()                                 = default;
  bucket_reducer(bucket_reducer const&)            = delete;
  bucket_reducer& operator=(bucket_reducer const&) = delete;
  virtual ~bucket_reducer()                        = default;

  /// Makes ready for the buckets as they are laid out now. Collective; blocks; nothing may be in
  /// flight. Where it throws, the caller aborts all groups, but for a contract_error, which all
  /// ranks get alike.
  virtual void sync_reset(timeout deadline) = 0;

  /// The elements of a bucket that this rank has the results of; others are undefined.
  [[nodiscard]] virtual element_range own_part(std::size_t bucket) const = 0;

  /// Enqueues the reduction of a bucket's wire, in place.
  /// @param coefficient  of this rank, in device memory, or null: 1. Not null only where the rules
  ///   say in_reduction, and scales(bucket).
  virtual void reduce(stream& s, std::size_t bucket, float const* coefficient) = 0;

  [[nodiscard]] virtual bool scales(std::size_t /*bucket*/) const { return false; }

  /// As of the communicator, for the groups that were split from it.
  virtual void poll() {}
  virtual void abort() noexcept {}

  /// Whole lines on how the ranks are grouped; empty where they are not.
  [[nodiscard]] virtual std::string describe() const { return {}; }

  /// Enqueues, behind all reductions of a step, what they tell of it in device memory.
  virtual void measure(stream& /*s*/, step_record* /*step*/) {}

  /// Enqueues the copy to the host of what fill() tells.
  virtual void download(stream& /*s*/) {}
  virtual void fill(step_report& /*report*/) const {}
};

/// By the communicator's own sum or average.
template <device Device, communicator_for<Device> Comm>
class all_reducer final : public bucket_reducer<Device> {
 public:
  /// @throws contract_error for a dtype that the communicator cannot reduce.
  all_reducer(gradient_buckets<Device>& buckets, Comm& comm, reduction operation)
      : buckets_{buckets}, comm_{comm}, operation_{operation} {
    check_reductions<Comm>(buckets, operation);
  }

  void sync_reset(timeout /*deadline*/) override {}

  [[nodiscard]] element_range own_part(std::size_t bucket) const override {
    return {.begin = 0, .end = buckets_.plan().buckets()[bucket].count};
  }

  void reduce(typename Device::stream& s, std::size_t bucket, float const* coefficient) override {
    auto const wire = buckets_.bucket(bucket).wire;
    if constexpr (scaling_communicator_for<Comm, Device>) {
      if (coefficient != nullptr) {
        comm_.all_reduce_scaled(s, wire, wire, coefficient);
        return;
      }
    }
    comm_.all_reduce(s, wire, wire, operation_);
  }

  [[nodiscard]] bool scales([[maybe_unused]] std::size_t bucket) const override {
    if constexpr (scaling_communicator_for<Comm, Device>) {
      return Comm::supports_scaled(buckets_.bucket(bucket).wire.type());
    }
    return false;
  }

 private:
  gradient_buckets<Device>& buckets_;
  Comm& comm_;
  reduction operation_;
};

/// The reducer of a policy; policies that are no averages have overloads of their own.
template <device Device, communicator_for<Device> Comm, class Average>
[[nodiscard]] std::unique_ptr<bucket_reducer<Device>> make_reducer(
    gradient_buckets<Device>& buckets,
    Comm& comm,
    pipeline_rules const& rules,
    Average const& /*policy*/) {
  return std::make_unique<all_reducer<Device, Comm>>(buckets, comm, rules.operation);
}

}  // namespace gradlane::detail

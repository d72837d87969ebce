// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/buckets/parameter.hpp>      // for detect_ties, parameter
#include <gradlane/buckets/plan.hpp>           // for bucket_plan
#include <gradlane/buffer_view.hpp>            // for buffer_view
#include <gradlane/concepts.hpp>               // for device
#include <gradlane/detail/leave_for_ever.hpp>  // for leave_for_ever
#include <gradlane/error.hpp>                  // for contract_error, expects
#include <gradlane/types.hpp>  // for dtype, floating_element, size_of, stream_priority

#include <cstddef>   // for size_t
#include <cstdint>   // for uintptr_t
#include <optional>  // for optional
#include <span>      // for span
#include <string>    // for string
#include <utility>   // for move
#include <vector>    // for vector

namespace gradlane {

/// In which dtypes gradients are added up and reduced; unset means the gradient's own.
struct storage_options {
  std::optional<dtype> accumulate{};  ///< fp32 or fp64: gradlane adds micro-steps up in it
  std::optional<dtype> reduce{};      ///< what goes over the wire
  bool write_back{true};  ///< convert the result into the gradients; else read it by reduced()
};

/// One bucket's memory on a device. Views of a bucket hold the same elements at the same offsets.
template <device Device>
struct bucket_storage {
  buffer_view gradient;     ///< bound gradients; empty in copy mode
  buffer_view accumulator;  ///< sums of micro-steps; empty without storage_options::accumulate
  buffer_view wire;         ///< what is reduced; the same memory as one of the above, or its own
  typename Device::tensor_list gradients;    ///< each parameter's gradient where the trainer wrote
  typename Device::tensor_list accumulated;  ///< the same in the accumulator
  typename Device::tensor_list reduced;      ///< the same in `wire`
  std::vector<buffer_view> tensors;          ///< host copy of `gradients`

  /// The wire is the memory that the trainer wrote to, so nothing needs to be moved.
  [[nodiscard]] bool in_place() const noexcept { return wire.data() == gradient.data(); }
};

/// The gradients of a plan on a device.
///
/// Bound (the first constructor): gradients live in the buckets; the trainer writes through
/// `gradient(i)` and nothing is copied. Copied (the second): the trainer keeps its own tensors,
/// which are packed into the buckets and unpacked by the pipeline.
///
/// Gradients are uninitialised. Gaps between them are zeros at first, are scaled and reduced along
/// with them, and never read by norms: a step that makes a bucket NaN leaves NaN there. Making and
/// relayout() block. The device, and the trainer's tensors, must outlive this object; a pipeline
/// that uses it must be destroyed first.
template <device Device>
class gradient_buckets {
 public:
  /// Bound. @throws contract_error for dtypes that cannot serve.
  gradient_buckets(Device& device, bucket_plan plan, storage_options options = {})
      : device_{&device}, plan_{std::move(plan)}, options_{options} {
    allocate();
  }

  /// Copied. @param tensors  the gradient of each parameter, in the plan's order; contiguous, on
  ///   the device; ignored for frozen and empty parameters.
  /// @throws contract_error where a tensor differs from its parameter in count or dtype, where it
  ///   is not aligned for its dtype, or where tensors overlap that are not tied.
  gradient_buckets(Device& device,
                   bucket_plan plan,
                   std::span<buffer_view const> tensors,
                   storage_options options = {})
      : device_{&device},
        plan_{std::move(plan)},
        options_{options},
        tensors_{tensors.begin(), tensors.end()} {
    check_tensors();
    allocate();
  }

  [[nodiscard]] bucket_plan const& plan() const noexcept { return plan_; }
  [[nodiscard]] storage_options const& options() const noexcept { return options_; }
  [[nodiscard]] Device& device() const noexcept { return *device_; }
  [[nodiscard]] bool bound() const noexcept { return tensors_.empty(); }

  /// Bytes of device memory held.
  [[nodiscard]] std::size_t size_bytes() const noexcept {
    auto sum = std::size_t{0};
    for (auto const& buffer : buffers_) { sum += buffer.size(); }
    return sum;
  }

  /// Where the trainer writes the gradient of a parameter, and reads the result; empty for frozen
  /// and empty parameters. Valid until relayout().
  /// @throws contract_error for an unknown parameter.
  [[nodiscard]] buffer_view gradient(std::size_t parameter) const {
    if (!bound() && plan_.slot(parameter)) { return tensors_[parameter]; }
    return part(parameter, &bucket_storage<Device>::gradient);
  }

  /// The same as a typed span. @throws contract_error also where T is not its dtype.
  template <floating_element T>
  [[nodiscard]] std::span<T> gradient(std::size_t parameter) const {
    return gradient(parameter).template as<T>();
  }

  /// The reduced gradient in the dtype of the reduction, valid from finish() to the next begin().
  [[nodiscard]] buffer_view reduced(std::size_t parameter) const {
    return part(parameter, &bucket_storage<Device>::wire);
  }

  /// A bucket's memory, for pipelines. @throws contract_error for an unknown bucket.
  [[nodiscard]] bucket_storage<Device>& bucket(std::size_t index) {
    expects(index < storage_.size(), "gradient_buckets: no such bucket");
    return storage_[index];
  }

  /// Lays the buckets out anew, for a plan over the same parameters; contents are lost and views
  /// are invalid. Pipelines call this; nothing may be in flight.
  void relayout(bucket_plan plan) {
    plan_ = std::move(plan);
    allocate();
  }

  /// Never frees the memory held so far: a transport that failed may still write to it. Pipelines
  /// call this.
  void leave_memory() noexcept { detail::leave_for_ever(buffers_); }

 private:
  [[nodiscard]] buffer_view part(std::size_t parameter,
                                 buffer_view bucket_storage<Device>::* member) const {
    auto const& slot = plan_.slot(parameter);
    if (!slot) { return {nullptr, 0, plan_.parameters()[parameter].type}; }
    return (storage_[slot->bucket].*member).subview(slot->offset, slot->count);
  }

  void check_tensors() const {
    auto parameters = std::vector<parameter>{plan_.parameters().begin(), plan_.parameters().end()};
    for (auto& p : parameters) { p.tied_to.clear(); }
    detect_ties(parameters, tensors_);
    for (auto i = std::size_t{0}; i < parameters.size(); ++i) {
      auto const& p      = parameters[i];
      auto const address = reinterpret_cast<std::uintptr_t>(tensors_[i].data());
      if (plan_.slot(i) && address == 0) {
        throw contract_error{"gradient_buckets: the tensor of '" + p.name + "' has no memory"};
      }
      if (p.trainable && address % size_of(p.type) != 0) {
        throw contract_error{"gradient_buckets: the tensor of '" + p.name +
                             "' is not aligned for its dtype"};
      }
      auto const owner = plan_.owner(i);
      if (!plan_.slot(i)) { continue; }
      if (tensors_[i].data() != tensors_[owner].data()) {
        throw contract_error{"gradient_buckets: '" + p.name + "' is tied to '" +
                             parameters[owner].name + "' but has memory of its own"};
      }
      if (!p.tied_to.empty() && plan_.owner(plan_.index_of(p.tied_to)) != owner) {
        throw contract_error{"gradient_buckets: '" + p.name + "' shares memory with '" + p.tied_to +
                             "' but is not tied to it; make the plan from the parameters that "
                             "detect_ties() gives"};
      }
    }
  }

  void check_options() const {
    auto const& [accumulate, reduce, write_back] = options_;
    expects(!accumulate || *accumulate == dtype::fp32 || *accumulate == dtype::fp64,
            "gradient_buckets: accumulate must be fp32 or fp64");
    expects(!reduce || is_floating(*reduce), "gradient_buckets: reduce must be a floating dtype");
  }

  [[nodiscard]] buffer_view make_view(std::size_t count, dtype type) {
    buffers_.push_back(device_->allocate(count * size_of(type)));
    return {buffers_.back().data(), count, type};
  }

  void allocate() {
    check_options();
    storage_.clear();
    buffers_.clear();
    auto setup = device_->make_stream(stream_priority::normal);
    for (auto const& layout : plan_.buckets()) {
      auto const count = layout.count;
      auto gradient    = bound() ? make_view(count, layout.type) : buffer_view{};
      auto accumulator =
          options_.accumulate ? make_view(count, *options_.accumulate) : buffer_view{};
      auto const& source = options_.accumulate ? accumulator : gradient;
      auto const wanted  = options_.reduce.value_or(options_.accumulate.value_or(layout.type));
      auto wire = !source.empty() && source.type() == wanted ? source : make_view(count, wanted);
      for (auto const& memory : {gradient, accumulator, wire}) { zero_gaps(setup, layout, memory); }
      auto tensors = std::vector<buffer_view>{};
      for (auto const owner : layout.parameters) {
        auto const& slot = *plan_.slot(owner);
        tensors.push_back(bound() ? gradient.subview(slot.offset, slot.count) : tensors_[owner]);
      }
      storage_.push_back({.gradient    = gradient,
                          .accumulator = accumulator,
                          .wire        = wire,
                          .gradients   = device_->make_tensor_list(tensors),
                          .accumulated = make_list(layout, accumulator),
                          .reduced     = make_list(layout, wire),
                          .tensors     = std::move(tensors)});
    }
    device_->sync(setup);
  }

  /// Nobody writes there, yet scaling and reductions go over whole buckets.
  void zero_gaps(typename Device::stream& setup, bucket_layout const& layout, buffer_view memory) {
    if (memory.empty()) { return; }
    auto end = std::size_t{0};
    for (auto const owner : layout.parameters) {
      auto const& slot = *plan_.slot(owner);
      device_->zero(setup, memory.subview(end, slot.offset - end));
      end = slot.offset + slot.count;
    }
    device_->zero(setup, memory.subview(end, memory.count() - end));
  }

  [[nodiscard]] typename Device::tensor_list make_list(bucket_layout const& layout,
                                                       buffer_view whole) {
    auto parts = std::vector<buffer_view>{};
    for (auto const owner : layout.parameters) {
      auto const& slot = *plan_.slot(owner);
      if (!whole.empty()) { parts.push_back(whole.subview(slot.offset, slot.count)); }
    }
    return device_->make_tensor_list(parts);
  }

  Device* device_;
  bucket_plan plan_;
  storage_options options_;
  std::vector<buffer_view> tensors_;              // by parameter; empty where bound
  std::vector<typename Device::buffer> buffers_;  // outlive the views and lists below
  std::vector<bucket_storage<Device>> storage_;   // by bucket
};

template <class Device>
gradient_buckets(Device&, bucket_plan) -> gradient_buckets<Device>;
template <class Device>
gradient_buckets(Device&, bucket_plan, storage_options) -> gradient_buckets<Device>;
template <class Device>
gradient_buckets(Device&, bucket_plan, std::vector<buffer_view> const&) -> gradient_buckets<Device>;
template <class Device>
gradient_buckets(Device&, bucket_plan, std::vector<buffer_view> const&, storage_options)
    -> gradient_buckets<Device>;

}  // namespace gradlane

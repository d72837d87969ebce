// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/buckets/parts.hpp>          // for bucket_parts, shard_by
#include <gradlane/buffer_view.hpp>            // for buffer_view
#include <gradlane/concepts.hpp>               // for communicator_for, device, timeout
#include <gradlane/detail/bucket_reducer.hpp>  // for bucket_reducer
#include <gradlane/detail/leave_for_ever.hpp>  // for leave_for_ever
#include <gradlane/element_range.hpp>          // for element_range
#include <gradlane/gradient_buckets.hpp>       // for gradient_buckets
#include <gradlane/types.hpp>                  // for dtype, reduction, size_of

#include <algorithm>  // for max
#include <cstddef>    // for size_t
#include <optional>   // for optional
#include <span>       // for as_bytes, span
#include <vector>     // for vector

namespace gradlane::detail {

/// Sums whole parameters at the ranks that own them: an all-to-all brings an owner the other ranks'
/// gradients, which it adds up in rank order, in fp64 for fp64 and else in fp32, rounded once.
///
/// Averages are multiplied by 1/W as a float. Workspace: W times the largest part of a bucket, and
/// where the wire has 16 bits that part once more in fp32.
template <device Device, communicator_for<Device> Comm>
class owner_reducer final : public bucket_reducer<Device> {
 public:
  using stream = typename Device::stream;

  owner_reducer(gradient_buckets<Device>& buckets, Comm& comm, reduction operation)
      : buckets_{buckets}, comm_{comm}, averages_{operation == reduction::average} {}
  owner_reducer(owner_reducer const&)            = delete;
  owner_reducer& operator=(owner_reducer const&) = delete;
  ~owner_reducer() override {
    if constexpr (Comm::capabilities.writes_after_failure) {
      try {
        device().sync(done_, no_deadline);
      } catch (...) { leave_for_ever(received_); }
    }
  }

  void sync_reset(timeout deadline) override {
    auto const& plan = buckets_.plan();
    auto received    = std::size_t{0};
    auto sums        = std::size_t{0};
    parts_.emplace(plan, comm_.size(), shard_by::parameters);
    for (auto b = std::size_t{0}; b < plan.buckets().size(); ++b) {
      auto const type = buckets_.bucket(b).wire.type();
      auto const own  = own_part(b).count();
      received        = std::max(received, own * ranks() * size_of(type));
      if (is_16_bit(type)) { sums = std::max(sums, own * sizeof(float)); }
    }
    received_        = device().allocate(ranks() > 1 ? received : 0);
    sums_            = device().allocate(ranks() > 1 ? sums : 0);
    share_           = device().allocate(sizeof(float));
    auto const share = 1.0F / static_cast<float>(comm_.size());
    auto setup       = device().make_stream(stream_priority::normal);
    device().upload(
        setup, std::as_bytes(std::span{&share, 1}), buffer_view{share_.data(), 1, dtype::fp32});
    device().sync(setup, deadline);
  }

  [[nodiscard]] element_range own_part(std::size_t bucket) const override {
    return parts_->part(bucket, comm_.rank());
  }

  void reduce(stream& s, std::size_t bucket, float const* /*none*/) override {
    if (ranks() == 1) { return; }
    auto const wire = buckets_.bucket(bucket).wire;
    auto const part = own_part(bucket);
    auto const own  = wire.subview(part.begin, part.count());
    auto const from = buffer_view{received_.data(), ranks() * own.count(), wire.type()};
    receives_.assign(ranks(), own.count());
    comm_.all_to_all_v(s, wire, parts_->counts(bucket), from, receives_);
    if (!own.empty()) { add_up(s, from, own); }
    device().record(done_, s);
  }

 private:
  [[nodiscard]] Device& device() const noexcept { return buckets_.device(); }
  [[nodiscard]] std::size_t ranks() const noexcept {
    return static_cast<std::size_t>(comm_.size());
  }
  [[nodiscard]] static bool is_16_bit(dtype type) noexcept { return size_of(type) == 2; }

  void add_up(stream& s, buffer_view from, buffer_view own) {
    auto const narrow = is_16_bit(own.type());
    auto const sum    = narrow ? buffer_view{sums_.data(), own.count(), dtype::fp32} : own;
    auto const* share = averages_ ? reinterpret_cast<float const*>(share_.data()) : nullptr;
    auto const first  = from.subview(0, own.count());
    narrow ? device().cast(s, first, sum, nullptr) : device().copy(s, first, sum);
    for (auto r = std::size_t{1}; r < ranks(); ++r) {
      device().accumulate(s, from.subview(r * own.count(), own.count()), sum);
    }
    if (narrow) {
      device().cast(s, sum, own, share);
    } else if (share != nullptr) {
      device().scale(s, own, share);
    }
  }

  gradient_buckets<Device>& buckets_;
  Comm& comm_;
  bool averages_;
  std::optional<bucket_parts> parts_;
  std::vector<std::size_t> receives_;
  typename Device::buffer received_{device().allocate(0)};  // (ranks, own elements) of a bucket
  typename Device::buffer sums_{device().allocate(0)};      // fp32 (own elements)
  typename Device::buffer share_{device().allocate(0)};     // float: 1/W
  typename Device::event done_{device().make_event()};
};

}  // namespace gradlane::detail

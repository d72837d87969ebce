// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/buckets/parts.hpp>          // for bucket_parts, shard_by
#include <gradlane/buffer_view.hpp>            // for buffer_view
#include <gradlane/concepts.hpp>               // for communicator_for, device, timeout
#include <gradlane/detail/bucket_reducer.hpp>  // for bucket_reducer
#include <gradlane/detail/leave_for_ever.hpp>  // for leave_for_ever
#include <gradlane/element_range.hpp>          // for element_range
#include <gradlane/gradient_buckets.hpp>       // for gradient_buckets
#include <gradlane/types.hpp>                  // for dtype, reduction, size_of, stream_priority

#include <algorithm>  // for max
#include <cmath>      // for nextafter
#include <cstddef>    // for size_t
#include <optional>   // for optional
#include <span>       // for as_bytes, span
#include <vector>     // for vector

namespace gradlane::detail {

/// Positive floats whose sum is a positive double, largest first: of one sign, so that Inf times
/// each of them is the same.
[[nodiscard]] inline std::vector<float> float_parts(double value) {
  auto parts = std::vector<float>{};
  while (value > 0) {
    auto part = static_cast<float>(value);
    if (static_cast<double>(part) > value) { part = std::nextafter(part, 0.0F); }
    parts.push_back(part);
    value -= static_cast<double>(part);
  }
  return parts;
}

/// Sums whole parameters at the ranks that own them: an all-to-all brings an owner the other ranks'
/// gradients, which it adds up in rank order, in fp64 for fp64 and else in fp32, rounded once.
///
/// Averages are multiplied by 1/W as a float, in fp64 by as many floats as make up the double 1/W.
/// Workspace: W times the largest part of a bucket, and where the wire has 16 bits that part once
/// more in fp32.
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
    received_ = device().allocate(ranks() > 1 ? received : 0);
    sums_     = device().allocate(ranks() > 1 ? sums : 0);
    upload_shares(deadline);
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

  void upload_shares(timeout deadline) {
    auto const share = 1.0 / static_cast<double>(comm_.size());
    auto const parts = float_parts(share);
    auto floats      = std::vector{static_cast<float>(share)};
    for (auto const part : parts) { floats.push_back(part); }
    parts_of_share_ = parts.size();
    shares_         = device().allocate(floats.size() * sizeof(float));
    auto setup      = device().make_stream(stream_priority::normal);
    device().upload(setup,
                    std::as_bytes(std::span{floats}),
                    buffer_view{shares_.data(), floats.size(), dtype::fp32});
    device().sync(setup, deadline);
  }

  /// Sums in the block of rank 0, or aside where that has 16 bits.
  void add_up(stream& s, buffer_view from, buffer_view own) {
    auto const narrow = is_16_bit(own.type());
    auto const first  = from.subview(0, own.count());
    auto const sum    = narrow ? buffer_view{sums_.data(), own.count(), dtype::fp32} : first;
    if (narrow) { device().cast(s, first, sum, nullptr); }
    for (auto r = std::size_t{1}; r < ranks(); ++r) {
      device().accumulate(s, from.subview(r * own.count(), own.count()), sum);
    }
    auto const* const shares = reinterpret_cast<float const*>(shares_.data());
    if (averages_ && own.type() == dtype::fp64) {
      auto const spare = from.subview(own.count(), own.count());
      device().cast(s, sum, own, shares + 1);
      for (auto k = std::size_t{1}; k < parts_of_share_; ++k) {
        device().cast(s, sum, spare, shares + 1 + k);
        device().accumulate(s, spare, own);
      }
    } else {
      device().cast(s, sum, own, averages_ ? shares : nullptr);
    }
  }

  gradient_buckets<Device>& buckets_;
  Comm& comm_;
  bool averages_;
  std::optional<bucket_parts> parts_;
  std::vector<std::size_t> receives_;
  typename Device::buffer received_{device().allocate(0)};  // (ranks, own elements) of a bucket
  typename Device::buffer sums_{device().allocate(0)};      // fp32 (own elements)
  typename Device::buffer shares_{device().allocate(0)};    // float: 1/W; its parts
  std::size_t parts_of_share_{0};
  typename Device::event done_{device().make_event()};
};

}  // namespace gradlane::detail

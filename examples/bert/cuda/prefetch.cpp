// SPDX-License-Identifier: Apache-2.0
#include "prefetch.hpp"

#include <gradlane/cuda/error.hpp>  // for check
#include <gradlane/types.hpp>       // for stream_priority

#include <cuda_runtime_api.h>

namespace bert::cuda {

using gradlane::cuda::check;

std::size_t prefetch::reserve(std::size_t bytes, int device) {
  auto sum = std::size_t{0};
  for (auto i = std::size_t{0}; i < deliveries_.size(); ++i) {
    static_cast<void>(sync_next(bytes, device));
    sum += deliveries_[turn_]->landing.size();
    turn_ = 1 - turn_;
  }
  return sum;
}

std::byte* prefetch::sync_next(std::size_t bytes, int device) {
  if (!copies_) { copies_.emplace(device, gradlane::stream_priority::normal); }
  auto& d = deliveries_[turn_];
  if (!d) {
    d.emplace(gradlane::cuda::pinned_buffer{},
              device_buffer<std::byte>{},
              gradlane::cuda::event{device},
              gradlane::cuda::event{device});
  }
  if (!d->arrived.is_done()) { check(cudaEventSynchronize(d->arrived.get())); }
  if (d->from.size() < bytes) { d->from = gradlane::cuda::pinned_buffer{device, bytes}; }
  d->landing.grow(bytes);  // freeing waits for the reader
  return d->from.data();
}

void prefetch::deliver(std::byte* place, std::size_t bytes, gradlane::cuda::stream const& reader) {
  auto& d = *deliveries_[turn_];
  turn_   = 1 - turn_;
  if (bytes == 0) { return; }
  d.taken.hold(*copies_);
  check(cudaMemcpyAsync(
      d.landing.data(), d.from.data(), bytes, cudaMemcpyHostToDevice, copies_->get()));
  d.arrived.record(*copies_);
  d.arrived.hold(reader);
  check(cudaMemcpyAsync(place, d.landing.data(), bytes, cudaMemcpyDeviceToDevice, reader.get()));
  d.taken.record(reader);
}

}  // namespace bert::cuda

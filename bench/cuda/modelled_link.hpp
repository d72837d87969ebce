// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/buffer_view.hpp>              // for buffer_view, const_buffer_view
#include <gradlane/concepts.hpp>                 // for capability_set, no_deadline, timeout
#include <gradlane/cuda/error.hpp>               // for check
#include <gradlane/cuda/stream.hpp>              // for stream
#include <gradlane/detail/collective_calls.hpp>  // for collective_calls
#include <gradlane/types.hpp>                    // for dtype

#include <cuda_runtime_api.h>

#include <chrono>           // for duration, steady_clock
#include <cstddef>          // for size_t
#include <deque>            // for deque
#include <source_location>  // for source_location
#include <thread>           // for sleep_until, yield
#include <vector>           // for vector

namespace gradlane::bench {

/// What a wire costs: each call `latency`, and its bytes.
struct link_speed {
  double latency_us;
  double gigabytes_per_second;

  [[nodiscard]] double microseconds(std::size_t bytes) const {
    return latency_us + static_cast<double>(bytes) / gigabytes_per_second * 1e-3;
  }
};

/// A group of one rank in the place of many: a call moves nothing, and holds its stream up for as
/// long as the link would take, by a host function, so that no multiprocessor is busy. MODELLED:
/// the results are this rank's own, and what real transfers take from kernels is not in it.
class modelled_link : public gradlane::detail::collective_calls<modelled_link, cuda::stream> {
 public:
  static constexpr capability_set capabilities{.premultiplied_sum = true};
  [[nodiscard]] static constexpr bool supports_scaled(dtype type) noexcept {
    return type == dtype::fp32;
  }

  /// When the calls of a traced step began and ended, on the device.
  struct mark {
    cudaEvent_t begin;
    cudaEvent_t end;
    std::size_t bytes;
  };

  explicit modelled_link(link_speed speed) : speed_{speed} {}

  [[nodiscard]] int rank() const noexcept { return 0; }
  [[nodiscard]] int size() const noexcept { return 1; }

  void all_reduce_scaled(cuda::stream& on, const_buffer_view in, buffer_view, float const*) {
    hold(on, in.size_bytes());
  }

  void set_deadline(timeout) {}
  [[nodiscard]] static timeout deadline() { return no_deadline; }
  void poll() {}
  void abort() noexcept {}
  [[nodiscard]] modelled_link split(int, int) { return modelled_link{speed_}; }
  [[nodiscard]] modelled_link node_group() { return modelled_link{speed_}; }

  void trace(std::vector<mark>* marks) { marks_ = marks; }

 private:
  friend class gradlane::detail::collective_calls<modelled_link, cuda::stream>;

  template <class Operation, class Fill>
  void issue(cuda::stream& on,
             Operation,
             const_buffer_view in,
             buffer_view out,
             int,
             std::source_location,
             Fill) {
    if (in.data() != out.data()) {
      cuda::check(cudaMemcpyAsync(
          out.data(), in.data(), in.size_bytes(), cudaMemcpyDeviceToDevice, on.get()));
    }
    hold(on, in.size_bytes());
  }

  void hold(cuda::stream const& on, std::size_t bytes) {
    auto const time = speed_.microseconds(bytes);
    if (time <= 0) { return; }  // no wire
    calls_.push_back(time);
    if (marks_ != nullptr) { marks_->push_back({timed(on), nullptr, bytes}); }
    cuda::check(cudaLaunchHostFunc(on.get(), &wait, &calls_.back()));
    if (marks_ != nullptr) { marks_->back().end = timed(on); }
  }

  static void wait(void* microseconds) {
    using clock = std::chrono::steady_clock;
    auto const time =
        std::chrono::duration<double, std::micro>{*static_cast<double*>(microseconds)};
    auto const until = clock::now() + std::chrono::duration_cast<clock::duration>(time);
    while (clock::now() < until) { std::this_thread::yield(); }
  }

  [[nodiscard]] static cudaEvent_t timed(cuda::stream const& on) {
    auto* event = cudaEvent_t{};
    cuda::check(cudaEventCreate(&event));
    cuda::check(cudaEventRecord(event, on.get()));
    return event;
  }

  link_speed speed_;
  std::deque<double> calls_;  // microseconds of each, kept for the host functions
  std::vector<mark>* marks_{nullptr};
};

}  // namespace gradlane::bench

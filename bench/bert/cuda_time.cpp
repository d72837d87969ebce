// SPDX-License-Identifier: Apache-2.0
#include "cuda_time.hpp"

#include "parts.hpp"     // for part_times
#include "step_rig.hpp"  // for sync_time

#include <gradlane/clip/report.hpp>  // for step_status
#include <gradlane/cuda/error.hpp>   // for check
#include <gradlane/cuda/stream.hpp>  // for stream

#include <cuda_runtime_api.h>

#include <bert/cuda/device.hpp>
#include <bert/cuda/memory.hpp>
#include <bert/cuda/optimizer.hpp>
#include <bert/optimizer_settings.hpp>
#include <bert/parameters.hpp>

#include <array>        // for array
#include <concepts>     // for same_as
#include <cstddef>      // for size_t
#include <memory>       // for make_unique, unique_ptr
#include <optional>     // for nullopt, optional
#include <span>         // for span
#include <string>       // for string
#include <string_view>  // for string_view
#include <utility>      // for move
#include <vector>       // for vector

namespace bert::bench {

namespace {

using gradlane::cuda::check;

/// Points in the order of a stream, by events.
class stream_clock {
 public:
  using point = cudaEvent_t;

  explicit stream_clock(gradlane::cuda::stream const& on) : on_{on} {}

  [[nodiscard]] point now() {
    if (used_ == events_.size()) { events_.push_back(std::make_unique<event>()); }
    auto* const result = events_[used_++]->get();
    check(cudaEventRecord(result, on_.get()));
    return result;
  }
  /// Waits until the stream has come to `end`.
  [[nodiscard]] static double seconds(point begin, point end) {
    auto ms = 0.0F;
    check(cudaEventSynchronize(end));
    check(cudaEventElapsedTime(&ms, begin, end));
    return 1e-3 * static_cast<double>(ms);
  }
  void reuse() { used_ = 0; }

 private:
  class event {  // with a time, which gradlane's own have not
   public:
    event() { check(cudaEventCreate(&event_)); }
    event(event const&)            = delete;
    event& operator=(event const&) = delete;
    ~event() { cudaEventDestroy(event_); }
    [[nodiscard]] cudaEvent_t get() const { return event_; }

   private:
    cudaEvent_t event_{};
  };

  gradlane::cuda::stream const& on_;
  std::vector<std::unique_ptr<event>> events_;
  std::size_t used_ = 0;
};

/// A GPU, as step_rig wants to know it.
struct cuda_place {
  using stream = gradlane::cuda::stream;
  template <class Value>
  using device    = bert::cuda::device<Value>;
  using optimizer = bert::cuda::optimizer;
  using clock     = stream_clock;

  static constexpr auto takes_fp16 = true;

  template <class Timed>
  [[nodiscard]] static Timed make_device(part_times<clock>& times, stream& on) {
    return Timed{times, on};
  }
  [[nodiscard]] static optimizer make_optimizer(parameter_list const& list,
                                                optimizer_settings const& settings,
                                                std::span<std::span<float> const> gradients,
                                                stream& on) {
    return {list, settings, gradients, on};
  }
  static void sync_fill(bert::cuda::device_buffer<float>& buffer,
                        std::vector<float> const& values) {
    check(cudaMemcpy(
        buffer.data(), values.data(), values.size() * sizeof(float), cudaMemcpyHostToDevice));
    check(cudaDeviceSynchronize());
  }
  static void settle(stream&) {}
  template <class Model, class Device>
  static void update(optimizer& by,
                     std::span<float> weights,
                     std::span<std::span<float> const>,
                     gradlane::step_status const* status,
                     Model&,
                     Device& on) {
    if constexpr (std::same_as<typename Device::value, float>) {
      by.step(weights, 1e-5, status);
    } else {
      by.step(weights, 1e-5, status, on.working());
    }
  }
};

struct known_device {
  std::string_view name;
  double half;  // bf16 and fp16
  double fp32;
};
/// The first whose name is a part of the device's counts.
constexpr auto known_devices = std::array<known_device, 9>{{{"B200", 2250, 75},
                                                            {"GH200", 989, 67},
                                                            {"H200", 989, 67},
                                                            {"H100 PCIe", 756, 51},
                                                            {"H100 NVL", 835, 60},
                                                            {"H100", 989, 67},
                                                            {"A100", 312, 19.5},
                                                            {"L40S", 362, 91.6},
                                                            {"RTX 4090", 165, 82.6}}};

}  // namespace

step_times sync_time_on_cuda(step_case of,
                             std::string const& precision,
                             step_options const& wanted,
                             gradlane::cuda::stream& compute,
                             reduction_calls const& calls) {
  return sync_time(cuda_place{}, std::move(of), precision, wanted, compute, calls);
}

std::string cuda_device_name(int device) {
  auto properties = cudaDeviceProp{};
  check(cudaGetDeviceProperties(&properties, device));
  return properties.name;
}

std::optional<double> peak_of(std::string const& device, std::string const& precision) {
  for (auto const& d : known_devices) {
    if (device.find(d.name) != std::string::npos) { return precision == "fp32" ? d.fp32 : d.half; }
  }
  return std::nullopt;
}

}  // namespace bert::bench

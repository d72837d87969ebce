// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "parts.hpp"         // for part, part_seconds, part_times, timed_device
#include "step_options.hpp"  // for step_options

#include <gradlane/clip/report.hpp>  // for step_status
#include <gradlane/types.hpp>        // for bf16, fp16

#include <bert/batch.hpp>
#include <bert/config.hpp>
#include <bert/dropout.hpp>
#include <bert/model.hpp>
#include <bert/optimizer_settings.hpp>
#include <bert/parameters.hpp>

#include <algorithm>   // for max, nth_element, sort
#include <cstddef>     // for ptrdiff_t, size_t
#include <cstdint>     // for uint32_t
#include <functional>  // for function
#include <numeric>     // for accumulate
#include <span>        // for span
#include <string>      // for string
#include <utility>     // for move
#include <vector>      // for vector

namespace bert::bench {

/// gradlane's part in a step; by default it has none.
struct reduction_calls {
  std::function<void()> begin                          = [] {};
  std::function<void(std::size_t)> ready               = [](std::size_t) {};
  std::function<gradlane::step_status const*()> finish = [] { return nullptr; };
};

/// What a step trains, and on what.
struct step_case {
  model_config config;
  batch data;
  std::span<std::span<float> const> gradients;  // in the buckets
};

struct step_times {
  std::size_t bytes = 0;  // of the device's memory, beside parameters, gradients and moments
  double seconds    = 0;  // of a step
  double alone      = 0;  // of one without clipping and reduction
  part_seconds parts{};
};

/// A model with all that a step needs but the reduction. A Place says where:
///   stream, device<Value>, optimizer        gradlane's stream, the model's device, AdamW or LAMB
///   takes_fp16                              whether there is a device<fp16>
///   clock                                   a Clock (see parts.hpp) made from a stream
///   make_device<Timed>(times, stream)       Timed is timed_device<device<Value>, clock>
///   make_optimizer(list, settings, gradients, stream)
///   sync_fill(buffer, values)               copies values from host memory
///   settle(stream)                          waits where the optimizer runs on the host
///   update(optimizer, weights, gradients, status, model, device)
template <class Place, class Value>
class step_rig {
 public:
  using clock  = typename Place::clock;
  using stream = typename Place::stream;
  using device = timed_device<typename Place::template device<Value>, clock>;

  step_rig(Place place, step_case of, step_options const& wanted, stream& compute)
      : place_{std::move(place)},
        case_{std::move(of)},
        list_{case_.config},
        compute_{compute},
        clock_{compute},
        times_{clock_},
        weights_(list_.total()),
        device_{place_.template make_device<device>(times_, compute)},
        model_{initialised(), device_, std::span<float const>{weights_}},
        update_{place_.make_optimizer(
            list_, wanted.lamb ? lamb_settings() : optimizer_settings{}, case_.gradients, compute)},
        bytes_{model_.reserve(case_.data.shape())} {}

  [[nodiscard]] std::size_t bytes() const { return bytes_; }

  /// The median time of a step, in seconds, of `steps` that follow each other.
  [[nodiscard]] double sync_median(reduction_calls const& calls,
                                   std::size_t warm_up,
                                   std::size_t steps) {
    for (auto i = std::size_t{0}; i < warm_up; ++i) { step(calls); }
    clock_.reuse();
    auto ends = std::vector<typename clock::point>{clock_.now()};
    for (auto i = std::size_t{0}; i < steps; ++i) {
      step(calls);
      ends.push_back(clock_.now());
    }
    auto times = std::vector<double>{};
    for (auto i = std::size_t{0}; i < steps; ++i) {
      times.push_back(clock_.seconds(ends[i], ends[i + 1]));
    }
    auto const middle = times.begin() + static_cast<std::ptrdiff_t>(steps / 2);
    std::nth_element(times.begin(), middle, times.end());
    return *middle;
  }

  /// The parts of the step of median length.
  [[nodiscard]] part_seconds sync_parts(reduction_calls const& calls, std::size_t steps) {
    auto all = std::vector<part_seconds>{};
    for (auto i = std::size_t{0}; i < steps; ++i) {
      times_.start();
      step(calls);
      all.push_back(times_.sync_stop());
    }
    auto const total = [](part_seconds const& p) {
      return std::accumulate(p.begin(), p.end(), 0.0);
    };
    std::sort(
        all.begin(), all.end(), [&](auto const& a, auto const& b) { return total(a) < total(b); });
    return all[steps / 2];
  }

 private:
  void step(reduction_calls const& calls) {
    model_.take(case_.data);
    model_.start_forward(dropout_sites{case_.config, case_.config.dropout, 1, number_++});
    calls.begin();
    model_.backward(
        1.0 / static_cast<double>(std::max(case_.data.prediction_count(), std::size_t{1})),
        1.0 / static_cast<double>(case_.data.sequence_count()),
        case_.gradients,
        false,
        calls.ready);
    times_.enter(part::reduction);
    auto const* const status = calls.finish();
    place_.settle(compute_);
    times_.enter(part::optimizer);
    place_.update(update_, std::span<float>{weights_}, case_.gradients, status, model_, device_);
    times_.enter(part::other);
  }

  [[nodiscard]] model_config const& initialised() {
    auto values = std::vector<float>(list_.total());
    initialise(list_, values, 1);
    place_.sync_fill(weights_, values);
    return case_.config;
  }

  Place place_;
  step_case case_;
  parameter_list list_;
  stream& compute_;
  clock clock_;
  part_times<clock> times_;
  typename Place::template device<Value>::template buffer<float> weights_;
  device device_;
  model<device> model_;
  typename Place::optimizer update_;
  std::size_t bytes_;
  std::uint32_t number_ = 0;
};

/// Times steps with calls, and without.
/// @param precision  fp32, bf16 or fp16, where the place takes it (with 1 for a loss scale, which
///                   takes the same time as any).
template <class Place>
[[nodiscard]] step_times sync_time(Place place,
                                   step_case of,
                                   std::string const& precision,
                                   step_options const& wanted,
                                   typename Place::stream& compute,
                                   reduction_calls const& calls) {
  auto const time = [&]<class Value>(Value) {
    auto rig       = step_rig<Place, Value>{std::move(place), std::move(of), wanted, compute};
    auto result    = step_times{.bytes = rig.bytes()};
    result.alone   = rig.sync_median({}, wanted.warm_up, wanted.steps);
    result.seconds = rig.sync_median(calls, wanted.warm_up, wanted.steps);
    result.parts   = rig.sync_parts(calls, wanted.steps);
    return result;
  };
  if (precision == "bf16") { return time(gradlane::bf16{}); }
  if constexpr (Place::takes_fp16) {
    if (precision == "fp16") { return time(gradlane::fp16{}); }
  }
  return time(0.0F);
}

}  // namespace bert::bench

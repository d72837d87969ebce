// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../data/place.hpp"          // for data_place
#include "../data/sample_source.hpp"  // for sample_source
#include "../data/window_reader.hpp"  // for sample_parts, sync_to_batch, window_reader
#include "../errors.hpp"              // for input_error
#include "settings.hpp"               // for training_settings
#include "stopwatch.hpp"              // for step_times, stopwatch

#include <gradlane/balance/cost.hpp>          // for cost_model
#include <gradlane/balance/sample_order.hpp>  // for sample_order
#include <gradlane/balance/sampler.hpp>       // for sampler
#include <gradlane/host/device.hpp>           // for device
#include <gradlane/presort.hpp>               // for presort, presort_options
#include <gradlane/sample_window.hpp>         // for presorted_window

#include <algorithm>  // for max, min
#include <cstddef>    // for size_t
#include <cstdint>    // for uint32_t, uint64_t
#include <string>     // for string, to_string
#include <utility>    // for exchange, move
#include <vector>     // for vector

namespace bert {

/// @throws input_error unless every rank gets a sample in every micro-step of a full batch.
inline void expect_dealable(std::size_t batch_size, std::size_t ranks, std::size_t micro_steps) {
  if (batch_size < ranks * micro_steps) {
    throw input_error{"a batch of " + std::to_string(batch_size) +
                      " sequences cannot be dealt to " + std::to_string(ranks) + " ranks in " +
                      std::to_string(micro_steps) + " micro-batches: it needs " +
                      std::to_string(ranks * micro_steps) + " sequences at least"};
  }
}

/// The cost of a sequence for a transformer: n · (1 + n / 6H), as attention takes 12 n² H of the 72
/// n H² + 12 n² H operations of a layer's products.
[[nodiscard]] inline gradlane::balance::cost_model cost_of(model_config const& model) {
  return {6.0 * static_cast<double>(model.hidden_size)};
}

/// The micro-batches of this rank, step by step, from gradlane's sampler through its presort.
///
/// The samples of the next `window` steps are dealt at once: first to steps, then those of a step
/// to ranks and micro-steps, so that all have the same work. What a step trains on depends on the
/// seed, the method and the window, but not on the ranks. Each rank reads an equal part of a window
/// and the presort moves its samples to where they are trained on, all of it while the window
/// before is trained on; with cuda_samples the host waits while it reads.
///
/// Ranks of all nodes are one group here: then the layout changes no loss. Over comm.node_group()
/// no sample would leave its node, but which samples make up a step would depend on the nodes.
///
/// @tparam Samples  where ranks exchange them: host_samples, cuda_samples.
template <class Samples>
class balanced_batches {
 public:
  /// Collective.
  /// @param host  on which samples are read.
  balanced_batches(training_settings const& settings,
                   sample_source const& data,
                   gradlane::host::device& host,
                   Samples samples)
      : settings_{settings},
        samples_{std::move(samples)},
        sampler_{order_of(settings, data), window_size(settings, data.size())},
        reader_{data,
                host,
                static_cast<std::size_t>(samples_.comm.rank()),
                static_cast<std::size_t>(samples_.comm.size())},
        presort_{samples_.lane,
                 samples_.comm,
                 sample_parts(),
                 {.method                = settings.deal,
                  .cost                  = cost_of(settings.model),
                  .micro_steps           = settings.micro_steps,
                  .construction_deadline = settings.patience}},
        taken_{samples_.lane.make_stream()} {}

  /// The micro-batches of the next step.
  /// @param steps_left  of the run, with this one: no window is prepared that it will not need.
  [[nodiscard]] std::vector<batch> next(std::uint64_t steps_left, step_times& times) {
    auto watch = stopwatch{};
    if (steps_done_ == window_.steps()) { sync_open_window(steps_left); }
    if constexpr (Samples::in_any_order) {
      static_cast<void>(presort_.advance());
    } else if (steps_done_ == 1) {
      presort_.sync_advance(settings_.patience);
    }
    watch.lap(times.balance);
    auto result = std::vector<batch>{};
    for (auto m = std::size_t{0}; m < window_.micro_steps(); ++m) {
      result.push_back(sync_to_batch(samples_.lane, taken_, window_.batch(steps_done_, m)));
    }
    ++steps_done_;
    watch.lap(times.data);
    return result;
  }

  [[nodiscard]] data_place place() const {
    if (steps_done_ < window_.steps()) { return {.window = begin_, .steps_done = steps_done_}; }
    return {.window = is_coming_ ? next_begin_ : sampler_.state(), .steps_done = skip_};
  }

  /// Goes to where another run stood, before the first step.
  void restore(data_place const& at) {
    sampler_.restore(at.window);
    skip_ = at.steps_done;
  }

  [[nodiscard]] std::string describe() const { return presort_.describe(); }

 private:
  [[nodiscard]] static gradlane::balance::sample_order order_of(training_settings const& settings,
                                                                sample_source const& data) {
    if (data.size() == 0) { throw input_error{"the text is too short: it makes not one sample"}; }
    return gradlane::balance::sample_order::random(data.size(), settings.seed);
  }

  /// Samples of a window: of half an epoch at most. The steps of a window depend on which samples
  /// it holds alone, so that a whole epoch in one would make the same steps in every epoch.
  /// @throws input_error for a batch of no sequence or a window of no step.
  [[nodiscard]] static std::size_t window_size(training_settings const& settings,
                                               std::size_t samples) {
    if (settings.batch_size == 0) { throw input_error{"the batch size must be positive"}; }
    if (settings.window == 0) { throw input_error{"the window must have a step at least"}; }
    auto const half = std::max(samples / settings.batch_size / 2, std::size_t{1});
    return settings.batch_size * std::min(settings.window, half);
  }

  void begin_next() {
    next_begin_        = sampler_.state();
    auto const samples = sampler_.next();
    auto const steps   = (samples.samples.size() + settings_.batch_size - 1) / settings_.batch_size;
    auto const epoch   = static_cast<std::uint32_t>(samples.epoch);
    samples_.submit(presort_, reader_, reader_.begin(samples.samples, epoch, steps));
    is_coming_ = true;
  }

  /// Takes the window that has been prepared, and has the next one prepared.
  void sync_open_window(std::uint64_t steps_left) {
    if (window_.steps() > 0) { presort_.release(taken_); }
    if (!is_coming_) { begin_next(); }
    window_ = presort_.sync_take(taken_, settings_.patience);
    samples_.lane.sync(taken_, settings_.patience);
    begin_      = next_begin_;
    is_coming_  = false;
    steps_done_ = std::exchange(skip_, 0);
    if (steps_done_ >= window_.steps()) {
      throw input_error{"the checkpoint stands at step " + std::to_string(steps_done_) +
                        " of a window of " + std::to_string(window_.steps())};
    }
    if (window_.steps() - steps_done_ < steps_left) { begin_next(); }
  }

  training_settings const& settings_;
  Samples samples_;
  gradlane::balance::sampler sampler_;
  gradlane::balance::sampler_state begin_;       // of the window that is trained on
  gradlane::balance::sampler_state next_begin_;  // of the one that is prepared
  bool is_coming_{false};
  gradlane::presorted_window window_;
  std::size_t steps_done_{0};  // of the window
  std::uint64_t skip_{0};      // steps of the first window that were done before a restore
  window_reader reader_;
  gradlane::presort<typename Samples::device, typename Samples::communicator> presort_;
  typename Samples::device::stream taken_;  // the host waits for what it waits for
};

}  // namespace bert

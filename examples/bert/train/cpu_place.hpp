// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../batch.hpp"            // for batch_shape
#include "../cpu/device.hpp"       // for device
#include "../delta_optimizer.hpp"  // for delta_optimizer
#include "../dropout.hpp"          // for dropout_sites
#include "../loss_scale.hpp"       // for loss_scale_state
#include "../model.hpp"            // for model
#include "../model_state.hpp"      // for model_state
#include "../optimizer.hpp"        // for optimizer, optimizer_settings
#include "../parameters.hpp"       // for parameter_list
#include "../step_numbers.hpp"     // for step_numbers
#include "../step_value.hpp"       // for step_value
#include "../tensor_part.hpp"      // for tensor_part
#include "host_samples.hpp"        // for host_samples
#include "settings.hpp"            // for training_settings
#include "step_outcome.hpp"        // for step_outcome

#include <gradlane/bucket_update.hpp>  // for bucket_update
#include <gradlane/clip/report.hpp>    // for step_record, step_status
#include <gradlane/error.hpp>          // for expects
#include <gradlane/host/device.hpp>    // for device
#include <gradlane/host/stream.hpp>    // for stream

#include <algorithm>  // for copy
#include <chrono>     // for seconds
#include <cstddef>    // for size_t
#include <cstdint>    // for uint64_t
#include <span>       // for span
#include <string>     // for string
#include <utility>    // for exchange, forward
#include <vector>     // for vector

namespace bert {

/// What a step left: on the CPU it is there at once.
class cpu_outcomes {
 public:
  /// Keeps the losses of the model's latest forward, as a part of the step that is open.
  template <class Model>
  void add(Model& from, gradlane::host::stream& /*compute*/) {
    open_.sums += from.sync_losses();
  }
  /// Ends the step that is open.
  /// @param numbers  of the pipeline, whose step is done.
  void close(gradlane::step_record const* numbers, gradlane::host::stream& /*compute*/) {
    open_.numbers = *numbers;
    closed_       = std::exchange(open_, {});
  }
  /// That of the oldest step that was ended and not taken.
  [[nodiscard]] step_outcome sync_take(std::chrono::seconds /*patience*/) const { return closed_; }

 private:
  step_outcome open_;
  step_outcome closed_;
};

/// How steps run: on the CPU as they come.
class cpu_steps {
 public:
  static constexpr auto pads = false;

  /// Before the micro-steps of a step.
  void begin(step_numbers const& now, gradlane::host::stream& /*compute*/) { now_ = now; }
  [[nodiscard]] static dropout_sites sites(dropout_sites const& of_step) { return of_step; }
  [[nodiscard]] step_value<double> masked_lm_scale() const { return now_.masked_lm_scale; }
  [[nodiscard]] step_value<double> next_sentence_scale() const { return now_.next_sentence_scale; }
  [[nodiscard]] step_value<double> learning_rate() const { return now_.learning_rate; }

  /// There is none.
  [[nodiscard]] static float const* loss_scale() { return nullptr; }
  static void follow(gradlane::step_status const* /*status*/) {}
  static void sync_restore(loss_scale_state const& /*scale*/) {}

  template <class Work>
  static void run(batch_shape const& /*shape*/,
                  bool /*first*/,
                  bool /*last*/,
                  gradlane::host::stream& /*compute*/,
                  Work&& work) {
    std::forward<Work>(work)();
  }

  /// Of memory: nothing to tell.
  [[nodiscard]] static std::string describe() { return {}; }

 private:
  step_numbers now_;
};

/// Training on the CPU: what a trainer, which is a template over its place, has to know of it.
///
/// A place names the types of the model's operations, of memory and optimizer, of gradlane's device
/// (the lane of gradients) and of its ranks, and holds the last two. Counts, losses and samples go
/// over ranks of host memory, which are the same ones here.
template <class Value, class Comm>
struct cpu_place {
  using lane              = gradlane::host::device;
  using stream            = lane::stream;
  using communicator      = Comm;
  using host_communicator = Comm;
  using model_device      = cpu::device<Value>;
  using floats            = std::vector<float>;
  using optimizer         = bert::optimizer;
  using delta_optimizer   = bert::delta_optimizer;
  using outcomes          = cpu_outcomes;
  using steps             = cpu_steps;
  using samples           = host_samples<Comm>;

  /// The optimizer works on the thread that calls it, so that results must be there before.
  static constexpr auto on_host = true;
  /// What --reduce offers here beyond average.
  static constexpr auto shards = true;
  static constexpr auto deltas = true;
  /// What one step has begun, such as a gather, the next may wait for.
  [[nodiscard]] static bool waits_across_steps() { return true; }
  /// Steps that are under way before the result of one is told.
  static constexpr auto results_behind = std::size_t{0};

  lane& gradients;
  communicator& ranks;
  gradlane::host::device& host;
  host_communicator& host_ranks;

  cpu_place(lane& device, communicator& comm)
      : gradients{device}, ranks{comm}, host{device}, host_ranks{comm} {}

  [[nodiscard]] static model_device make_device(stream& /*compute*/) { return model_device{}; }

  [[nodiscard]] static optimizer make_optimizer(parameter_list const& list,
                                                optimizer_settings const& settings,
                                                std::span<std::span<float> const> /*gradients*/,
                                                stream& /*compute*/) {
    return optimizer{list, settings};
  }

  [[nodiscard]] static optimizer make_part_optimizer(
      parameter_list const& list,
      optimizer_settings const& settings,
      std::span<std::span<float> const> /*gradients*/,
      std::span<tensor_part const> parts,
      stream& /*compute*/) {
    return optimizer{list, settings, parts};
  }

  [[nodiscard]] static delta_optimizer make_delta_optimizer(parameter_list const& list,
                                                            optimizer_settings const& settings,
                                                            stream& /*compute*/) {
    return delta_optimizer{list, settings};
  }

  [[nodiscard]] samples make_samples() const { return {host, ranks.split(0, ranks.rank())}; }
  [[nodiscard]] static outcomes make_outcomes(training_settings const& /*settings*/) { return {}; }
  /// @throws gradlane::contract_error for a loss scale: nothing is in fp16 here.
  [[nodiscard]] static steps make_steps(training_settings const& settings,
                                        stream const& /*compute*/) {
    gradlane::expects(!settings.loss_scale, "cpu_place: no loss scale on the CPU");
    return {};
  }

  /// Memory of this place that holds `values`.
  [[nodiscard]] static floats make_floats(std::vector<float> values, stream& /*compute*/) {
    return values;
  }

  /// Steps, and has the model see it.
  /// @param status  where the pipeline left it.
  static void step(optimizer& update,
                   std::span<float> weights,
                   std::span<std::span<float> const> gradients,
                   step_value<double> learning_rate,
                   gradlane::step_status const* status,
                   model<model_device>& user) {
    update.step(weights, gradients, learning_rate.read(), *status);
    user.refresh();
  }

  /// Steps those parts that the optimizer has.
  static void step_parts(optimizer& update,
                         std::span<float> weights,
                         std::span<std::span<float> const> gradients,
                         step_value<double> learning_rate,
                         gradlane::step_status const* status) {
    update.step(weights, gradients, learning_rate.read(), *status);
  }

  /// Enqueues what one step of this rank's own adds to the weights of a bucket.
  void propose(delta_optimizer& update,
               gradlane::bucket_update<lane> const& of,
               std::span<float const> weights,
               step_value<double> learning_rate) {
    gradients.enqueue(of.stream,
                      [&update,
                       weights,
                       rate        = learning_rate.read(),
                       tensors     = of.parameters,
                       from        = of.gradients,
                       to          = of.deltas,
                       coefficient = of.coefficient,
                       counted     = of.steps] {
                        for (auto i = std::size_t{0}; i < tensors.size(); ++i) {
                          update.propose(tensors[i],
                                         weights,
                                         from[i].template as<float>(),
                                         to[i].template as<float>(),
                                         rate,
                                         *coefficient,
                                         *counted);
                        }
                      });
  }

  /// Makes the step that was joined, and has the model see it.
  static void apply_deltas(delta_optimizer& update,
                           std::span<float> weights,
                           std::span<std::span<float> const> deltas,
                           gradlane::step_status const* status,
                           model<model_device>& user) {
    update.apply(weights, deltas, *status);
    user.refresh();
  }

  /// Numbers of this place as the host sees them, once the work on `compute` is done.
  /// @param copy  may hold them.
  [[nodiscard]] static std::span<float const> sync_view(std::span<float const> values,
                                                        std::vector<float>& /*copy*/,
                                                        stream& /*compute*/) {
    return values;
  }

  /// The same, where ranks other than 0 want it as well.
  [[nodiscard]] static std::span<float const> sync_own(std::span<float const> values,
                                                       std::vector<float>& copy,
                                                       stream& compute) {
    return sync_view(values, copy, compute);
  }

  template <class Optimizer>
  [[nodiscard]] static std::uint64_t sync_steps(Optimizer const& update) {
    return update.steps();
  }

  template <class Optimizer>
  static void restore(model_state const& from,
                      std::span<float> weights,
                      Optimizer& update,
                      stream& /*compute*/) {
    update.restore(from.steps, from.first, from.second);
    std::ranges::copy(from.parameters, weights.begin());
  }
};

}  // namespace bert

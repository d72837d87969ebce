// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../cpu/device.hpp"   // for device
#include "../model.hpp"        // for losses, model
#include "../model_state.hpp"  // for model_state
#include "../optimizer.hpp"    // for optimizer, optimizer_settings
#include "../parameters.hpp"   // for parameter_list

#include <gradlane/clip/report.hpp>  // for step_status
#include <gradlane/host/device.hpp>  // for device

#include <algorithm>  // for copy
#include <cstddef>    // for size_t
#include <cstdint>    // for uint64_t
#include <span>       // for span
#include <utility>    // for exchange, move
#include <vector>     // for vector

namespace bert {

/// The losses of steps that were computed and not yet told: the CPU has them at once.
class cpu_losses {
 public:
  /// Keeps those of the model's latest forward, as a part of the step that is open.
  template <class Model>
  void add(Model& from) {
    sum_ += from.sync_losses();
  }
  /// Ends the step that is open.
  void close() {}
  /// Those of the oldest step that was ended and not taken.
  [[nodiscard]] losses sync_take() { return std::exchange(sum_, {}); }

 private:
  losses sum_;
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
  using kept_losses       = cpu_losses;

  /// The optimizer works on the thread that calls it, so that results must be there before.
  static constexpr auto on_host = true;
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

  /// Memory of this place that holds `values`.
  [[nodiscard]] static floats make_floats(std::vector<float> values, stream& /*compute*/) {
    return values;
  }

  /// Steps, and has the model see it.
  /// @param status  where the pipeline left it.
  static void step(optimizer& update,
                   std::span<float> weights,
                   std::span<std::span<float> const> gradients,
                   double learning_rate,
                   gradlane::step_status const* status,
                   model<model_device>& user) {
    update.step(weights, gradients, learning_rate, *status);
    user.refresh();
  }

  /// Numbers of this place as the host sees them, once the work on `compute` is done.
  /// @param copy  may hold them.
  [[nodiscard]] static std::span<float const> sync_view(std::span<float const> values,
                                                        std::vector<float>& /*copy*/,
                                                        stream& /*compute*/) {
    return values;
  }

  [[nodiscard]] static std::uint64_t sync_steps(optimizer const& update) { return update.steps(); }

  static void restore(model_state const& from,
                      std::span<float> weights,
                      optimizer& update,
                      stream& /*compute*/) {
    update.restore(from.steps, from.first, from.second);
    std::ranges::copy(from.parameters, weights.begin());
  }
};

}  // namespace bert

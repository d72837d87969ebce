// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../data/window_reader.hpp"  // for window_reader

#include <gradlane/host/device.hpp>    // for device
#include <gradlane/sample_window.hpp>  // for sample_window

namespace bert {

/// Samples that ranks exchange from host memory to host memory.
template <class Comm>
struct host_samples {
  using device       = gradlane::host::device;
  using communicator = Comm;

  /// Ranks may go on with an exchange at any time, each for itself.
  static constexpr auto in_any_order = true;

  device& lane;
  Comm comm;  // of its own

  /// Hands over what `reader` is about to read.
  template <class Presort>
  void submit(Presort& to, window_reader& reader, gradlane::sample_window const& window) {
    to.submit(reader.stream(), window);
  }
};

}  // namespace bert

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/balance/sampler.hpp>  // for sampler_state

#include <cstdint>  // for uint64_t

namespace bert {

/// Where a run stands in its data, the same on every rank and with any number of ranks: the window
/// of steps that it is in, as the sampler had it before it gave that window, and how many of the
/// window's steps are done. Dealing the same window again gives the same steps again.
struct data_place {
  gradlane::balance::sampler_state window;
  std::uint64_t steps_done = 0;

  friend bool operator==(data_place const&, data_place const&) = default;
};

}  // namespace bert

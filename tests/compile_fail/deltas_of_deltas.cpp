// SPDX-License-Identifier: Apache-2.0
// Deltas have one update: that of deltas inside deltas would never be called.
#include <gradlane/bucket_update.hpp>       // for bucket_update
#include <gradlane/clip_allreduce.hpp>      // for clip_allreduce
#include <gradlane/host/device.hpp>         // for device
#include <gradlane/local/communicator.hpp>  // for communicator

struct update {
  void operator()(gradlane::bucket_update<gradlane::host::device> const& /*bucket*/) const {}
};

#ifdef GRADLANE_RIGHT_USE
using join = gradlane::reduce::adasum;
#else
using join = gradlane::reduce::deltas<gradlane::reduce::adasum, update>;
#endif

template class gradlane::clip_allreduce<gradlane::host::device,
                                        gradlane::local::communicator,
                                        gradlane::clip::none,
                                        gradlane::reduce::deltas<join, update>,
                                        gradlane::non_finite::skip>;

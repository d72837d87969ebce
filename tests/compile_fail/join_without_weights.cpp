// SPDX-License-Identifier: Apache-2.0
// Ranks without data have weight 0, which only average::weighted knows.
#include <gradlane/clip_allreduce.hpp>      // for clip_allreduce
#include <gradlane/host/device.hpp>         // for device
#include <gradlane/local/communicator.hpp>  // for communicator

#ifdef GRADLANE_RIGHT_USE
using average = gradlane::average::weighted;
#else
using average = gradlane::average::ranks;
#endif

using pipeline = gradlane::clip_allreduce<gradlane::host::device,
                                          gradlane::local::communicator,
                                          gradlane::clip::none,
                                          average>;

void end(pipeline& reduce, gradlane::host::stream& compute) {
  reduce.sync_join(compute, [] {});
}

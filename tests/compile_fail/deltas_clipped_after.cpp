// SPDX-License-Identifier: Apache-2.0
// Where optimizers run before the reduction there is no reduced gradient to clip.
#include <gradlane/bucket_update.hpp>       // for bucket_update
#include <gradlane/clip_allreduce.hpp>      // for clip_allreduce
#include <gradlane/host/device.hpp>         // for device
#include <gradlane/local/communicator.hpp>  // for communicator

#ifdef GRADLANE_RIGHT_USE
using clip = gradlane::clip::before;
#else
using clip = gradlane::clip::after;
#endif

using update = void (*)(gradlane::bucket_update<gradlane::host::device> const&);

template class gradlane::clip_allreduce<gradlane::host::device,
                                        gradlane::local::communicator,
                                        clip,
                                        gradlane::reduce::deltas<gradlane::reduce::adasum, update>>;

// SPDX-License-Identifier: Apache-2.0
// A rank without data has no gradients for its optimizer: deltas are not weighed.
#include <gradlane/bucket_update.hpp>       // for bucket_update
#include <gradlane/clip_allreduce.hpp>      // for clip_allreduce
#include <gradlane/host/device.hpp>         // for device
#include <gradlane/local/communicator.hpp>  // for communicator

#ifdef GRADLANE_RIGHT_USE
using average = gradlane::average::ranks;
#else
using average = gradlane::average::weighted;
#endif

using update = void (*)(gradlane::bucket_update<gradlane::host::device> const&);

template class gradlane::clip_allreduce<
    gradlane::host::device,
    gradlane::local::communicator,
    gradlane::clip::none,
    gradlane::reduce::deltas<gradlane::reduce::sharded<average>, update>>;

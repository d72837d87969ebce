// SPDX-License-Identifier: Apache-2.0
// Adasum is no sum that a communicator could scale on the way: who insists on it is refused.
#include <gradlane/clip_allreduce.hpp>      // for clip_allreduce
#include <gradlane/host/device.hpp>         // for device
#include <gradlane/local/communicator.hpp>  // for communicator

#ifdef GRADLANE_RIGHT_USE
using scaling = gradlane::scaling::automatic;
#else
using scaling = gradlane::scaling::premultiplied;
#endif

template class gradlane::clip_allreduce<gradlane::host::device,
                                        gradlane::local::communicator,
                                        gradlane::clip::before,
                                        gradlane::reduce::adasum,
                                        gradlane::non_finite::skip,
                                        scaling>;

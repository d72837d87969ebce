// SPDX-License-Identifier: Apache-2.0
// MPI cannot scale inside a reduction: a pipeline that insists on it is refused.
#include <gradlane/clip_allreduce.hpp>    // for clip_allreduce
#include <gradlane/host/device.hpp>       // for device
#include <gradlane/mpi/communicator.hpp>  // for communicator

#ifdef GRADLANE_RIGHT_USE
using scaling = gradlane::scaling::automatic;
#else
using scaling = gradlane::scaling::premultiplied;
#endif

template class gradlane::clip_allreduce<gradlane::host::device,
                                        gradlane::mpi::communicator,
                                        gradlane::clip::before,
                                        gradlane::average::ranks,
                                        gradlane::non_finite::skip,
                                        scaling>;

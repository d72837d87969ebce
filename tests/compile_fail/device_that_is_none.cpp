// SPDX-License-Identifier: Apache-2.0
// What is no device is told so where it is used, not deep inside.
#include <gradlane/gradient_buckets.hpp>  // for gradient_buckets
#include <gradlane/host/device.hpp>       // for device

#ifdef GRADLANE_RIGHT_USE
using device = gradlane::host::device;
#else
struct device {};
#endif

gradlane::gradient_buckets<device>* buckets;

// SPDX-License-Identifier: Apache-2.0
#include <gradlane/cuda/device.cuh>  // for device
#include <gradlane/gradlane.hpp>     // for gradient_buckets

static_assert(__cplusplus >= 202002L, "gradlane::cuda asks for C++20");

using buckets = gradlane::gradient_buckets<gradlane::cuda::device>;

int main() { return sizeof(buckets) > 0 ? 0 : 1; }

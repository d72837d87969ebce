// SPDX-License-Identifier: Apache-2.0
#pragma once

// Marks the few pure functions that run inside device kernels too.
#ifdef __CUDACC__
#define GRADLANE_HOST_DEVICE __host__ __device__
#else
#define GRADLANE_HOST_DEVICE
#endif

// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <conformance/device.hpp>  // for GRADLANE_DEVICE_CONFORMANCE
#include <cuda/support.cuh>        // for on_cuda

using gradlane::test::on_cuda;

TYPE_TO_STRING(on_cuda);
GRADLANE_DEVICE_CONFORMANCE(on_cuda);

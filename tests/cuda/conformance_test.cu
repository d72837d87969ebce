// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cuda/support.cuh>  // for on_cuda

#include <conformance/adasum_device.hpp>  // for GRADLANE_ADASUM_DEVICE_CONFORMANCE
#include <conformance/device.hpp>         // for GRADLANE_DEVICE_CONFORMANCE

using gradlane::test::on_cuda;

TYPE_TO_STRING(on_cuda);
GRADLANE_DEVICE_CONFORMANCE(on_cuda);
GRADLANE_ADASUM_DEVICE_CONFORMANCE(on_cuda);

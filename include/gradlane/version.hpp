// SPDX-License-Identifier: Apache-2.0
#pragma once

// The one place that states the version; CMake reads it from here.
#define GRADLANE_VERSION_MAJOR 0
#define GRADLANE_VERSION_MINOR 1
#define GRADLANE_VERSION_PATCH 0

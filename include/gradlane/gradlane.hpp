// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Everything of gradlane that needs neither CUDA nor MPI.

// IWYU pragma: begin_exports
#include <gradlane/buffer_view.hpp>
#include <gradlane/concepts.hpp>
#include <gradlane/error.hpp>
#include <gradlane/types.hpp>
#include <gradlane/version.hpp>
// IWYU pragma: end_exports

// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Everything of gradlane that needs neither CUDA nor MPI.

// IWYU pragma: begin_exports
#include <gradlane/buffer_view.hpp>
#include <gradlane/concepts.hpp>
#include <gradlane/error.hpp>
#include <gradlane/host/device.hpp>
#include <gradlane/host/event.hpp>
#include <gradlane/host/kernels.hpp>
#include <gradlane/host/memory.hpp>
#include <gradlane/host/progress.hpp>
#include <gradlane/host/stream.hpp>
#include <gradlane/host/task.hpp>
#include <gradlane/local/communicator.hpp>
#include <gradlane/local/run.hpp>
#include <gradlane/local/script.hpp>
#include <gradlane/local/world.hpp>
#include <gradlane/types.hpp>
#include <gradlane/version.hpp>
// IWYU pragma: end_exports

// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Everything of gradlane that needs neither CUDA nor MPI.

// IWYU pragma: begin_exports
#include <gradlane/adasum.hpp>
#include <gradlane/adasum/buffer.hpp>
#include <gradlane/adasum/combine.hpp>
#include <gradlane/adasum/device.hpp>
#include <gradlane/adasum/tree.hpp>
#include <gradlane/balance/cost.hpp>
#include <gradlane/balance/deal.hpp>
#include <gradlane/balance/histogram.hpp>
#include <gradlane/balance/pack.hpp>
#include <gradlane/balance/sample_order.hpp>
#include <gradlane/balance/sampler.hpp>
#include <gradlane/balance/strata.hpp>
#include <gradlane/bucket_update.hpp>
#include <gradlane/buckets/parameter.hpp>
#include <gradlane/buckets/parts.hpp>
#include <gradlane/buckets/plan.hpp>
#include <gradlane/buckets/readiness.hpp>
#include <gradlane/buffer_view.hpp>
#include <gradlane/clip/coefficient.hpp>
#include <gradlane/clip/policy.hpp>
#include <gradlane/clip/report.hpp>
#include <gradlane/clip/rules.hpp>
#include <gradlane/clip/threshold.hpp>
#include <gradlane/clip_allreduce.hpp>
#include <gradlane/concepts.hpp>
#include <gradlane/element_range.hpp>
#include <gradlane/error.hpp>
#include <gradlane/gradient_buckets.hpp>
#include <gradlane/host/device.hpp>
#include <gradlane/host/event.hpp>
#include <gradlane/host/inner_loops.hpp>
#include <gradlane/host/kernels.hpp>
#include <gradlane/host/memory.hpp>
#include <gradlane/host/progress.hpp>
#include <gradlane/host/stream.hpp>
#include <gradlane/host/task.hpp>
#include <gradlane/local/communicator.hpp>
#include <gradlane/local/error.hpp>
#include <gradlane/local/run.hpp>
#include <gradlane/local/script.hpp>
#include <gradlane/local/world.hpp>
#include <gradlane/parameter_shards.hpp>
#include <gradlane/presort.hpp>
#include <gradlane/reduction_pipeline.hpp>
#include <gradlane/sample_window.hpp>
#include <gradlane/types.hpp>
#include <gradlane/version.hpp>
// IWYU pragma: end_exports

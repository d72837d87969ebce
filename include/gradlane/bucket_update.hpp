// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/buffer_view.hpp>  // for buffer_view
#include <gradlane/concepts.hpp>     // for device

#include <cstddef>  // for size_t
#include <cstdint>  // for uint64_t
#include <span>     // for span

namespace gradlane {

/// What the local optimizer is given of one bucket under reduce::deltas: it enqueues, on `stream`,
///
///     deltas = what is to be added to the weights, by gradients · *coefficient and its own state
///
/// and writes every element. It is called in ready(), once a bucket and step (the last micro-step),
/// in the plan's order; under clip::before for all buckets in the last of these calls. It neither
/// blocks nor calls the pipeline. In a CUDA graph the call is made while capturing: what changes
/// from step to step is read from device memory.
///
/// Weights are as begin() found them until finish(), so they may be read. A bucket of which
/// `*coefficient` is NaN is made NaN after the update, whatever that wrote.
///
/// A skipped step must leave no trace, yet is known only when all buckets are joined. So state has
/// two places, and the count of steps says which one holds: read state[*steps % 2], write
/// state[(*steps + 1) % 2]. A step that is skipped does not count, so that the next one finds
/// what this one found. Adam's t is *steps + 1.
///
/// Views and pointers are good until the pipeline is laid out anew (sync_learn_order), `stream`
/// during the call.
template <device Device>
struct bucket_update {
  typename Device::stream& stream;
  std::size_t bucket;
  std::span<std::size_t const> parameters;  ///< of the bucket, as indices; what follows is by these
  /// What to read: gradients, or their sums under storage_options::accumulate.
  std::span<buffer_view const> gradients;
  /// What to write, in the dtype of the reduction. May be the same memory as `gradients` (bound or
  /// added up, of one dtype): write no element before it was read.
  std::span<buffer_view const> deltas;
  /// In device memory: clip factor / loss scale; NaN where the norm or the scale is not finite.
  float const* coefficient;
  /// In device memory: steps before this one that were not skipped, since the pipeline was made. A
  /// trainer that goes on from a checkpoint puts its state in place 0, and adds the steps before.
  std::uint64_t const* steps;
};

}  // namespace gradlane

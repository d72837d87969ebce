// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/buckets/parts.hpp>       // for shard_by
#include <gradlane/clip/policy.hpp>         // for average, reduce
#include <gradlane/clip_allreduce.hpp>      // for clip_allreduce
#include <gradlane/element_range.hpp>       // for element_range, intersection
#include <gradlane/gradient_buckets.hpp>    // for gradient_buckets
#include <gradlane/parameter_shards.hpp>    // for parameter_shards
#include <gradlane/reduction_pipeline.hpp>  // for reduction_pipeline

#include <support/model.hpp>  // for load, one_each, parameters, poison_all

#include <algorithm>  // for max
#include <cmath>      // for abs, isnan
#include <cstddef>    // for size_t
#include <limits>     // for numeric_limits
#include <vector>     // for vector

/// What sharded pipelines are compared by.
namespace gradlane::test {

/// The largest |found - expected| over this rank's parts of all buckets, in what result() gives
/// and, where it is written back, in the gradients.
template <class Pipeline, class Buckets>
[[nodiscard]] double largest_shard_error(Pipeline& pipeline,
                                         Buckets& buckets,
                                         std::vector<std::vector<double>> const& expected) {
  auto worst         = 0.0;
  auto const compare = [&](double found, double wanted) {
    auto const error = std::abs(found - wanted);
    worst = std::max(worst, std::isnan(error) ? std::numeric_limits<double>::infinity() : error);
  };
  for (auto b = std::size_t{0}; b < buckets.plan().buckets().size(); ++b) {
    auto const own = pipeline.own_part(b);
    for (auto const p : buckets.plan().buckets()[b].parameters) {
      auto const& slot = *buckets.plan().slot(p);
      auto const part  = intersection({slot.offset, slot.offset + slot.count}, own);
      for (auto i = part.begin; i < part.end; ++i) {
        auto const wanted = expected[p][i - slot.offset];
        compare(load(pipeline.result(b), i - own.begin), wanted);
        compare(load(buckets.gradient(p), i - slot.offset), wanted);
      }
    }
  }
  return worst;
}

/// Steps of x -= 0.125 · gradient, the gradient of an element being its value / 8 plus an integer
/// of rank and step: with all parameters on every rank, and with shards. Gives the largest
/// difference.
/// @param lent  shards lie in the gradients' memory, and what backward reads is a copy of them.
template <class Comm, class Device>
[[nodiscard]] double train_both_ways(Comm& comm,
                                     Device& device,
                                     std::size_t steps,
                                     shard_by by = shard_by::elements,
                                     bool lent   = false) {
  using shards_type = parameter_shards<Device, Comm>;
  auto const sizes  = std::vector<std::size_t>{5, 0, 300, 64, 1, 901};
  auto const ranks  = static_cast<std::size_t>(comm.size());
  auto const plan   = bucket_plan{
      parameters(sizes),
        {.cap_bytes = 1300, .first_cap_bytes = 300, .pad_to = by == shard_by::elements ? ranks : 1}};
  auto whole_buckets = gradient_buckets{device, plan};
  auto shard_buckets = gradient_buckets{device, plan};
  auto whole         = clip_allreduce{whole_buckets, comm, clip::after{3.0}, average::ranks{}};
  auto parts =
      clip_allreduce{shard_buckets, comm, clip::after{3.0}, reduce::sharded{average::ranks{}, by}};
  auto shards  = lent ? shards_type{shard_buckets, comm, by} : shards_type{device, comm, plan, by};
  auto compute = device.make_stream(stream_priority::normal);
  auto values  = std::vector<std::vector<float>>{};  // of all parameters, unsharded
  for (auto p = std::size_t{0}; p < sizes.size(); ++p) {
    auto& v = values.emplace_back(sizes[p]);
    for (auto i = std::size_t{0}; i < v.size(); ++i) {
      v[i] = static_cast<float>(value(9, 9, p, i));
    }
    auto const in = shards.template parameter<float>(p);
    std::copy(v.begin(), v.end(), in.begin());
  }
  auto copies      = values;  // of what the shards hold
  auto const fetch = [&](std::size_t p) {
    shards.wait(p, compute);
    device.sync(compute);
    std::ranges::copy(shards.template parameter<float>(p), copies[p].begin());
  };
  for (auto step = std::size_t{0}; step < steps; ++step) {
    for (auto p = std::size_t{0}; lent && step > 0 && p < sizes.size(); ++p) { fetch(p); }
    auto const gradient = [&](float x, std::size_t p, std::size_t i) {
      return x / 8 + static_cast<float>(value(comm.rank(), step, p, i));
    };
    poison_all(whole_buckets);
    poison_all(shard_buckets);
    whole.begin(compute);
    parts.begin(compute);
    for (auto p = sizes.size(); p-- > 0;) {
      if (!lent) { fetch(p); }
      auto const g = whole_buckets.template gradient<float>(p);
      auto const h = shard_buckets.template gradient<float>(p);
      for (auto i = std::size_t{0}; i < sizes[p]; ++i) {
        g[i] = gradient(values[p][i], p, i);
        h[i] = gradient(copies[p][i], p, i);
      }
      whole.ready(p, compute);
    }
    whole.finish(compute);
    for (auto p = sizes.size(); p-- > 0;) { parts.ready(p, compute); }
    parts.finish(compute);
    device.sync(compute);
    for (auto p = std::size_t{0}; p < sizes.size(); ++p) {
      auto const g = whole_buckets.template gradient<float>(p);
      for (auto i = std::size_t{0}; i < sizes[p]; ++i) { values[p][i] -= 0.125F * g[i]; }
    }
    for (auto b = std::size_t{0}; b < plan.buckets().size(); ++b) {
      auto const own = parts.own_part(b);
      auto const g   = parts.result(b).template as<float>();
      auto const x   = shards.shard(b).template as<float>();
      for (auto const p : plan.buckets()[b].parameters) {
        auto const& slot = *plan.slot(p);
        auto const part  = intersection({slot.offset, slot.offset + slot.count}, own);
        for (auto i = part.begin; i < part.end; ++i) {
          x[i - own.begin] = copies[p][i - slot.offset] - 0.125F * g[i - own.begin];
        }
      }
    }
    shards.gather(compute);
  }
  auto worst = 0.0;
  for (auto p = std::size_t{0}; p < sizes.size(); ++p) {
    shards.wait(p, compute);
    device.sync(compute);
    for (auto i = std::size_t{0}; i < sizes[p]; ++i) {
      auto const error =
          std::abs(static_cast<double>(shards.template parameter<float>(p)[i] - values[p][i]));
      worst = std::max(worst, std::isnan(error) ? std::numeric_limits<double>::infinity() : error);
    }
  }
  return worst;
}

}  // namespace gradlane::test

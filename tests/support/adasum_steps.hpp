// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/gradlane.hpp>

#include <doctest/doctest.h>

#include <support/adasum.hpp>  // for adasum, node_layout, ones
#include <support/model.hpp>   // for all_gradients, factor, gradients, ...

#include <algorithm>  // for shuffle
#include <atomic>     // for atomic
#include <chrono>     // for microseconds
#include <cmath>      // for log2
#include <cstddef>    // for byte, size_t
#include <cstdint>    // for uint64_t
#include <random>     // for mt19937_64
#include <vector>     // for vector

/// Steps of pipelines that join by Adasum, over ranks or nodes, and their reference.
namespace gradlane::test {

/// What each clip policy makes of the gradients.
struct by_policy {
  bucket_plan const& plan;
  gradients const& g;
  node_layout const& layout;

  [[nodiscard]] auto operator()(clip::none const& /*policy*/) const {
    return adasum(g, ones(g), layout);
  }
  [[nodiscard]] auto operator()(clip::after const& policy) const {
    auto result       = adasum(g, ones(g), layout);
    auto const factor = test::factor(norm(result, every(result.size())), policy.max_norm);
    for (auto& p : result) {
      for (auto& x : p) { x *= factor; }
    }
    return result;
  }
  [[nodiscard]] auto operator()(clip::before const& policy) const {
    auto factors = ones(g);
    for (auto r = std::size_t{0}; r < g.size(); ++r) {
      auto const whole = norm(g[r], every(g[r].size()));
      for (auto& f : factors[r]) { f = test::factor(whole, policy.max_norm); }
    }
    return adasum(g, factors, layout);
  }
  template <class Threshold>
  [[nodiscard]] auto operator()(clip::bucketwise<Threshold> const& policy) const {
    auto const bounds = policy.threshold.values(plan);
    auto factors      = ones(g);
    for (auto r = std::size_t{0}; r < g.size(); ++r) {
      for (auto b = std::size_t{0}; b < bounds.size(); ++b) {
        auto const& members = plan.buckets()[b].parameters;
        for (auto const p : members) { factors[r][p] = factor(norm(g[r], members), bounds[b]); }
      }
    }
    return adasum(g, factors, layout);
  }
};

/// How check_steps is to make its buckets.
struct steps_case {
  std::vector<std::size_t> sizes;
  bucket_options options{};
  storage_options storage{};
  dtype type{dtype::fp32};
  double unit{0x1p-23};  ///< the wire's epsilon
  std::uint64_t seed{};
};

/// Three steps on ranks that are threads, ready in random orders: close to the reference, and of
/// the same bits on all ranks.
/// @param reduction_of  the policy of a rank.
template <class Clip, class ReductionOf>
void check_steps(node_layout const& layout,
                 Clip const& clip,
                 ReductionOf reduction_of,
                 steps_case const& input) {
  auto const ranks = static_cast<int>(layout.size());
  CAPTURE(ranks);
  CAPTURE(clip.describe());
  auto const seed = input.seed;
  auto wrong      = std::atomic<int>{0};
  auto results    = std::vector<std::vector<std::vector<std::byte>>>(layout.size());
  local::run(
      ranks,
      {.faults = {.seed      = seed,
                  .max_delay = std::chrono::microseconds{20},
                  .reorder   = seed % 2 == 1}},
      [&](local::communicator& comm, host::device& device) {
        auto buckets = gradient_buckets{
            device, bucket_plan{parameters(input.sizes, input.type), input.options}, input.storage};
        auto pipeline = clip_allreduce{buckets, comm, clip, reduction_of(comm.rank())};
        auto compute  = device.make_stream();
        auto random   = std::mt19937_64{seed + static_cast<unsigned>(comm.rank())};
        for (auto step = std::size_t{0}; step < 3; ++step) {
          poison_all(buckets);
          pipeline.begin(compute);
          auto order = every(input.sizes.size());
          std::shuffle(order.begin(), order.end(), random);
          for (auto const p : order) {
            device.enqueue(compute, [view = buckets.gradient(p), step, p, rank = comm.rank()] {
              write(view, rank, step, p);
            });
            pipeline.ready(p, compute);
          }
          pipeline.finish(compute);
          device.sync(compute);
          auto const g        = all_gradients(comm.size(), step, input.sizes);
          auto const expected = by_policy{buckets.plan(), g, layout}(clip);
          // 4 log2(W) eps, one more for the clip's rounding; elements are below 8 a rank
          auto const bound = (4 * std::log2(ranks) + 1) * input.unit * 8 * 1.5 * ranks;
          if (!(largest_error(buckets, expected) <= bound)) { ++wrong; }
          results[static_cast<std::size_t>(comm.rank())].push_back(sync_snapshot(buckets).bytes());
        }
      });
  CHECK(wrong == 0);
  for (auto const& own : results) { CHECK(own == results[0]); }
}

}  // namespace gradlane::test

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/buckets/plan.hpp>        // for bucket_options, parameter
#include <gradlane/buffer_view.hpp>         // for buffer_view, const_buffer_view
#include <gradlane/concepts.hpp>            // for device
#include <gradlane/detail/exchange.hpp>     // for upload_all
#include <gradlane/detail/host_device.hpp>  // for GRADLANE_HOST_DEVICE
#include <gradlane/gradient_buckets.hpp>
#include <gradlane/reduction_pipeline.hpp>
#include <gradlane/types.hpp>  // for dtype, stream_priority

#include <cmath>    // for abs, isnan, sqrt
#include <cstddef>  // for byte, size_t
#include <cstdint>  // for uint64_t
#include <cstring>  // for memset
#include <limits>   // for numeric_limits
#include <span>     // for span
#include <string>   // for to_string
#include <vector>   // for vector

/// A model whose gradients are a pure function of (rank, step, parameter, element), with a serial
/// reference for every clip mode: what the pipeline's tests compare with.
namespace gradlane::test {

/// Parameters "p0", "p1", ... of the given sizes.
[[nodiscard]] inline std::vector<gradlane::parameter> parameters(
    std::vector<std::size_t> const& sizes, dtype type = dtype::fp32) {
  auto result = std::vector<gradlane::parameter>{};
  for (auto const size : sizes) {
    result.push_back({.name = "p" + std::to_string(result.size()), .count = size, .type = type});
  }
  return result;
}

/// One bucket per parameter: caps of one byte.
inline constexpr auto one_each = gradlane::bucket_options{.cap_bytes = 1, .first_cap_bytes = 1};

/// A small integer in [-8, 8]: sums over ranks are exact in every dtype of the library.
[[nodiscard]] GRADLANE_HOST_DEVICE inline double value(int rank,
                                                       std::size_t step,
                                                       std::size_t parameter,
                                                       std::size_t i) {
  auto h = static_cast<std::uint64_t>(rank) * 0x9E3779B97F4A7C15U + step * 0xBF58476D1CE4E5B9U +
           parameter * 0x94D049BB133111EBU + i * 0xD6E8FEB86659FD93U;
  h ^= h >> 32U;
  h *= 0xD6E8FEB86659FD93U;
  h ^= h >> 32U;
  return static_cast<double>(h % 17U) - 8.0;
}

/// Stores `x` as element i of a view of any floating dtype.
inline void store(gradlane::buffer_view view, std::size_t i, double x) {
  switch (view.type()) {
    case dtype::fp32:
      view.as<float>()[i] = static_cast<float>(x);
      break;
    case dtype::fp64:
      view.as<double>()[i] = x;
      break;
    case dtype::bf16:
      view.as<gradlane::bf16>()[i] = gradlane::bf16{x};
      break;
    case dtype::fp16:
      view.as<gradlane::fp16>()[i] = gradlane::fp16{x};
      break;
    default:
      throw gradlane::contract_error{"test::store: not a floating dtype"};
  }
}

/// Element i of a view of any floating dtype.
[[nodiscard]] inline double load(gradlane::const_buffer_view view, std::size_t i) {
  switch (view.type()) {
    case dtype::fp32:
      return static_cast<double>(view.as<float>()[i]);
    case dtype::fp64:
      return view.as<double>()[i];
    case dtype::bf16:
      return static_cast<double>(static_cast<float>(view.as<gradlane::bf16>()[i]));
    case dtype::fp16:
      return static_cast<double>(static_cast<float>(view.as<gradlane::fp16>()[i]));
    default:
      throw gradlane::contract_error{"test::load: not a floating dtype"};
  }
}

/// Writes one parameter's gradient of a rank and step.
inline void write(gradlane::buffer_view view, int rank, std::size_t step, std::size_t parameter) {
  for (auto i = std::size_t{0}; i < view.count(); ++i) {
    store(view, i, value(rank, step, parameter, i));
  }
}

/// Fills a view of host memory with bits that are NaN in every floating dtype.
inline void poison(gradlane::buffer_view view) {
  if (!view.empty()) { std::memset(view.data(), 0xFF, view.size_bytes()); }
}

/// Memory of the host that has the shape of a view.
class host_copy {
 public:
  explicit host_copy(gradlane::const_buffer_view like)
      : memory_(like.size_bytes()), count_{like.count()}, type_{like.type()} {}

  [[nodiscard]] std::span<std::byte> bytes() noexcept { return memory_; }
  [[nodiscard]] gradlane::buffer_view view() noexcept { return {memory_.data(), count_, type_}; }
  [[nodiscard]] gradlane::const_buffer_view view() const noexcept {
    return {memory_.data(), count_, type_};
  }

 private:
  std::vector<std::byte> memory_;
  std::size_t count_;
  dtype type_;
};

/// Writes one parameter's gradient of a rank and step, in stream order, on any device.
template <device Device>
void enqueue_write(Device& on,
                   typename Device::stream& stream,
                   gradlane::buffer_view view,
                   int rank,
                   std::size_t step,
                   std::size_t parameter) {
  auto values = host_copy{view};
  write(values.view(), rank, step, parameter);
  gradlane::detail::upload_all(on, stream, values.bytes(), view.data());
}

/// Fills a view with bits that are NaN in every floating dtype, in stream order.
template <device Device>
void enqueue_poison(Device& on, typename Device::stream& stream, gradlane::buffer_view view) {
  auto const bytes = std::vector<std::byte>(view.size_bytes(), std::byte{0xFF});
  gradlane::detail::upload_all(on, stream, bytes, view.data());
}

/// Poisons all that buckets hold: gradients, gaps, padding, accumulators, wires. Blocks.
template <class Buckets>
void poison_all(Buckets& buckets) {
  auto& on    = buckets.device();
  auto stream = on.make_stream(stream_priority::normal);
  for (auto b = std::size_t{0}; b < buckets.plan().buckets().size(); ++b) {
    auto& bucket = buckets.bucket(b);
    enqueue_poison(on, stream, bucket.gradient);
    enqueue_poison(on, stream, bucket.accumulator);
    enqueue_poison(on, stream, bucket.wire);
    for (auto const& tensor : bucket.tensors) { enqueue_poison(on, stream, tensor); }
  }
  on.sync(stream);
}

/// Every rank's gradients of a step, by [rank][parameter][element], in fp64.
using gradients = std::vector<std::vector<std::vector<double>>>;

[[nodiscard]] inline gradients all_gradients(int ranks,
                                             std::size_t step,
                                             std::vector<std::size_t> const& sizes) {
  auto result = gradients(static_cast<std::size_t>(ranks));
  for (int r = 0; r < ranks; ++r) {
    for (auto p = std::size_t{0}; p < sizes.size(); ++p) {
      auto& g = result[static_cast<std::size_t>(r)].emplace_back();
      for (auto i = std::size_t{0}; i < sizes[p]; ++i) { g.push_back(value(r, step, p, i)); }
    }
  }
  return result;
}

[[nodiscard]] inline double norm(std::vector<std::vector<double>> const& g,
                                 std::span<std::size_t const> parameters) {
  auto sum = 0.0;
  for (auto const p : parameters) {
    for (auto const x : g[p]) { sum += x * x; }
  }
  return std::sqrt(sum);
}

[[nodiscard]] inline double factor(double norm, double bound) {
  return norm > bound ? bound / norm : 1.0;
}

[[nodiscard]] inline std::vector<std::size_t> every(std::size_t count) {
  auto result = std::vector<std::size_t>{};
  for (auto i = std::size_t{0}; i < count; ++i) { result.push_back(i); }
  return result;
}

/// Σ_r factor[r][p] · g[r][p].
[[nodiscard]] inline std::vector<std::vector<double>> combine(
    gradients const& g, std::vector<std::vector<double>> const& factors) {
  auto result = std::vector<std::vector<double>>{};
  for (auto p = std::size_t{0}; p < g[0].size(); ++p) {
    auto& sum = result.emplace_back(g[0][p].size());
    for (auto r = std::size_t{0}; r < g.size(); ++r) {
      for (auto i = std::size_t{0}; i < sum.size(); ++i) { sum[i] += factors[r][p] * g[r][p][i]; }
    }
  }
  return result;
}

/// mean_r g_r
[[nodiscard]] inline auto reference_none(gradients const& g) {
  auto const share = 1.0 / static_cast<double>(g.size());
  return combine(g, {g.size(), std::vector<double>(g[0].size(), share)});
}

/// clip(mean_r g_r, c)
[[nodiscard]] inline auto reference_after(gradients const& g, double c) {
  auto mean    = reference_none(g);
  auto const f = factor(norm(mean, every(mean.size())), c);
  for (auto& p : mean) {
    for (auto& x : p) { x *= f; }
  }
  return mean;
}

/// mean_r clip(g_r, c)
[[nodiscard]] inline auto reference_before(gradients const& g, double c) {
  auto factors = std::vector<std::vector<double>>{};
  for (auto const& own : g) {
    auto const f = factor(norm(own, every(own.size())), c) / static_cast<double>(g.size());
    factors.emplace_back(own.size(), f);
  }
  return combine(g, factors);
}

/// For each bucket b: mean_r clip(g_{r,b}, bounds[b]).
[[nodiscard]] inline auto reference_bucketwise(gradients const& g,
                                               gradlane::bucket_plan const& plan,
                                               std::vector<double> const& bounds) {
  auto factors = std::vector<std::vector<double>>{};
  for (auto const& own : g) {
    auto& f = factors.emplace_back(own.size());
    for (auto b = std::size_t{0}; b < bounds.size(); ++b) {
      auto const& members = plan.buckets()[b].parameters;
      auto const share    = factor(norm(own, members), bounds[b]) / static_cast<double>(g.size());
      for (auto const p : members) { f[p] = share; }
    }
  }
  return combine(g, factors);
}

/// The same values where g_r is counted with weights w_r: Σ w_r · factors · g_r / Σ w_r.
[[nodiscard]] inline auto reference_weighted(gradients const& g,
                                             std::vector<double> const& weights) {
  auto total = 0.0;
  for (auto const w : weights) { total += w; }
  auto factors = std::vector<std::vector<double>>{};
  for (auto const w : weights) { factors.emplace_back(g[0].size(), total > 0 ? w / total : 0.0); }
  return combine(g, factors);
}

/// One whole step whose gradients `write(parameter, view)` makes, ready in backward order, and then
/// waited for.
template <class Pipeline, class Buckets, class Stream, class Write>
void run_step(Pipeline& pipeline,
              Buckets& buckets,
              Stream& compute,
              Write&& write,
              step_options options = {}) {
  pipeline.begin(compute, options);
  for (auto p = buckets.plan().parameters().size(); p-- > 0;) {
    if (!buckets.plan().parameters()[p].trainable) { continue; }
    write(p, buckets.gradient(p));
    pipeline.ready(p, compute);
  }
  pipeline.finish(compute);
  buckets.device().sync(compute);
}

/// All gradients as they are at one place in a stream.
template <class Buckets>
class snapshot {
 public:
  /// The values are there once `stream` has come here.
  template <class Stream>
  snapshot(Buckets const& buckets, Stream& stream) {
    for (auto p = std::size_t{0}; p < buckets.plan().parameters().size(); ++p) {
      auto const view = buckets.gradient(p);
      gradients_.emplace_back(view);
      if (!view.empty()) { buckets.device().download(stream, view, gradients_.back().bytes()); }
    }
  }

  /// Element i of a parameter's gradient.
  [[nodiscard]] double operator()(std::size_t parameter, std::size_t i) const {
    return load(gradients_[parameter].view(), i);
  }

  /// The bytes of all gradients, one after the other.
  [[nodiscard]] std::vector<std::byte> bytes() const {
    auto result = std::vector<std::byte>{};
    for (auto const& gradient : gradients_) {
      auto const view = gradient.view();
      result.insert(result.end(), view.data(), view.data() + view.size_bytes());
    }
    return result;
  }

  /// The largest |found - expected| over all parameters; infinity where something is NaN.
  [[nodiscard]] double error(std::vector<std::vector<double>> const& expected) const {
    auto worst = 0.0;
    for (auto p = std::size_t{0}; p < expected.size(); ++p) {
      for (auto i = std::size_t{0}; i < expected[p].size(); ++i) {
        auto const error = std::abs((*this)(p, i) - expected[p][i]);
        if (!(error <= worst)) {
          worst = std::isnan(error) ? std::numeric_limits<double>::infinity() : error;
        }
      }
    }
    return worst;
  }

 private:
  std::vector<host_copy> gradients_;
};

/// The gradients of buckets on which no work is under way. Blocks.
template <class Buckets>
[[nodiscard]] snapshot<Buckets> sync_snapshot(Buckets const& buckets) {
  auto stream = buckets.device().make_stream(stream_priority::normal);
  auto result = snapshot<Buckets>{buckets, stream};
  buckets.device().sync(stream);
  return result;
}

/// snapshot::error of buckets on which no work is under way. Blocks.
template <class Buckets>
[[nodiscard]] double largest_error(Buckets const& buckets,
                                   std::vector<std::vector<double>> const& expected) {
  return sync_snapshot(buckets).error(expected);
}

}  // namespace gradlane::test

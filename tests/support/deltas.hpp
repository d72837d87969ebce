// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/bucket_update.hpp>       // for bucket_update
#include <gradlane/buckets/plan.hpp>        // for bucket_plan
#include <gradlane/buffer_view.hpp>         // for buffer_view
#include <gradlane/clip/policy.hpp>         // for average, deltas, non_finite, reduce
#include <gradlane/clip/report.hpp>         // for step_status
#include <gradlane/clip_allreduce.hpp>      // for clip_allreduce
#include <gradlane/concepts.hpp>            // for communicator_for, device
#include <gradlane/detail/host_device.hpp>  // for GRADLANE_HOST_DEVICE
#include <gradlane/gradient_buckets.hpp>    // for gradient_buckets, storage_options
#include <gradlane/types.hpp>               // for bf16, dtype, size_of

#include <support/adasum.hpp>  // for adasum_tree, wide_vector
#include <support/model.hpp>   // for factor, load, norm, value

#include <algorithm>   // for max, shuffle
#include <cmath>       // for abs, isnan, sqrt
#include <cstddef>     // for byte, size_t
#include <cstdint>     // for uint16_t, uint32_t, uint64_t
#include <cstring>     // for memcpy
#include <functional>  // for function
#include <limits>      // for numeric_limits
#include <random>      // for mt19937_64
#include <span>        // for as_writable_bytes, span
#include <vector>      // for vector

/// Trainers of reduce::deltas on any device, whose steps may be captured, and what they should come
/// to in fp64.
namespace gradlane::test {

/// SGD with momentum. `before` and `after` are the moments of an element, `stride` apart.
struct momentum_optimizer {
  static constexpr auto moments = std::size_t{1};

  template <class T>
  [[nodiscard]] GRADLANE_HOST_DEVICE static T step(
      T g, T /*w*/, std::uint64_t /*t*/, T const* before, T* after, std::size_t /*stride*/) {
    *after = T(0.75) * *before + g;
    return T(-0.125) * *after;
  }
};

/// Adam with decoupled weight decay.
struct adam_optimizer {
  static constexpr auto moments = std::size_t{2};

  template <class T>
  [[nodiscard]] GRADLANE_HOST_DEVICE static T step(
      T g, T w, std::uint64_t t, T const* before, T* after, std::size_t stride) {
    auto left = T(1);  // 1 - β^t, β = 0.75 for both moments
    for (auto i = std::uint64_t{0}; i < t; ++i) { left *= T(0.75); }
    left          = T(1) - left;
    after[0]      = T(0.75) * before[0] + T(0.25) * g;
    after[stride] = T(0.75) * before[stride] + T(0.25) * g * g;
    return T(-0.125) *
           (after[0] / left / (std::sqrt(after[stride] / left) + T(0.001)) + T(0.0625) * w);
  }
};

/// Conversions of fp32 and bf16 that kernels may call.
[[nodiscard]] GRADLANE_HOST_DEVICE inline float widened(float x) noexcept { return x; }
[[nodiscard]] GRADLANE_HOST_DEVICE inline float widened(bf16 x) noexcept {
  auto const bits = std::uint32_t{x.bits} << 16U;
  auto result     = float{};
  std::memcpy(&result, &bits, sizeof result);
  return result;
}
GRADLANE_HOST_DEVICE inline void narrow(float x, float& to) noexcept { to = x; }
GRADLANE_HOST_DEVICE inline void narrow(float x, bf16& to) noexcept {
  auto bits = std::uint32_t{};
  std::memcpy(&bits, &x, sizeof bits);
  bits += 0x7FFFU + ((bits >> 16U) & 1U);  // to nearest, ties to even
  to.bits = x != x ? std::uint16_t{0x7FC0} : static_cast<std::uint16_t>(bits >> 16U);
}

/// One parameter's update, for device::invoke.
template <class Optimizer, class G, class D>
struct update_parameter {
  G const* gradient;
  D* delta;
  std::size_t count;
  float const* coefficient;
  std::uint64_t const* steps;
  float* state;  // (2, moments, count)
  float const* weights;

  GRADLANE_HOST_DEVICE void operator()() const {
    auto const size          = Optimizer::moments * count;
    auto const* const before = state + (*steps % 2) * size;
    auto* const after        = state + ((*steps + 1) % 2) * size;
    for (auto i = std::size_t{0}; i < count; ++i) {
      auto const g = widened(gradient[i]) * *coefficient;
      narrow(Optimizer::step(g, weights[i], *steps + 1, before + i, after + i, count), delta[i]);
    }
  }
};

/// w += delta, unless the step is skipped.
template <class D>
struct apply_delta {
  D const* delta;
  float* weights;
  std::size_t count;
  step_status const* status;

  GRADLANE_HOST_DEVICE void operator()() const {
    if (status->skip != 0) { return; }
    for (auto i = std::size_t{0}; i < count; ++i) { weights[i] += widened(delta[i]); }
  }
};

/// Which gradients of a training hold Inf.
struct bad_gradient {
  int rank{-1};  ///< none
  std::size_t parameter{};

  [[nodiscard]] GRADLANE_HOST_DEVICE static bool is_bad(std::uint64_t step) noexcept {
    return step % 4 == 2;
  }
};

/// An eighth of value(): exact in every dtype.
template <class G>
struct write_eighths {
  G* data;
  std::size_t count;
  std::uint64_t const* step;
  int rank;
  bool bad;
  std::size_t parameter;
  std::size_t micro;
  std::size_t micros;

  GRADLANE_HOST_DEVICE void operator()() const {
    for (auto i = std::size_t{0}; i < count; ++i) {
      narrow(static_cast<float>(value(rank, *step * micros + micro, parameter, i)) * 0.125F,
             data[i]);
    }
    if (bad && bad_gradient::is_bad(*step)) { narrow(infinity, data[count / 2]); }
  }

  static constexpr auto infinity = std::numeric_limits<float>::infinity();
};

struct count_step {
  std::uint64_t* step;
  GRADLANE_HOST_DEVICE void operator()() const { ++*step; }
};

/// Calls f with a value of the type of a dtype: fp32 or bf16.
template <class F>
void with_type(dtype type, F f) {
  type == dtype::bf16 ? f(bf16{}) : f(float{});
}

struct delta_options {
  bucket_options buckets{};
  storage_options storage{};
  dtype type{dtype::fp32};
  bool copied{false};
  std::size_t micro_steps{1};
  bad_gradient bad{};
};

/// A trainer whose weights start at 1 on all ranks.
template <device Device, communicator_for<Device> Comm, class Optimizer, class Clip, class Join>
class delta_trainer {
 public:
  using function = std::function<void(bucket_update<Device> const&)>;

  delta_trainer(Device& on,
                Comm& comm,
                std::vector<std::size_t> const& sizes,
                Clip clip,
                Join join,
                delta_options const& options = {})
      : device_{on},
        comm_{comm},
        options_{options},
        tensors_{make_tensors(sizes)},
        buckets_{make_buckets(sizes)},
        pipeline_{
            buckets_,
            comm,
            clip,
            reduce::deltas{join, function{[this](bucket_update<Device> const& u) { update(u); }}},
            non_finite::skip{}} {
    for (auto const size : sizes) {
      weights_.push_back(make(size, dtype::fp32, 1.0F));
      state_.push_back(make(2 * Optimizer::moments * size, dtype::fp32, 0.0F));
    }
    device_.zero(compute, number_);
    device_.sync(compute);
  }

  /// One step; its number is read on the device. Gradients become ready in an order of `random`.
  template <class Random>
  void step(Random& random) {
    for (auto micro = std::size_t{0}; micro < options_.micro_steps; ++micro) {
      pipeline_.begin(compute, {.accumulate = micro + 1 < options_.micro_steps});
      auto order = every(weights_.size());
      std::shuffle(order.begin(), order.end(), random);
      for (auto const p : order) {
        write(p, micro);
        pipeline_.ready(p, compute);
      }
      pipeline_.finish(compute);
    }
    apply();
    device_.invoke(compute, count_step{number()});
  }

  /// The largest difference to weights. Blocks.
  [[nodiscard]] double error(std::vector<std::vector<double>> const& expected) {
    auto worst = 0.0;
    for (auto p = std::size_t{0}; p < weights_.size(); ++p) {
      auto copy = host_copy{weights_[p]};
      device_.download(compute, weights_[p], copy.bytes());
      device_.sync(compute);
      for (auto i = std::size_t{0}; i < expected[p].size(); ++i) {
        auto const error = std::abs(load(copy.view(), i) - expected[p][i]);
        worst =
            std::max(worst, std::isnan(error) ? std::numeric_limits<double>::infinity() : error);
      }
    }
    return worst;
  }

  [[nodiscard]] auto& pipeline() { return pipeline_; }
  [[nodiscard]] auto& buckets() { return buckets_; }

 private:
  [[nodiscard]] buffer_view make(std::size_t count, dtype type, float fill) {
    memory_.push_back(device_.allocate(count * size_of(type)));
    auto const view = buffer_view{memory_.back().data(), count, type};
    auto values     = host_copy{view};
    for (auto i = std::size_t{0}; i < count; ++i) { store(values.view(), i, fill); }
    gradlane::detail::upload_all(device_, compute, values.bytes(), view.data());
    return view;
  }

  [[nodiscard]] std::vector<buffer_view> make_tensors(std::vector<std::size_t> const& sizes) {
    auto result = std::vector<buffer_view>{};
    for (auto const size : sizes) {
      if (options_.copied) { result.push_back(make(size, options_.type, 0.0F)); }
    }
    return result;
  }

  [[nodiscard]] gradient_buckets<Device> make_buckets(std::vector<std::size_t> const& sizes) {
    auto plan = bucket_plan{parameters(sizes, options_.type), options_.buckets};
    if (options_.copied) {
      return {device_, std::move(plan), std::span<buffer_view const>{tensors_}, options_.storage};
    }
    return {device_, std::move(plan), options_.storage};
  }

  void write(std::size_t p, std::size_t micro) {
    auto const to = buckets_.gradient(p);
    if (to.empty()) { return; }
    auto const bad = options_.bad.rank == comm_.rank() && options_.bad.parameter == p && micro == 0;
    with_type(to.type(), [&]<class G>(G) {
      device_.invoke(compute,
                     write_eighths<G>{.data      = to.template as<G>().data(),
                                      .count     = to.count(),
                                      .step      = number(),
                                      .rank      = comm_.rank(),
                                      .bad       = bad,
                                      .parameter = p,
                                      .micro     = micro,
                                      .micros    = options_.micro_steps});
    });
  }

  void update(bucket_update<Device> const& u) {
    for (auto t = std::size_t{0}; t < u.parameters.size(); ++t) {
      auto const p = u.parameters[t];
      with_type(u.gradients[t].type(), [&]<class G>(G) {
        with_type(u.deltas[t].type(), [&]<class D>(D) {
          device_.invoke(u.stream,
                         update_parameter<Optimizer, G, D>{
                             .gradient    = u.gradients[t].template as<G>().data(),
                             .delta       = u.deltas[t].template as<D>().data(),
                             .count       = u.deltas[t].count(),
                             .coefficient = u.coefficient,
                             .steps       = u.steps,
                             .state       = state_[p].template as<float>().data(),
                             .weights     = weights_[p].template as<float>().data()});
        });
      });
    }
  }

  void apply() {
    for (auto p = std::size_t{0}; p < weights_.size(); ++p) {
      auto const from = options_.storage.write_back ? buckets_.gradient(p) : buckets_.reduced(p);
      if (from.empty()) { continue; }
      with_type(from.type(), [&]<class D>(D) {
        device_.invoke(compute,
                       apply_delta<D>{.delta   = from.template as<D>().data(),
                                      .weights = weights_[p].template as<float>().data(),
                                      .count   = from.count(),
                                      .status  = pipeline_.status()});
      });
    }
  }

  [[nodiscard]] std::uint64_t* number() { return number_.template as<std::uint64_t>().data(); }

  Device& device_;
  Comm& comm_;
  delta_options options_;
  std::vector<typename Device::buffer> memory_;

 public:
  typename Device::stream compute = device_.make_stream(stream_priority::normal);

 private:
  std::vector<buffer_view> tensors_;
  std::vector<buffer_view> weights_;
  std::vector<buffer_view> state_;
  typename Device::buffer number_memory_{device_.allocate(sizeof(std::uint64_t))};
  buffer_view number_{number_memory_.data(), 1, dtype::uint64};
  gradient_buckets<Device> buckets_;
  clip_allreduce<Device, Comm, Clip, reduce::deltas<Join, function>, non_finite::skip> pipeline_;
};

/// d_1, ..., d_W of one parameter joined by a policy.
[[nodiscard]] inline wide_vector joined(reduce::adasum, std::vector<wide_vector> const& deltas) {
  return adasum_tree(deltas).value;
}
[[nodiscard]] inline wide_vector joined(average::none, std::vector<wide_vector> const& deltas) {
  auto sum = wide_vector(deltas[0].size());
  for (auto const& d : deltas) {
    for (auto i = std::size_t{0}; i < sum.size(); ++i) { sum[i] += d[i]; }
  }
  return sum;
}
[[nodiscard]] inline wide_vector joined(average::ranks, std::vector<wide_vector> const& deltas) {
  auto mean = joined(average::none{}, deltas);
  for (auto& x : mean) { x /= static_cast<long double>(deltas.size()); }
  return mean;
}

/// What delta_trainers of all ranks come to.
template <class Optimizer, class Join>
class delta_reference {
 public:
  delta_reference(int ranks, std::vector<std::size_t> const& sizes, Join join)
      : sizes_{sizes}, join_{join}, state_(static_cast<std::size_t>(ranks)) {
    for (auto const size : sizes) {
      weights_.emplace_back(size, 1.0);
      for (auto& own : state_) { own.emplace_back(Optimizer::moments * size); }
    }
  }

  /// A step that is not skipped. `factors(g)` gives the clip factors by [rank][parameter].
  template <class Factors>
  void step(std::uint64_t number, std::size_t micros, Factors factors) {
    auto g = gradients{};
    for (auto r = std::size_t{0}; r < state_.size(); ++r) {
      auto& own = g.emplace_back();
      for (auto p = std::size_t{0}; p < sizes_.size(); ++p) {
        auto& sum = own.emplace_back(sizes_[p]);
        for (auto m = std::size_t{0}; m < micros; ++m) {
          for (auto i = std::size_t{0}; i < sum.size(); ++i) {
            sum[i] += value(static_cast<int>(r), number * micros + m, p, i) / 8;
          }
        }
      }
    }
    ++updates_;
    auto const coefficients = factors(g);
    for (auto p = std::size_t{0}; p < sizes_.size(); ++p) {
      auto deltas = std::vector<wide_vector>{};
      for (auto r = std::size_t{0}; r < state_.size(); ++r) {
        auto& d = deltas.emplace_back();
        for (auto i = std::size_t{0}; i < sizes_[p]; ++i) {
          auto* const at = state_[r][p].data() + i;
          d.push_back(static_cast<long double>(Optimizer::step(
              coefficients[r][p] * g[r][p][i], weights_[p][i], updates_, at, at, sizes_[p])));
        }
      }
      auto const sum = joined(join_, deltas);
      for (auto i = std::size_t{0}; i < sizes_[p]; ++i) {
        weights_[p][i] += static_cast<double>(sum[i]);
      }
    }
  }

  [[nodiscard]] std::vector<std::vector<double>> const& weights() const { return weights_; }

 private:
  std::vector<std::size_t> sizes_;
  Join join_;
  std::vector<std::vector<double>> weights_;             // by parameter
  std::vector<std::vector<std::vector<double>>> state_;  // by rank and parameter
  std::uint64_t updates_{0};
};

/// Clip factors of 1, whatever the gradients.
[[nodiscard]] inline auto never_clipped() {
  return [](gradients const& g) {
    return std::vector<std::vector<double>>(g.size(), std::vector<double>(g[0].size(), 1.0));
  };
}

/// The factors of clip::bucketwise.
[[nodiscard]] inline auto clipped_bucketwise(bucket_plan const& plan, std::vector<double> bounds) {
  return [&plan, bounds = std::move(bounds)](gradients const& g) {
    auto result = never_clipped()(g);
    for (auto r = std::size_t{0}; r < g.size(); ++r) {
      for (auto b = std::size_t{0}; b < bounds.size(); ++b) {
        auto const& members = plan.buckets()[b].parameters;
        for (auto const p : members) { result[r][p] = factor(norm(g[r], members), bounds[b]); }
      }
    }
    return result;
  };
}

/// The factors of clip::before.
[[nodiscard]] inline auto clipped_before(double bound) {
  return [bound](gradients const& g) {
    auto result = never_clipped()(g);
    for (auto r = std::size_t{0}; r < g.size(); ++r) {
      for (auto& f : result[r]) { f = factor(norm(g[r], every(g[r].size())), bound); }
    }
    return result;
  };
}

}  // namespace gradlane::test

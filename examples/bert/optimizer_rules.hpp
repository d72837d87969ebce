// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "optimizer_settings.hpp"  // for optimizer_settings, update_norms

#include <algorithm>  // for min
#include <cmath>      // for pow, sqrt
#include <cstddef>    // for size_t
#include <cstdint>    // for uint64_t

/// The arithmetic of AdamW and LAMB on the CPU, element by element, for who owns state and threads.
namespace bert::rules {

/// What all elements of a tensor share.
struct factors {
  float gradient;  // step_status::coefficient
  float beta1;
  float rest1;  // 1 - beta1, which fp32 numbers near 1 would not give exactly
  float beta2;
  float rest2;
  float first;  // m̂ = first * m
  float root;   // √v̂ = root * √v
  float epsilon;
  float decay;
  float learning_rate;  // times the trust ratio
};

/// @param step   from 1.
/// @param decays  whether weight decay applies to the tensor.
[[nodiscard]] inline factors factors_of(optimizer_settings const& settings,
                                        std::uint64_t step,
                                        double learning_rate,
                                        float coefficient,
                                        bool decays) {
  auto const t         = static_cast<double>(step);
  auto const corrected = settings.bias_correction;
  auto const of_first  = corrected ? 1 / (1 - std::pow(settings.beta1, t)) : 1;
  auto const of_root   = corrected ? 1 / std::sqrt(1 - std::pow(settings.beta2, t)) : 1;
  return {coefficient,
          static_cast<float>(settings.beta1),
          static_cast<float>(1 - settings.beta1),
          static_cast<float>(settings.beta2),
          static_cast<float>(1 - settings.beta2),
          static_cast<float>(of_first),
          static_cast<float>(of_root),
          static_cast<float>(settings.epsilon),
          decays ? static_cast<float>(settings.weight_decay) : 0.0F,
          static_cast<float>(learning_rate)};
}

/// Where elements lie. Results may replace what they are made from.
struct elements {
  float const* parameter;
  float const* gradient;
  float const* first;
  float const* second;
  float* new_first;
  float* new_second;
  float* result;
  std::size_t size;
};

/// What goes into `result`.
enum class result_kind { parameter, delta };

inline void update_moments(factors const& f, float raw, float& m, float& v) {
  auto const g = f.gradient * raw;
  m            = f.beta1 * m + f.rest1 * g;
  v            = f.beta2 * v + f.rest2 * g * g;
}

[[nodiscard]] inline float direction(factors const& f, float m, float v, float p) {
  return f.first * m / (f.root * std::sqrt(v) + f.epsilon) + f.decay * p;
}

template <result_kind Kind>
[[nodiscard]] inline float result_of(factors const& f, float p, float u) {
  return Kind == result_kind::parameter ? p - f.learning_rate * u : -f.learning_rate * u;
}

template <result_kind Kind>
void adamw(factors const& f, elements const& e) {
#pragma omp simd
  for (std::size_t i = 0; i < e.size; ++i) {
    auto m = e.first[i];
    auto v = e.second[i];
    update_moments(f, e.gradient[i], m, v);
    e.new_first[i]  = m;
    e.new_second[i] = v;
    auto const p    = e.parameter[i];
    e.result[i]     = result_of<Kind>(f, p, direction(f, m, v, p));
  }
}

/// The moments, and the sums of squares of parameters and directions.
[[nodiscard]] inline update_norms lamb_moments(factors const& f, elements const& e) {
  constexpr auto sum_size = std::size_t{512};  // elements that are summed up in fp32
  auto result             = update_norms{};
  for (auto begin = std::size_t{0}; begin < e.size; begin += sum_size) {
    auto const end     = std::min(begin + sum_size, e.size);
    auto of_parameters = 0.0F;
    auto of_updates    = 0.0F;
#pragma omp simd reduction(+ : of_parameters, of_updates)
    for (std::size_t i = begin; i < end; ++i) {
      auto m = e.first[i];
      auto v = e.second[i];
      update_moments(f, e.gradient[i], m, v);
      e.new_first[i]  = m;
      e.new_second[i] = v;
      auto const p    = e.parameter[i];
      auto const u    = direction(f, m, v, p);
      of_parameters += p * p;
      of_updates += u * u;
    }
    result.parameters += static_cast<double>(of_parameters);
    result.updates += static_cast<double>(of_updates);
  }
  return result;
}

/// ‖p‖ / ‖u‖ of a whole tensor.
[[nodiscard]] inline float trust_ratio(optimizer_settings const& settings,
                                       bool decays,
                                       update_norms const& of) {
  auto const trusted = settings.trust_without_decay || (decays && settings.weight_decay > 0);
  if (!trusted || !(of.parameters > 0) || !(of.updates > 0)) { return 1.0F; }
  return static_cast<float>(std::sqrt(of.parameters / of.updates));
}

/// With the moments that lamb_moments() has left.
template <result_kind Kind>
void lamb_apply(factors const& f, elements const& e) {
#pragma omp simd
  for (std::size_t i = 0; i < e.size; ++i) {
    auto const p = e.parameter[i];
    e.result[i]  = result_of<Kind>(f, p, direction(f, e.new_first[i], e.new_second[i], p));
  }
}

}  // namespace bert::rules

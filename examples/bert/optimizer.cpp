// SPDX-License-Identifier: Apache-2.0
#include "optimizer.hpp"

#include <gradlane/error.hpp>  // for expects

#include <algorithm>  // for min, copy
#include <cmath>      // for sqrt, pow

namespace bert {

namespace {

constexpr auto block_size = std::size_t{16384};  // four arrays of it fit into a core's cache
constexpr auto sum_size   = std::size_t{512};    // elements that are summed up in fp32

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

/// Where a block's elements lie.
struct elements {
  float* parameter;
  float const* gradient;
  float* first;
  float* second;
  gradlane::bf16* working;  // or null
  std::size_t size;
};

inline void update_moments(factors const& f, float raw, float& m, float& v) {
  auto const g = f.gradient * raw;
  m            = f.beta1 * m + f.rest1 * g;
  v            = f.beta2 * v + f.rest2 * g * g;
}

[[nodiscard]] inline float direction(factors const& f, float m, float v, float p) {
  return f.first * m / (f.root * std::sqrt(v) + f.epsilon) + f.decay * p;
}

void write_working(elements const& e) {
  if (e.working == nullptr) { return; }
#pragma omp simd
  for (std::size_t i = 0; i < e.size; ++i) {
    e.working[i].bits = gradlane::bf16{e.parameter[i]}.bits;
  }
}

void adamw(factors const& f, elements const& e) {
#pragma omp simd
  for (std::size_t i = 0; i < e.size; ++i) {
    auto m = e.first[i];
    auto v = e.second[i];
    update_moments(f, e.gradient[i], m, v);
    e.first[i]  = m;
    e.second[i] = v;
    e.parameter[i] -= f.learning_rate * direction(f, m, v, e.parameter[i]);
  }
  write_working(e);
}

/// The moments, and the sums of squares of parameters and directions.
void lamb_moments(factors const& f, elements const& e, double& parameters, double& updates) {
  parameters = 0;
  updates    = 0;
  for (auto begin = std::size_t{0}; begin < e.size; begin += sum_size) {
    auto const end     = std::min(begin + sum_size, e.size);
    auto of_parameters = 0.0F;
    auto of_updates    = 0.0F;
#pragma omp simd reduction(+ : of_parameters, of_updates)
    for (std::size_t i = begin; i < end; ++i) {
      auto m = e.first[i];
      auto v = e.second[i];
      update_moments(f, e.gradient[i], m, v);
      e.first[i]   = m;
      e.second[i]  = v;
      auto const p = e.parameter[i];
      auto const u = direction(f, m, v, p);
      of_parameters += p * p;
      of_updates += u * u;
    }
    parameters += static_cast<double>(of_parameters);
    updates += static_cast<double>(of_updates);
  }
}

void lamb_apply(factors const& f, elements const& e) {
#pragma omp simd
  for (std::size_t i = 0; i < e.size; ++i) {
    e.parameter[i] -= f.learning_rate * direction(f, e.first[i], e.second[i], e.parameter[i]);
  }
  write_working(e);
}

}  // namespace

optimizer::optimizer(parameter_list const& list, optimizer_settings const& settings)
    : settings_{settings}, total_{list.total()}, first_(total_), second_(total_) {
  settings.check();
  for (auto tensor = std::size_t{0}; tensor < list.size(); ++tensor) {
    auto const& p = list[tensor];
    decays_.push_back(p.decay);
    sizes_.push_back(p.size);
    for (auto begin = std::size_t{0}; begin < p.size; begin += block_size) {
      blocks_.push_back({tensor, begin, p.offset + begin, std::min(block_size, p.size - begin)});
    }
  }
  norms_.resize(blocks_.size());
}

void optimizer::step(std::span<float> parameters,
                     std::span<std::span<float> const> gradients,
                     double learning_rate,
                     gradlane::step_status const& status,
                     std::span<gradlane::bf16> working) {
  using gradlane::expects;
  expects(parameters.size() == total_, "optimizer: the parameters have the wrong size");
  expects(working.empty() || working.size() == total_, "optimizer: the copy has the wrong size");
  expects(gradients.size() == sizes_.size(), "optimizer: needs one gradient for each tensor");
  for (auto i = std::size_t{0}; i < sizes_.size(); ++i) {
    expects(gradients[i].size() == sizes_[i], "optimizer: a gradient has the wrong size");
  }
  if (status.skip != 0) { return; }
  ++steps_;

  auto const t          = static_cast<double>(steps_);
  auto const corrected  = settings_.bias_correction;
  auto const of_first   = corrected ? 1 / (1 - std::pow(settings_.beta1, t)) : 1;
  auto const of_root    = corrected ? 1 / std::sqrt(1 - std::pow(settings_.beta2, t)) : 1;
  auto const common     = factors{status.coefficient,
                              static_cast<float>(settings_.beta1),
                              static_cast<float>(1 - settings_.beta1),
                              static_cast<float>(settings_.beta2),
                              static_cast<float>(1 - settings_.beta2),
                              static_cast<float>(of_first),
                              static_cast<float>(of_root),
                              static_cast<float>(settings_.epsilon),
                              0,
                              static_cast<float>(learning_rate)};
  auto const decay      = static_cast<float>(settings_.weight_decay);
  auto const factors_of = [&](block const& b) {
    auto f  = common;
    f.decay = decays_[b.tensor] ? decay : 0;
    return f;
  };
  auto const elements_of = [&](block const& b) {
    return elements{parameters.data() + b.offset,
                    gradients[b.tensor].data() + b.begin,
                    first_.data() + b.offset,
                    second_.data() + b.offset,
                    working.empty() ? nullptr : working.data() + b.offset,
                    b.size};
  };

  if (settings_.rule == update_rule::adamw) {
#pragma omp parallel for schedule(static)
    for (std::size_t i = 0; i < blocks_.size(); ++i) {
      adamw(factors_of(blocks_[i]), elements_of(blocks_[i]));
    }
    return;
  }
#pragma omp parallel for schedule(static)
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    lamb_moments(
        factors_of(blocks_[i]), elements_of(blocks_[i]), norms_[i].parameters, norms_[i].updates);
  }
  auto const ratios = trust_ratios();
#pragma omp parallel for schedule(static)
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    auto f = factors_of(blocks_[i]);
    f.learning_rate *= ratios[blocks_[i].tensor];
    lamb_apply(f, elements_of(blocks_[i]));
  }
}

std::vector<float> optimizer::trust_ratios() const {
  auto sums = std::vector<norms>(sizes_.size());
  for (auto i = std::size_t{0}; i < blocks_.size(); ++i) {
    sums[blocks_[i].tensor].parameters += norms_[i].parameters;
    sums[blocks_[i].tensor].updates += norms_[i].updates;
  }
  auto result = std::vector<float>(sizes_.size(), 1.0F);
  for (auto i = std::size_t{0}; i < sums.size(); ++i) {
    auto const trusted =
        settings_.trust_without_decay || (decays_[i] && settings_.weight_decay > 0);
    if (trusted && sums[i].parameters > 0 && sums[i].updates > 0) {
      result[i] = static_cast<float>(std::sqrt(sums[i].parameters / sums[i].updates));
    }
  }
  return result;
}

void optimizer::restore(std::uint64_t steps,
                        std::span<float const> first,
                        std::span<float const> second) {
  gradlane::expects(first.size() == total_ && second.size() == total_,
                    "optimizer: the moments have the wrong size");
  steps_ = steps;
  std::copy(first.begin(), first.end(), first_.begin());
  std::copy(second.begin(), second.end(), second_.begin());
}

}  // namespace bert

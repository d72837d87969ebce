// SPDX-License-Identifier: Apache-2.0
#include "delta_optimizer.hpp"

#include "optimizer_rules.hpp"  // for adamw, elements, factors_of, lamb_apply, lamb_moments, …

#include <gradlane/error.hpp>  // for expects, state_error

#include <algorithm>  // for ranges::copy

namespace bert {

delta_optimizer::delta_optimizer(parameter_list const& list, optimizer_settings const& settings)
    : settings_{settings}, list_{list} {
  settings.check();
  for (auto* moments : {&first_, &second_}) {
    for (auto& place : *moments) { place.resize(list.total()); }
  }
}

void delta_optimizer::propose(std::size_t tensor,
                              std::span<float const> parameters,
                              std::span<float const> gradient,
                              std::span<float> delta,
                              double learning_rate,
                              float coefficient,
                              std::uint64_t counted) {
  using rules::result_kind;
  auto const& p = list_[tensor];
  gradlane::expects(
      parameters.size() == list_.total() && gradient.size() == p.size && delta.size() == p.size,
      "delta_optimizer: a size does not fit the list");
  auto const from = counted % 2;
  auto const to   = 1 - from;
  auto factors =
      rules::factors_of(settings_, restored_ + counted + 1, learning_rate, coefficient, p.decay);
  auto const all = rules::elements{parameters.data() + p.offset,
                                   gradient.data(),
                                   first_[from].data() + p.offset,
                                   second_[from].data() + p.offset,
                                   first_[to].data() + p.offset,
                                   second_[to].data() + p.offset,
                                   delta.data(),
                                   p.size};
  if (settings_.rule == update_rule::adamw) {
    rules::adamw<result_kind::delta>(factors, all);
    return;
  }
  auto const norms = rules::lamb_moments(factors, all);
  factors.learning_rate *= rules::trust_ratio(settings_, p.decay, norms);
  rules::lamb_apply<result_kind::delta>(factors, all);
}

void delta_optimizer::apply(std::span<float> parameters,
                            std::span<std::span<float> const> deltas,
                            gradlane::step_status const& status) {
  gradlane::expects(parameters.size() == list_.total() && deltas.size() == list_.size(),
                    "delta_optimizer: a size does not fit the list");
  if (status.skip != 0) { return; }
  ++counted_;
#pragma omp parallel for schedule(dynamic)
  for (std::size_t tensor = 0; tensor < deltas.size(); ++tensor) {
    auto const from = deltas[tensor];
    auto const to   = list_.slice(parameters, tensor);
#pragma omp simd
    for (std::size_t i = 0; i < from.size(); ++i) { to[i] += from[i]; }
  }
}

void delta_optimizer::restore(std::uint64_t steps,
                              std::span<float const> first,
                              std::span<float const> second) {
  gradlane::expects(first.size() == list_.total() && second.size() == list_.total(),
                    "delta_optimizer: the moments have the wrong size");
  if (counted_ > 0) { throw gradlane::state_error{"delta_optimizer: steps were made before"}; }
  restored_ = steps;
  std::ranges::copy(first, first_[0].begin());
  std::ranges::copy(second, second_[0].begin());
}

}  // namespace bert

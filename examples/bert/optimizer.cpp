// SPDX-License-Identifier: Apache-2.0
#include "optimizer.hpp"

#include "optimizer_rules.hpp"  // for adamw, elements, factors_of, lamb_apply, lamb_moments, …
#include "tensor_part.hpp"      // for check_part, whole_tensors

#include <gradlane/error.hpp>  // for expects

#include <algorithm>  // for copy, min

namespace bert {

namespace {

constexpr auto block_size = std::size_t{16384};  // four arrays of it fit into a core's cache

void write_working(float const* from, gradlane::bf16* to, std::size_t size) {
  if (to == nullptr) { return; }
#pragma omp simd
  for (std::size_t i = 0; i < size; ++i) { to[i].bits = gradlane::bf16{from[i]}.bits; }
}

}  // namespace

optimizer::optimizer(parameter_list const& list, optimizer_settings const& settings)
    : optimizer{list, settings, whole_tensors(list)} {}

optimizer::optimizer(parameter_list const& list,
                     optimizer_settings const& settings,
                     std::span<tensor_part const> parts)
    : settings_{settings}, total_{list.total()} {
  settings.check();
  for (auto const& p : list) {
    decays_.push_back(p.decay);
    sizes_.push_back(p.size);
  }
  auto place = std::size_t{0};
  for (auto const& [tensor, begin, size] : parts) {
    check_part(list, settings, {tensor, begin, size});
    for (auto done = std::size_t{0}; done < size; done += block_size) {
      auto const first = begin + done;
      auto const count = std::min(block_size, size - done);
      blocks_.push_back({tensor, first, list[tensor].offset + first, place + done, count});
    }
    place += size;
  }
  first_.resize(place);
  second_.resize(place);
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

  using rules::result_kind;
  auto const factors_of = [&](block const& b) {
    return rules::factors_of(
        settings_, steps_, learning_rate, status.coefficient, decays_[b.tensor]);
  };
  auto const elements_of = [&](block const& b) {
    auto* const parameter = parameters.data() + b.offset;
    auto* const first     = first_.data() + b.place;
    auto* const second    = second_.data() + b.place;
    return rules::elements{parameter,
                           gradients[b.tensor].data() + b.begin,
                           first,
                           second,
                           first,
                           second,
                           parameter,
                           b.size};
  };
  auto const write_copy = [&](block const& b) {
    auto* const to = working.empty() ? nullptr : working.data() + b.offset;
    write_working(parameters.data() + b.offset, to, b.size);
  };

  if (settings_.rule == update_rule::adamw) {
#pragma omp parallel for schedule(static)
    for (std::size_t i = 0; i < blocks_.size(); ++i) {
      rules::adamw<result_kind::parameter>(factors_of(blocks_[i]), elements_of(blocks_[i]));
      write_copy(blocks_[i]);
    }
    return;
  }
#pragma omp parallel for schedule(static)
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    norms_[i] = rules::lamb_moments(factors_of(blocks_[i]), elements_of(blocks_[i]));
  }
  auto const ratios = trust_ratios();
#pragma omp parallel for schedule(static)
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    auto f = factors_of(blocks_[i]);
    f.learning_rate *= ratios[blocks_[i].tensor];
    rules::lamb_apply<result_kind::parameter>(f, elements_of(blocks_[i]));
    write_copy(blocks_[i]);
  }
}

std::vector<float> optimizer::trust_ratios() const {
  auto sums = std::vector<update_norms>(sizes_.size());
  for (auto i = std::size_t{0}; i < blocks_.size(); ++i) {
    sums[blocks_[i].tensor].parameters += norms_[i].parameters;
    sums[blocks_[i].tensor].updates += norms_[i].updates;
  }
  auto result = std::vector<float>{};
  for (auto i = std::size_t{0}; i < sums.size(); ++i) {
    result.push_back(rules::trust_ratio(settings_, decays_[i], sums[i]));
  }
  return result;
}

void optimizer::restore(std::uint64_t steps,
                        std::span<float const> first,
                        std::span<float const> second) {
  gradlane::expects(first.size() == total_ && second.size() == total_,
                    "optimizer: the moments have the wrong size");
  steps_          = steps;
  auto const take = [](block const& b, std::span<float const> from, std::vector<float>& to) {
    std::ranges::copy(from.subspan(b.offset, b.size), to.data() + b.place);
  };
  for (auto const& b : blocks_) {
    take(b, first, first_);
    take(b, second, second_);
  }
}

}  // namespace bert

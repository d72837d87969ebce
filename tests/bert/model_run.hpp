// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "support.hpp"  // for formula_parameters, relative_error

#include <doctest/doctest.h>

#include <bert/batch.hpp>
#include <bert/config.hpp>
#include <bert/dropout.hpp>
#include <bert/model.hpp>
#include <bert/parameters.hpp>

#include <cmath>    // for abs
#include <cstddef>  // for size_t
#include <span>     // for span
#include <vector>   // for vector

namespace bert::test {

/// What one forward and backward over some batches gave; gradients as the list lays them out.
template <class Real>
struct model_result {
  losses sums;
  std::vector<Real> gradients;
};

/// A model with weights by formula over a fixture as operations.hpp describes it. Gradients of all
/// pieces are added up, over the poison of the value 7.
/// @param loss_scale  that the gradients are computed with, and divided by at the end.
template <class On>
model_result<typename On::device::real> run_model(model_config const& config,
                                                  typename On::device& device,
                                                  std::vector<batch> const& pieces,
                                                  double probability = 0.1,
                                                  double loss_scale  = 1) {
  using real      = typename On::device::real;
  using memory    = typename On::template memory<real>;
  auto const list = parameter_list{config};
  auto parameters = memory{formula_parameters<real>(list)};
  auto gradients  = memory{std::vector<real>(list.total(), real{7})};
  auto const flat = gradients.span();
  auto spans      = std::vector<std::span<real>>{};
  auto bert       = model<typename On::device>{config, device, parameters.span()};
  auto result     = model_result<real>{};
  auto first      = true;
  for (auto i = std::size_t{0}; i < list.size(); ++i) { spans.push_back(list.slice(flat, i)); }
  for (auto const& piece : pieces) {
    auto const part = bert.forward(piece, dropout_sites{config, probability, 3, 4});
    result.sums.masked_lm += part.masked_lm;
    result.sums.next_sentence += part.next_sentence;
    result.sums.predictions += part.predictions;
    result.sums.correct += part.correct;
    bert.backward(loss_scale / 50, loss_scale / 5, spans, !first, [](std::size_t) {});
    first = false;
  }
  result.gradients = gradients.values();
  for (auto& g : result.gradients) { g = static_cast<real>(static_cast<double>(g) / loss_scale); }
  return result;
}

/// @param loss, tensor  bounds of relative errors, of the losses and of the gradients' norms.
template <class A, class B>
void check_close(model_config const& config,
                 model_result<A> const& a,
                 model_result<B> const& b,
                 double loss,
                 double tensor) {
  CHECK(a.sums.predictions == b.sums.predictions);
  CHECK(std::abs(a.sums.masked_lm / b.sums.masked_lm - 1) < loss);
  CHECK(std::abs(a.sums.next_sentence / b.sums.next_sentence - 1) < loss);
  auto const list = parameter_list{config};
  for (auto i = std::size_t{0}; i < list.size(); ++i) {
    if (list[i].name.ends_with("key.bias")) { continue; }  // zero but for rounding
    auto const error = relative_error(list.slice(std::span<A const>{a.gradients}, i),
                                      list.slice(std::span<B const>{b.gradients}, i));
    CHECK_MESSAGE(error < tensor, list[i].name);
  }
}

}  // namespace bert::test

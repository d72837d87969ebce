// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <doctest/doctest.h>

#include <bert/attention/philox.hpp>  // for philox
#include <bert/batch.hpp>             // for batch
#include <bert/config.hpp>            // for model_config
#include <bert/matrix_view.hpp>       // for matrix_view
#include <bert/parameters.hpp>        // for parameter_list, fill_by_formula

#include <cmath>    // for sqrt, abs
#include <cstddef>  // for size_t
#include <cstdint>  // for uint32_t, int32_t
#include <span>     // for span
#include <vector>   // for vector

namespace bert::test {

/// Numbers in [-1, 1), a pure function of the seed.
template <class T>
[[nodiscard]] std::vector<T> noise(std::size_t size, std::uint32_t seed) {
  auto result = std::vector<T>(size);
  for (auto i = std::size_t{0}; i < size; ++i) {
    auto const word = philox<10>({static_cast<std::uint32_t>(i), 0, 0, 0}, seed, 0).x;
    result[i]       = static_cast<T>(static_cast<float>(word * 0x1p-31 - 1));
  }
  return result;
}

/// A matrix that owns its elements.
template <class T>
struct matrix {
  std::size_t rows;
  std::size_t cols;
  std::vector<T> data;

  matrix(std::size_t n, std::size_t m) : rows{n}, cols{m}, data(n * m) {}
  matrix(std::size_t n, std::size_t m, std::uint32_t seed)
      : rows{n}, cols{m}, data(noise<T>(n * m, seed)) {}
  [[nodiscard]] matrix_view<T> view() { return {data.data(), rows, cols}; }
};

/// ‖a - b‖ / ‖b‖, or ‖a - b‖ where b is zero.
template <class A, class B>
[[nodiscard]] double relative_error(std::span<A const> a, std::span<B const> b) {
  REQUIRE(a.size() == b.size());
  auto difference = 0.0;
  auto norm       = 0.0;
  for (auto i = std::size_t{0}; i < a.size(); ++i) {
    auto const x = static_cast<double>(static_cast<float>(a[i]));
    auto const y = static_cast<double>(b[i]);
    difference += (x - y) * (x - y);
    norm += y * y;
  }
  return norm > 0 ? std::sqrt(difference / norm) : std::sqrt(difference);
}

/// A model small enough for finite differences, with extents that are no multiples of anything.
[[nodiscard]] inline model_config tiny_config() {
  auto config                    = model_config{};
  config.vocab_size              = 37;
  config.hidden_size             = 12;
  config.num_hidden_layers       = 2;
  config.num_attention_heads     = 3;
  config.intermediate_size       = 20;
  config.max_position_embeddings = 40;
  config.dropout                 = 0.1;
  return config;
}

/// Sequences of the given lengths with about every fifth token masked, [CLS] never; all by Philox.
[[nodiscard]] inline batch make_batch(model_config const& config,
                                      std::vector<std::size_t> const& lengths,
                                      std::uint32_t first_sample = 0) {
  auto result = batch{};
  for (auto s = std::size_t{0}; s < lengths.size(); ++s) {
    auto const sample  = first_sample + static_cast<std::uint32_t>(s);
    auto const n       = lengths[s];
    auto const vocab   = static_cast<std::uint32_t>(config.vocab_size);
    auto ids           = std::vector<std::int32_t>(n);
    auto segments      = std::vector<std::int32_t>(n);
    auto predicted     = std::vector<std::int32_t>{};
    auto labels        = std::vector<std::int32_t>{};
    auto const integer = [](std::uint32_t value) { return static_cast<std::int32_t>(value); };
    for (auto i = std::size_t{0}; i < n; ++i) {
      auto const random = philox<10>({sample, static_cast<std::uint32_t>(i), 0, 0}, 7, 0);
      ids[i]            = integer(1 + random.x % (vocab - 1));
      segments[i]       = 2 * i >= n ? 1 : 0;
      if (i > 0 && random.y % 5 == 0) {
        predicted.push_back(static_cast<std::int32_t>(i));
        labels.push_back(integer(random.z % vocab));
      }
    }
    result.append(sample, ids, segments, predicted, labels, integer(sample % 2));
  }
  return result;
}

/// Gradients of all parameters in one vector, and the spans into it that backward wants.
template <class T>
struct gradient_store {
  std::vector<T> flat;
  std::vector<std::span<T>> spans;

  explicit gradient_store(parameter_list const& list, T initial = 0) : flat(list.total(), initial) {
    for (auto i = std::size_t{0}; i < list.size(); ++i) {
      spans.push_back(list.slice(std::span<T>{flat}, i));
    }
  }
};

template <class T>
[[nodiscard]] std::vector<T> formula_parameters(parameter_list const& list) {
  auto floats = std::vector<float>(list.total());
  fill_by_formula(list, floats);
  return {floats.begin(), floats.end()};
}

}  // namespace bert::test

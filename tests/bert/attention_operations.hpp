// SPDX-License-Identifier: Apache-2.0
#pragma once

// A device's attention against the reference, as test cases over a fixture that operations.hpp
// describes; a test file says BERT_ATTENTION_CONFORMANCE(fixture, …). Heads have 64 columns, as on
// CUDA they must.
//
// fp32: errors as in operations.hpp. bf16: the products of dq, dk and dv see probabilities that are
// rounded to 2^-9 of themselves, besides the result's own rounding: below 3e-3 in the norm. fp16:
// an eighth of it.

#include "operations.hpp"  // for bound, twin, twin_reals
#include "support.hpp"     // for make_batch, noise, tiny_config

#include <gradlane/types.hpp>  // for fp16

#include <doctest/doctest.h>

#include <bert/batch.hpp>
#include <bert/batch_index.hpp>
#include <bert/dropout.hpp>
#include <bert/reference.hpp>

#include <algorithm>    // for copy
#include <cstddef>      // for ptrdiff_t, size_t
#include <cstdint>      // for uint32_t
#include <type_traits>  // for is_same_v
#include <vector>       // for vector

namespace bert::test {

/// Forward and backward of packed sequences; inputs are noise that depends on the samples' numbers
/// alone, so that a sequence meets the same in any company.
template <class On>
class attention_run {
 public:
  using T     = typename On::value;
  using sizes = std::vector<std::size_t>;

  /// @param first_sample  sequences have this sample and those that follow.
  attention_run(sizes const& lengths,
                std::size_t heads,
                std::size_t head_size,
                dropout const& drop,
                std::uint32_t first_sample = 0)
      : heads_{heads},
        drop_{drop},
        data_{batch_of(lengths, first_sample)},
        qkv{data_.token_count(), 3 * heads * head_size},
        context{data_.token_count(), heads * head_size},
        lse{heads * data_.token_count()},
        dcontext{data_.token_count(), heads * head_size},
        dqkv{data_.token_count(), 3 * heads * head_size} {
    fill(qkv, 1, 1.5);
    fill(dcontext, 2, 1);
    auto fast = On::make();
    auto rows = typename On::device::index{};
    fast.assign(data_, rows);
    fast.attention(rows, qkv.view(), heads_, drop_, context.view(), lse.span());
    fast.attention_gradient(
        rows, qkv.view(), heads_, drop_, context.view(), lse.span(), dcontext.view(), dqkv.view());
  }

  void compare(double tolerance) {
    auto exact = reference_device<double>{};
    auto rows  = batch_index{};
    rows.assign(data_);
    exact.attention(rows, qkv.reference(), heads_, drop_, context.reference(), lse.exact);
    exact.attention_gradient(rows,
                             qkv.reference(),
                             heads_,
                             drop_,
                             context.reference(),
                             lse.exact,
                             dcontext.reference(),
                             dqkv.reference());
    CHECK(context.error() < tolerance);
    CHECK(lse.error() < bound<float>);
    CHECK(dqkv.error() < tolerance);
  }

  /// What was computed of sequence s: context, lse of each head, dqkv.
  [[nodiscard]] std::vector<float> results_of(std::size_t s) const {
    auto const first = static_cast<std::size_t>(data_.starts[s]);
    auto const last  = static_cast<std::size_t>(data_.starts[s + 1]);
    auto const t     = data_.token_count();
    auto result      = std::vector<float>{};
    auto const take  = [&](auto const& values, std::size_t columns, std::size_t shift) {
      for (auto i = shift + first * columns; i < shift + last * columns; ++i) {
        result.push_back(static_cast<float>(values[i]));
      }
    };
    take(context.values(), context.exact.size() / t, 0);
    take(dqkv.values(), dqkv.exact.size() / t, 0);
    for (auto h = std::size_t{0}; h < heads_; ++h) { take(lse.values(), 1, h * t); }
    return result;
  }

 private:
  [[nodiscard]] static batch batch_of(sizes const& lengths, std::uint32_t first_sample) {
    auto config                    = tiny_config();
    config.max_position_embeddings = 2048;
    return make_batch(config, lengths, first_sample);
  }

  void fill(twin<On>& target, std::uint32_t seed, double factor) const {
    auto const columns = target.exact.size() / data_.token_count();
    for (auto s = std::size_t{0}; s < data_.sequence_count(); ++s) {
      auto const first  = static_cast<std::size_t>(data_.starts[s]);
      auto const length = static_cast<std::size_t>(data_.starts[s + 1]) - first;
      auto const values = noise<float>(length * columns, 100 * data_.samples[s] + seed);
      std::copy(values.begin(),
                values.end(),
                target.exact.begin() + static_cast<std::ptrdiff_t>(first * columns));
    }
    target.multiply(factor);
  }

  std::size_t heads_;
  dropout drop_;
  batch data_;

 public:
  twin<On> qkv;  // (T, 3 H)
  twin<On> context;
  twin_reals<On> lse;  // (heads, T)
  twin<On> dcontext;
  twin<On> dqkv;
};

[[nodiscard]] inline dropout attention_drop() {
  return dropout_sites{tiny_config(), 0.1, 5, 6}.attention_heads(1);
}

template <class T>
constexpr double attention_bound = std::is_same_v<T, float>            ? bound<float>
                                   : std::is_same_v<T, gradlane::fp16> ? 3e-3 / 8
                                                                       : 3e-3;

TEST_CASE_TEMPLATE_DEFINE("attention agrees with the reference, dropout included",
                          On,
                          bert_attention) {
  for (auto const& drop : {attention_drop(), dropout{}}) {
    attention_run<On>{{65, 0, 1, 130, 63, 64, 0}, 3, 64, drop}.compare(
        attention_bound<typename On::value>);
  }
}

TEST_CASE_TEMPLATE_DEFINE("attention agrees with the reference on long sequences",
                          On,
                          bert_attention_long) {
  attention_run<On>{{511, 513, 512}, 1, 64, attention_drop()}.compare(
      attention_bound<typename On::value>);
}

TEST_CASE_TEMPLATE_DEFINE("attention of a sequence is the same bits in any batch",
                          On,
                          bert_attention_in_company) {
  auto const all   = attention_run<On>{{64, 0, 129, 33}, 2, 64, attention_drop(), 7};
  auto const alone = attention_run<On>{{129}, 2, 64, attention_drop(), 9};
  CHECK(all.results_of(2) == alone.results_of(0));
  CHECK(all.results_of(0) != attention_run<On>{{64}, 2, 64, attention_drop(), 8}.results_of(0));
  CHECK(all.results_of(2).size() == 129 * (4 * 128 + 2));
}

}  // namespace bert::test

#define BERT_ATTENTION_CONFORMANCE(...)                              \
  namespace bert::test {                                             \
  TEST_CASE_TEMPLATE_INVOKE(bert_attention, __VA_ARGS__);            \
  TEST_CASE_TEMPLATE_INVOKE(bert_attention_long, __VA_ARGS__);       \
  TEST_CASE_TEMPLATE_INVOKE(bert_attention_in_company, __VA_ARGS__); \
  }                                                                  \
  static_assert(true)

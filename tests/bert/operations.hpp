// SPDX-License-Identifier: Apache-2.0
#pragma once

// Every operation of a device against the reference in fp64, on the same inputs (rounded to the
// storage type first), as test cases over a fixture `On`:
//   On::value, On::device            default constructible by On::make()
//   On::memory<E>{values}            elements where the device can reach them; span(), values()
// A test file says BERT_OPERATIONS_CONFORMANCE(fixture, …). Errors are norms of whole results.
//
// fp32: a sum of n <= 300 products of order 1 has a relative rounding error of about √n · 2^-24 =
// 1e-6 in the norm; exp and erf add 4e-7. Bound 4e-6.
// bf16: each stored value is rounded once, by at most 2^-9 of itself (2^-9 / √3 in the norm), and
// at most three such steps follow each other (the normalised row, its product, the result).
// Bound 2^-8. fp16: three bits more, while values lie within its range.

#include "support.hpp"  // for make_batch, noise, relative_error, tiny_config

#include <gradlane/types.hpp>  // for bf16, fp16

#include <doctest/doctest.h>

#include <bert/batch_index.hpp>
#include <bert/entropy.hpp>
#include <bert/reference.hpp>

#include <cstddef>  // for size_t
#include <cstdint>  // for int32_t, uint32_t
#include <limits>   // for numeric_limits
#include <span>     // for span
#include <vector>   // for vector

namespace bert::test {

template <class T>
constexpr double bound = 4e-6;
template <>
inline constexpr double bound<gradlane::bf16> = 0x1p-8;
template <>
inline constexpr double bound<gradlane::fp16> = 0x1p-11;

inline constexpr auto poison = std::numeric_limits<float>::quiet_NaN();

template <class On, class E>
using memory = typename On::template memory<E>;

/// A matrix in the storage type, with the stride and the capacity that the device asks for and
/// poison in between, and its exact copy. Without a seed it is to be written: poison and zeros.
template <class On>
class twin {
 public:
  using T      = typename On::value;
  using device = typename On::device;

  twin(std::size_t n, std::size_t m, std::uint32_t seed = 0) : exact(n * m), rows_{n}, cols_{m} {
    if (seed != 0) {
      auto const values = noise<float>(n * m, seed);
      exact.assign(values.begin(), values.end());
    }
    round(seed != 0);
  }

  [[nodiscard]] matrix_view<T> view() {
    auto result   = matrix_view<T>{data_.span().data(), rows_, cols_};
    result.stride = device::stride(cols_);
    return result;
  }
  [[nodiscard]] matrix_view<double> reference() { return {exact.data(), rows_, cols_}; }

  /// (rows, cols) without the stride
  [[nodiscard]] std::vector<T> values() const {
    auto const all = data_.values();
    auto result    = std::vector<T>{};
    for (auto i = std::size_t{0}; i < rows_; ++i) {
      auto const* const row = all.data() + i * device::stride(cols_);
      result.insert(result.end(), row, row + cols_);
    }
    return result;
  }
  [[nodiscard]] double error() const {
    auto const own = values();
    return relative_error(std::span<T const>{own}, std::span<double const>{exact});
  }

  void multiply(double factor) {
    for (auto& x : exact) { x *= factor; }
    round(true);
  }
  /// Makes the exact copy equal to what the device stored.
  void take_over() {
    auto const own = values();
    for (auto i = std::size_t{0}; i < own.size(); ++i) {
      exact[i] = static_cast<double>(static_cast<float>(own[i]));
    }
  }

  std::vector<double> exact;

 private:
  void round(bool filled) {
    auto const stride = device::stride(cols_);
    auto data         = std::vector<T>(device::capacity(rows_) * stride, T{poison});
    for (auto i = std::size_t{0}; filled && i < rows_; ++i) {
      for (auto j = std::size_t{0}; j < cols_; ++j) {
        auto& x              = data[i * stride + j];
        x                    = T{static_cast<float>(exact[i * cols_ + j])};
        exact[i * cols_ + j] = static_cast<double>(static_cast<float>(x));
      }
    }
    data_ = memory<On, T>{data};
  }

  std::size_t rows_;
  std::size_t cols_;
  memory<On, T> data_{{}};
};

/// A vector of parameters, statistics or gradients: fp32 here, fp64 in the reference.
template <class On>
class twin_reals {
 public:
  explicit twin_reals(std::size_t n, std::uint32_t seed = 0)
      : exact(n), data_{seed == 0 ? std::vector<float>(n, poison) : noise<float>(n, seed)} {
    if (seed == 0) { return; }
    auto const own = values();
    exact.assign(own.begin(), own.end());
  }
  [[nodiscard]] std::span<float> span() { return data_.span(); }
  [[nodiscard]] std::vector<float> values() const { return data_.values(); }
  [[nodiscard]] double error() const {
    auto const own = values();
    return relative_error(std::span<float const>{own}, std::span<double const>{exact});
  }

  std::vector<double> exact;

 private:
  memory<On, float> data_;
};

template <class On>
struct operations_fixture {
  model_config config = tiny_config();
  batch_index host_rows;
  typename On::device fast = On::make();
  typename On::device::index rows;
  reference_device<double> exact;
  std::size_t t      = 0;
  std::size_t h      = 48;
  dropout const drop = dropout_sites{config, 0.1, 5, 6}.attention_heads(1);

  operations_fixture() {
    config.max_position_embeddings = 200;
    auto data                      = make_batch(config, {65, 1, 33, 140, 17});
    data.tokens[3] = data.tokens[90] = data.tokens[200] = data.tokens[4];
    host_rows.assign(data);
    fast.assign(data, rows);
    t = data.token_count();
  }
};

TEST_CASE_TEMPLATE_DEFINE("linear agrees with the reference", On, bert_linear) {
  using T = typename On::value;
  auto f  = operations_fixture<On>{};
  for (auto const n : {std::size_t{1}, std::size_t{64}, std::size_t{131}}) {
    auto const weights = weight_matrix{5, 96, 40};
    auto w             = twin_reals<On>{5 + 96 * 40 + 96, 1};
    auto x             = twin<On>{n, 40, 2};
    auto y             = twin<On>{n, 96};
    auto dy            = twin<On>{n, 3 * 96, 3};
    auto dx            = twin<On>{n, 40};
    auto dw            = twin_reals<On>{96 * 40};
    for (auto& value : w.exact) {  // the working copy is rounded
      value = static_cast<double>(static_cast<float>(T{static_cast<float>(value)}));
    }
    auto const bias = [&](auto parameters) { return parameters.subspan(5 + 96 * 40); };
    f.fast.load(w.span());
    f.exact.load(w.exact);
    f.fast.linear(x.view(), weights, {}, y.view());
    f.exact.linear(x.reference(), weights, {}, y.reference());
    CHECK(y.error() < bound<T>);
    f.fast.linear(x.view(), weights, bias(w.span()), y.view());
    f.exact.linear(x.reference(), weights, bias(std::span{w.exact}), y.reference());
    CHECK(y.error() < bound<T>);
    auto part = twin<On>{n, 96, 4};
    f.fast.linear_input_gradient(part.view(), weights, dx.view());
    f.exact.linear_input_gradient(part.reference(), weights, dx.reference());
    CHECK(dx.error() < bound<T>);
    auto const middle = dy.view().columns(96, 96);  // with a stride, as q, k and v have
    f.fast.linear_weight_gradient(middle, x.view(), dw.span(), false);
    f.exact.linear_weight_gradient(dy.reference().columns(96, 96), x.reference(), dw.exact, false);
    CHECK(dw.error() < bound<float>);
    f.fast.linear_weight_gradient(part.view(), x.view(), dw.span(), true);
    f.exact.linear_weight_gradient(part.reference(), x.reference(), dw.exact, true);
    CHECK(dw.error() < bound<float>);
  }
}

TEST_CASE_TEMPLATE_DEFINE("linear of no rows leaves zero gradients", On, bert_linear_of_no_rows) {
  auto f  = operations_fixture<On>{};
  auto x  = twin<On>{0, 40};
  auto dy = twin<On>{0, 96};
  auto dw = twin_reals<On>{96 * 40, 1};
  f.fast.linear_weight_gradient(dy.view(), x.view(), dw.span(), true);
  CHECK(dw.error() == 0);
  f.fast.linear_weight_gradient(dy.view(), x.view(), dw.span(), false);
  CHECK(dw.values() == std::vector<float>(96 * 40, 0.0F));
}

TEST_CASE_TEMPLATE_DEFINE("norm agrees with the reference", On, bert_norm) {
  using T = typename On::value;
  auto f  = operations_fixture<On>{};
  auto x  = twin<On>{130, f.h, 1};
  auto w  = twin_reals<On>{f.h, 2};
  auto b  = twin_reals<On>{f.h, 3};
  auto z  = twin<On>{130, f.h};
  auto s  = twin_reals<On>{130};
  auto y  = twin<On>{130, f.h};
  f.fast.norm(x.view(), w.span(), b.span(), 1e-12, {z.view(), s.span().data()}, y.view());
  f.exact.norm(
      x.reference(), w.exact, b.exact, 1e-12, {z.reference(), s.exact.data()}, y.reference());
  CHECK(z.error() < bound<T>);
  CHECK(s.error() < bound<float>);
  CHECK(y.error() < bound<T>);
  auto dy = twin<On>{130, f.h, 4};
  auto dx = twin<On>{130, f.h};
  auto dw = twin_reals<On>{f.h, 5};
  auto db = twin_reals<On>{f.h, 6};
  f.fast.norm_gradient(
      dy.view(), w.span(), {z.view(), s.span().data()}, dx.view(), dw.span(), db.span(), true);
  f.exact.norm_gradient(dy.reference(),
                        w.exact,
                        {z.reference(), s.exact.data()},
                        dx.reference(),
                        dw.exact,
                        db.exact,
                        true);
  CHECK(dx.error() < bound<T>);
  CHECK(dw.error() < bound<T>);  // through the stored normalised rows
  CHECK(db.error() < bound<float>);
}

TEST_CASE_TEMPLATE_DEFINE("add_norm agrees with the reference, dropout included",
                          On,
                          bert_add_norm) {
  using T       = typename On::value;
  auto f        = operations_fixture<On>{};
  auto branch   = twin<On>{f.t, f.h, 1};
  auto more     = twin_reals<On>{f.h, 2};
  auto residual = twin<On>{f.t, f.h, 3};
  auto w        = twin_reals<On>{f.h, 4};
  auto b        = twin_reals<On>{f.h, 5};
  auto z        = twin<On>{f.t, f.h};
  auto s        = twin_reals<On>{f.t};
  auto y        = twin<On>{f.t, f.h};
  f.fast.add_norm(f.rows,
                  branch.view(),
                  more.span(),
                  residual.view(),
                  w.span(),
                  b.span(),
                  1e-12,
                  f.drop,
                  {z.view(), s.span().data()},
                  y.view());
  f.exact.add_norm(f.host_rows,
                   branch.reference(),
                   more.exact,
                   residual.reference(),
                   w.exact,
                   b.exact,
                   1e-12,
                   f.drop,
                   {z.reference(), s.exact.data()},
                   y.reference());
  CHECK(z.error() < bound<T>);
  CHECK(s.error() < bound<float>);
  CHECK(y.error() < bound<T>);
  for (auto const both : {true, false}) {
    auto dy         = twin<On>{f.t, f.h, 6};
    auto dy2        = twin<On>{f.t, f.h, 7};
    auto dbb        = twin_reals<On>{f.h};
    auto dw         = twin_reals<On>{f.h};
    auto db         = twin_reals<On>{f.h};
    auto fast_more  = both ? dy2.view() : matrix_view<T>{};
    auto exact_more = both ? dy2.reference() : matrix_view<double>{};
    // in place, as the model does it: dresidual over dy, dbranch over dy2
    f.fast.add_norm_gradient(f.rows,
                             dy.view(),
                             fast_more,
                             w.span(),
                             f.drop,
                             {z.view(), s.span().data()},
                             dy.view(),
                             dy2.view(),
                             dbb.span(),
                             dw.span(),
                             db.span(),
                             false);
    f.exact.add_norm_gradient(f.host_rows,
                              dy.reference(),
                              exact_more,
                              w.exact,
                              f.drop,
                              {z.reference(), s.exact.data()},
                              dy.reference(),
                              dy2.reference(),
                              dbb.exact,
                              dw.exact,
                              db.exact,
                              false);
    CHECK(dy.error() < bound<T>);
    CHECK(dy2.error() < bound<T>);
    CHECK(dbb.error() < bound<T>);
    CHECK(dw.error() < bound<T>);
    CHECK(db.error() < bound<float>);
  }
}

TEST_CASE_TEMPLATE_DEFINE("embed agrees with the reference, dropout included", On, bert_embed) {
  using T       = typename On::value;
  auto f        = operations_fixture<On>{};
  auto word     = twin_reals<On>{f.config.vocab_size * f.h, 1};
  auto position = twin_reals<On>{f.config.max_position_embeddings * f.h, 2};
  auto type     = twin_reals<On>{2 * f.h, 3};
  auto w        = twin_reals<On>{f.h, 4};
  auto b        = twin_reals<On>{f.h, 5};
  auto z        = twin<On>{f.t, f.h};
  auto s        = twin_reals<On>{f.t};
  auto y        = twin<On>{f.t, f.h};
  f.fast.embed(f.rows,
               word.span(),
               position.span(),
               type.span(),
               w.span(),
               b.span(),
               1e-12,
               f.drop,
               {z.view(), s.span().data()},
               y.view());
  f.exact.embed(f.host_rows,
                word.exact,
                position.exact,
                type.exact,
                w.exact,
                b.exact,
                1e-12,
                f.drop,
                {z.reference(), s.exact.data()},
                y.reference());
  CHECK(y.error() < bound<T>);
  auto dy    = twin<On>{f.t, f.h, 6};
  auto more  = twin<On>{f.t, f.h, 7};
  auto dword = twin_reals<On>{word.exact.size(), 8};
  auto dpos  = twin_reals<On>{position.exact.size(), 9};
  auto dtype = twin_reals<On>{type.exact.size(), 10};
  auto dw    = twin_reals<On>{f.h};
  auto db    = twin_reals<On>{f.h};
  f.fast.embed_gradient(f.rows,
                        dy.view(),
                        more.view(),
                        w.span(),
                        f.drop,
                        {z.view(), s.span().data()},
                        dword.span(),
                        dpos.span(),
                        dtype.span(),
                        dw.span(),
                        db.span(),
                        false);
  f.exact.embed_gradient(f.host_rows,
                         dy.reference(),
                         more.reference(),
                         w.exact,
                         f.drop,
                         {z.reference(), s.exact.data()},
                         dword.exact,
                         dpos.exact,
                         dtype.exact,
                         dw.exact,
                         db.exact,
                         false);
  CHECK(dword.error() < bound<T>);
  CHECK(dpos.error() < bound<T>);
  CHECK(dtype.error() < bound<T>);
  CHECK(dw.error() < bound<T>);
  CHECK(db.error() < bound<float>);
}

TEST_CASE_TEMPLATE_DEFINE("gelu and tanh agree with the reference", On, bert_gelu_and_tanh) {
  using T = typename On::value;
  auto f  = operations_fixture<On>{};
  auto x  = twin<On>{70, 83, 1};
  auto b  = twin_reals<On>{83, 2};
  auto y  = twin<On>{70, 83};
  auto dy = twin<On>{70, 83, 3};
  auto db = twin_reals<On>{83, 4};
  x.multiply(9);  // far into both tails
  f.fast.gelu(x.view(), b.span(), y.view());
  f.exact.gelu(x.reference(), b.exact, y.reference());
  CHECK(y.error() < bound<T>);
  auto dx = twin<On>{70, 83, 3};  // in place
  f.fast.gelu_gradient(x.view(), b.span(), dx.view(), dx.view(), db.span(), true);
  f.exact.gelu_gradient(x.reference(), b.exact, dx.reference(), dx.reference(), db.exact, true);
  CHECK(dx.error() < bound<T>);
  CHECK(db.error() < bound<float>);
  f.fast.tanh(x.view(), b.span(), y.view());
  f.exact.tanh(x.reference(), b.exact, y.reference());
  CHECK(y.error() < bound<T>);
  y.take_over();  // gradients from the same stored y
  f.fast.tanh_gradient(y.view(), dy.view(), dx.view(), db.span(), false);
  f.exact.tanh_gradient(y.reference(), dy.reference(), dx.reference(), db.exact, false);
  CHECK(dx.error() < bound<T>);
  CHECK(db.error() < bound<T>);
}

TEST_CASE_TEMPLATE_DEFINE("cross_entropy agrees with the reference", On, bert_cross_entropy) {
  using T           = typename On::value;
  auto f            = operations_fixture<On>{};
  auto logits       = twin<On>{9, 301, 1};
  auto lse          = twin_reals<On>{9};
  auto db           = twin_reals<On>{301};
  auto const labels = std::vector<std::int32_t>{3, 0, 10, 3, -1, 300, 299, 64, 128};
  auto own_labels   = memory<On, std::int32_t>{labels};
  auto target       = memory<On, entropy>{{{-1, 77}}};
  auto exact        = entropy{};
  f.fast.cross_entropy(logits.view(), own_labels.span(), lse.span(), target.span().data());
  f.exact.cross_entropy(logits.reference(), labels, lse.exact, &exact);
  auto const fast = f.fast.sync_read(target.span().data());
  CHECK(std::abs(fast.loss - exact.loss) < bound<T> * exact.loss);
  CHECK(fast.correct == exact.correct);
  CHECK(lse.error() < bound<float>);
  f.fast.cross_entropy_gradient(logits.view(), own_labels.span(), lse.span(), 0.125);
  f.exact.cross_entropy_gradient(logits.reference(), labels, lse.exact, 0.125);
  CHECK(logits.error() < bound<T>);
  f.fast.column_sums(logits.view(), db.span(), false);
  f.exact.column_sums(logits.reference(), db.exact, false);
  CHECK(db.error() < bound<T>);
}

TEST_CASE_TEMPLATE_DEFINE("gather and scatter_add agree with the reference",
                          On,
                          bert_gather_and_scatter_add) {
  using T         = typename On::value;
  auto f          = operations_fixture<On>{};
  auto x          = twin<On>{9, f.h, 1};
  auto y          = twin<On>{5, f.h};
  auto sum        = twin<On>{9, f.h, 2};
  auto const from = std::vector<std::int32_t>{8, 0, 3, 8, -1};
  auto own_from   = memory<On, std::int32_t>{from};
  f.fast.gather(x.view(), own_from.span(), y.view());
  f.exact.gather(x.reference(), from, y.reference());
  CHECK(y.error() == 0);
  auto const to = std::vector<std::int32_t>{8, 0, -1, 5, -1};
  auto own_to   = memory<On, std::int32_t>{to};
  f.fast.scatter_add(y.view(), own_to.span(), sum.view());
  f.exact.scatter_add(y.reference(), to, sum.reference());
  CHECK(sum.error() < bound<T>);
}

TEST_CASE_TEMPLATE_DEFINE("operations take batches without rows", On, bert_no_rows) {
  auto f = operations_fixture<On>{};
  f.fast.assign(batch{}, f.rows);
  auto none = twin<On>{0, f.h};
  auto w    = twin_reals<On>{f.h, 1};
  auto dw   = twin_reals<On>{f.h, 2};
  auto db   = twin_reals<On>{f.h};
  auto s    = twin_reals<On>{0};
  auto nan  = memory<On, entropy>{{{-1, 77}}};
  auto kept = norm_state<typename On::value, float>{none.view(), s.span().data()};
  f.fast.norm(none.view(), w.span(), w.span(), 1e-12, kept, none.view());
  f.fast.norm_gradient(none.view(), w.span(), kept, none.view(), dw.span(), db.span(), true);
  CHECK(dw.error() == 0);
  f.fast.gelu_gradient(none.view(), w.span(), none.view(), none.view(), db.span(), false);
  CHECK(db.error() == 0);
  f.fast.cross_entropy(none.view(), {}, s.span(), nan.span().data());
  auto const sums = f.fast.sync_read(nan.span().data());
  CHECK(sums.loss == 0);
  CHECK(sums.correct == 0);
}

TEST_CASE_TEMPLATE_DEFINE("operations repeat bit for bit, and gradients add up", On, bert_repeats) {
  auto f    = operations_fixture<On>{};
  auto word = twin_reals<On>{f.config.vocab_size * f.h, 1};
  auto w    = twin_reals<On>{f.h, 4};
  auto z    = twin<On>{f.t, f.h, 5};
  auto s    = twin_reals<On>{f.t, 6};
  auto dy   = twin<On>{f.t, f.h, 7};
  auto more = twin<On>{f.t, f.h, 8};
  auto kept = norm_state<typename On::value, float>{z.view(), s.span().data()};
  auto bits = [&] {
    auto dx     = twin<On>{f.t, f.h};
    auto branch = twin<On>{f.t, f.h};
    auto db     = twin_reals<On>{f.h};
    auto dbb    = twin_reals<On>{f.h};
    auto dw     = twin_reals<On>{f.h};
    auto dword  = twin_reals<On>{word.exact.size(), 8};
    auto dpos   = twin_reals<On>{f.config.max_position_embeddings * f.h, 9};
    auto dtype  = twin_reals<On>{2 * f.h, 10};
    f.fast.add_norm_gradient(f.rows,
                             dy.view(),
                             more.view(),
                             w.span(),
                             f.drop,
                             kept,
                             dx.view(),
                             branch.view(),
                             dbb.span(),
                             dw.span(),
                             db.span(),
                             false);
    f.fast.embed_gradient(f.rows,
                          dy.view(),
                          more.view(),
                          w.span(),
                          f.drop,
                          kept,
                          dword.span(),
                          dpos.span(),
                          dtype.span(),
                          dw.span(),
                          db.span(),
                          true);
    f.fast.column_sums(dx.view(), dbb.span(), true);
    f.fast.column_sums(branch.view(), dbb.span(), true);
    auto all = dword.values();
    for (auto const* part : {&dpos, &dtype, &dw, &db, &dbb}) {
      auto const values = part->values();
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  };
  auto const first = bits();
  for (auto i = 0; i < 3; ++i) { CHECK(bits() == first); }
}

}  // namespace bert::test

#define BERT_OPERATIONS_CONFORMANCE(...)                               \
  namespace bert::test {                                               \
  TEST_CASE_TEMPLATE_INVOKE(bert_linear, __VA_ARGS__);                 \
  TEST_CASE_TEMPLATE_INVOKE(bert_linear_of_no_rows, __VA_ARGS__);      \
  TEST_CASE_TEMPLATE_INVOKE(bert_norm, __VA_ARGS__);                   \
  TEST_CASE_TEMPLATE_INVOKE(bert_add_norm, __VA_ARGS__);               \
  TEST_CASE_TEMPLATE_INVOKE(bert_embed, __VA_ARGS__);                  \
  TEST_CASE_TEMPLATE_INVOKE(bert_gelu_and_tanh, __VA_ARGS__);          \
  TEST_CASE_TEMPLATE_INVOKE(bert_cross_entropy, __VA_ARGS__);          \
  TEST_CASE_TEMPLATE_INVOKE(bert_gather_and_scatter_add, __VA_ARGS__); \
  TEST_CASE_TEMPLATE_INVOKE(bert_no_rows, __VA_ARGS__);                \
  TEST_CASE_TEMPLATE_INVOKE(bert_repeats, __VA_ARGS__);                \
  }                                                                    \
  static_assert(true)

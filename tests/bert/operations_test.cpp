// SPDX-License-Identifier: Apache-2.0
#include "support.hpp"  // for make_batch, matrix, noise, relative_error, tiny_config

#include <gradlane/types.hpp>  // for bf16

#include <doctest/doctest.h>

#include <bert/cpu/device.hpp>
#include <bert/cpu/dropout_bytes.hpp>
#include <bert/cpu/vector_math.hpp>
#include <bert/reference.hpp>

#include <limits>  // for numeric_limits

// Every operation of the CPU against the reference in fp64, on the same inputs (rounded to the
// storage type first). Errors are norms of whole results.
//
// fp32: a sum of n <= 300 products of order 1 has a relative rounding error of about √n · 2^-24 =
// 1e-6 in the norm; exp and erf add 4e-7. Bound 4e-6.
// bf16: each stored value is rounded once, by at most 2^-9 of itself (2^-9 / √3 in the norm), and
// at most three such steps follow each other (the normalised row, its product, the result).
// Bound 2^-8.

namespace {

using namespace bert;
using gradlane::bf16;
using test::noise;

template <class T>
constexpr double bound = std::is_same_v<T, float> ? 4e-6 : 0x1p-8;

/// A matrix in the storage type with the capacity that the device asks for, and its exact copy.
template <class T>
struct twin {
  std::vector<T> data;
  std::vector<double> exact;
  std::size_t rows;
  std::size_t cols;

  twin(std::size_t n, std::size_t m, std::uint32_t seed = 0)
      : data(cpu::device<T>::capacity(n) * m,
             T{std::numeric_limits<float>::quiet_NaN()}),  // poison
        exact(n * m),
        rows{n},
        cols{m} {
    if (seed == 0) { return; }
    auto const values = noise<float>(n * m, seed);
    for (auto i = std::size_t{0}; i < n * m; ++i) {
      data[i]  = T{values[i]};
      exact[i] = static_cast<double>(static_cast<float>(data[i]));
    }
  }
  [[nodiscard]] matrix_view<T> view() { return {data.data(), rows, cols}; }
  [[nodiscard]] matrix_view<double> reference() { return {exact.data(), rows, cols}; }
  [[nodiscard]] double error() const {
    return test::relative_error(std::span<T const>{data}.first(exact.size()),
                                std::span<double const>{exact});
  }
};

/// A vector of parameters, statistics or gradients: fp32 here, fp64 in the reference.
struct twin_reals {
  std::vector<float> data;
  std::vector<double> exact;

  explicit twin_reals(std::size_t n, std::uint32_t seed = 0) : data(n), exact(n) {
    if (seed != 0) { data = noise<float>(n, seed); }
    exact.assign(data.begin(), data.end());
  }
  [[nodiscard]] double error() const {
    return test::relative_error(std::span<float const>{data}, std::span<double const>{exact});
  }
};

template <class T>
struct fixture {
  model_config config = test::tiny_config();
  batch_index rows;
  cpu::device<T> fast;
  reference_device<double> exact;
  std::size_t t      = 0;
  std::size_t h      = 48;
  std::size_t heads  = 3;
  dropout const drop = dropout_sites{config, 0.1, 5, 6}.attention_heads(1);

  fixture() {
    config.max_position_embeddings = 200;
    auto data                      = test::make_batch(config, {65, 1, 33, 140, 17});
    data.tokens[3] = data.tokens[90] = data.tokens[200] = data.tokens[4];
    rows.assign(data);
    t = data.token_count();
  }
};

TEST_CASE_TEMPLATE("cpu linear agrees with the reference", T, float, bf16) {
  auto f = fixture<T>{};
  for (auto const n : {std::size_t{1}, std::size_t{64}, std::size_t{131}}) {
    auto const weights = weight_matrix{5, 96, 40};
    auto w             = twin_reals{5 + 96 * 40, 1};
    auto x             = twin<T>{n, 40, 2};
    auto y             = twin<T>{n, 96};
    auto dy            = twin<T>{n, 3 * 96, 3};
    auto dx            = twin<T>{n, 40};
    auto dw            = twin_reals{96 * 40};
    if (std::is_same_v<T, bf16>) {  // the working copy is rounded
      for (auto& value : w.exact) { value = static_cast<double>(static_cast<float>(bf16{value})); }
    }
    f.fast.load(w.data);
    f.exact.load(w.exact);
    auto b = twin_reals{96, 5};
    f.fast.linear(x.view(), weights, {}, y.view());
    f.exact.linear(x.reference(), weights, {}, y.reference());
    CHECK(y.error() < bound<T>);
    f.fast.linear(x.view(), weights, b.data, y.view());
    f.exact.linear(x.reference(), weights, b.exact, y.reference());
    CHECK(y.error() < bound<T>);
    auto part = twin<T>{n, 96, 4};
    f.fast.linear_input_gradient(part.view(), weights, dx.view());
    f.exact.linear_input_gradient(part.reference(), weights, dx.reference());
    CHECK(dx.error() < bound<T>);
    auto const middle = dy.view().columns(96, 96);  // with a stride, as q, k and v have
    f.fast.linear_weight_gradient(middle, x.view(), dw.data, false);
    f.exact.linear_weight_gradient(dy.reference().columns(96, 96), x.reference(), dw.exact, false);
    CHECK(dw.error() < bound<float>);
    f.fast.linear_weight_gradient(part.view(), x.view(), dw.data, true);
    f.exact.linear_weight_gradient(part.reference(), x.reference(), dw.exact, true);
    CHECK(dw.error() < bound<float>);
  }
}

TEST_CASE("cpu linear in bf16 agrees with the reference by either kind of product") {
  for (auto const kind : {cpu::bf16_products::native, cpu::bf16_products::widened}) {
    auto fast          = cpu::device<bf16>{kind};
    auto exact         = reference_device<double>{};
    auto const weights = weight_matrix{0, 50, 70};
    auto w             = twin_reals{50 * 70, 1};
    for (auto& value : w.exact) { value = static_cast<double>(static_cast<float>(bf16{value})); }
    fast.load(w.data);
    exact.load(w.exact);
    for (auto const n : {std::size_t{3}, std::size_t{100}, std::size_t{3}}) {
      auto x  = twin<bf16>{n, 70, 2};
      auto y  = twin<bf16>{n, 50};
      auto dy = twin<bf16>{n, 50, 3};
      auto dx = twin<bf16>{n, 70};
      auto dw = twin_reals{50 * 70, 4};
      auto b  = twin_reals{50, 5};
      fast.linear(x.view(), weights, b.data, y.view());
      exact.linear(x.reference(), weights, b.exact, y.reference());
      CHECK(y.error() < bound<bf16>);
      fast.linear_input_gradient(dy.view(), weights, dx.view());
      exact.linear_input_gradient(dy.reference(), weights, dx.reference());
      CHECK(dx.error() < bound<bf16>);
      fast.linear_weight_gradient(dy.view(), x.view(), dw.data, true);
      exact.linear_weight_gradient(dy.reference(), x.reference(), dw.exact, true);
      CHECK(dw.error() < bound<float>);
    }
  }
}

TEST_CASE_TEMPLATE("cpu linear of no rows leaves zero gradients", T, float, bf16) {
  auto f  = fixture<T>{};
  auto x  = twin<T>{0, 40};
  auto dy = twin<T>{0, 96};
  auto dw = twin_reals{96 * 40, 1};
  f.fast.linear_weight_gradient(dy.view(), x.view(), dw.data, true);
  CHECK(dw.error() == 0);
  f.fast.linear_weight_gradient(dy.view(), x.view(), dw.data, false);
  CHECK(dw.data == std::vector<float>(96 * 40, 0.0F));
}

TEST_CASE_TEMPLATE("cpu norm agrees with the reference", T, float, bf16) {
  auto f = fixture<T>{};
  auto x = twin<T>{130, f.h, 1};
  auto w = twin_reals{f.h, 2};
  auto b = twin_reals{f.h, 3};
  auto z = twin<T>{130, f.h};
  auto s = twin_reals{130};
  auto y = twin<T>{130, f.h};
  f.fast.norm(x.view(), w.data, b.data, 1e-12, {z.view(), s.data.data()}, y.view());
  f.exact.norm(
      x.reference(), w.exact, b.exact, 1e-12, {z.reference(), s.exact.data()}, y.reference());
  CHECK(z.error() < bound<T>);
  CHECK(s.error() < bound<float>);
  CHECK(y.error() < bound<T>);
  auto dy = twin<T>{130, f.h, 4};
  auto dx = twin<T>{130, f.h};
  auto dw = twin_reals{f.h, 5};
  auto db = twin_reals{f.h, 6};
  f.fast.norm_gradient(
      dy.view(), w.data, {z.view(), s.data.data()}, dx.view(), dw.data, db.data, true);
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

TEST_CASE_TEMPLATE("cpu add_norm agrees with the reference, dropout included", T, float, bf16) {
  auto f        = fixture<T>{};
  auto branch   = twin<T>{f.t, f.h, 1};
  auto more     = twin_reals{f.h, 2};
  auto residual = twin<T>{f.t, f.h, 3};
  auto w        = twin_reals{f.h, 4};
  auto b        = twin_reals{f.h, 5};
  auto z        = twin<T>{f.t, f.h};
  auto s        = twin_reals{f.t};
  auto y        = twin<T>{f.t, f.h};
  f.fast.add_norm(f.rows,
                  branch.view(),
                  more.data,
                  residual.view(),
                  w.data,
                  b.data,
                  1e-12,
                  f.drop,
                  {z.view(), s.data.data()},
                  y.view());
  f.exact.add_norm(f.rows,
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
    auto dy         = twin<T>{f.t, f.h, 6};
    auto dy2        = twin<T>{f.t, f.h, 7};
    auto dbb        = twin_reals{f.h};
    auto dw         = twin_reals{f.h};
    auto db         = twin_reals{f.h};
    auto fast_more  = both ? dy2.view() : matrix_view<T>{};
    auto exact_more = both ? dy2.reference() : matrix_view<double>{};
    // in place, as the model does it: dresidual over dy, dbranch over dy2
    f.fast.add_norm_gradient(f.rows,
                             dy.view(),
                             fast_more,
                             w.data,
                             f.drop,
                             {z.view(), s.data.data()},
                             dy.view(),
                             dy2.view(),
                             dbb.data,
                             dw.data,
                             db.data,
                             false);
    f.exact.add_norm_gradient(f.rows,
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

TEST_CASE_TEMPLATE("cpu embed agrees with the reference, dropout included", T, float, bf16) {
  auto f        = fixture<T>{};
  auto word     = twin_reals{f.config.vocab_size * f.h, 1};
  auto position = twin_reals{f.config.max_position_embeddings * f.h, 2};
  auto type     = twin_reals{2 * f.h, 3};
  auto w        = twin_reals{f.h, 4};
  auto b        = twin_reals{f.h, 5};
  auto z        = twin<T>{f.t, f.h};
  auto s        = twin_reals{f.t};
  auto y        = twin<T>{f.t, f.h};
  f.fast.embed(f.rows,
               word.data,
               position.data,
               type.data,
               w.data,
               b.data,
               1e-12,
               f.drop,
               {z.view(), s.data.data()},
               y.view());
  f.exact.embed(f.rows,
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
  auto dy    = twin<T>{f.t, f.h, 6};
  auto more  = twin<T>{f.t, f.h, 7};
  auto dword = twin_reals{word.data.size(), 8};
  auto dpos  = twin_reals{position.data.size(), 9};
  auto dtype = twin_reals{type.data.size(), 10};
  auto dw    = twin_reals{f.h};
  auto db    = twin_reals{f.h};
  f.fast.embed_gradient(f.rows,
                        dy.view(),
                        more.view(),
                        w.data,
                        f.drop,
                        {z.view(), s.data.data()},
                        dword.data,
                        dpos.data,
                        dtype.data,
                        dw.data,
                        db.data,
                        false);
  f.exact.embed_gradient(f.rows,
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

TEST_CASE_TEMPLATE("cpu gelu and tanh agree with the reference", T, float, bf16) {
  auto f  = fixture<T>{};
  auto x  = twin<T>{70, 83, 1};
  auto b  = twin_reals{83, 2};
  auto y  = twin<T>{70, 83};
  auto dy = twin<T>{70, 83, 3};
  auto db = twin_reals{83, 4};
  for (auto i = std::size_t{0}; i < x.exact.size(); ++i) {  // far into both tails
    x.data[i]  = T{static_cast<float>(9 * x.exact[i])};
    x.exact[i] = static_cast<double>(static_cast<float>(x.data[i]));
  }
  f.fast.gelu(x.view(), b.data, y.view());
  f.exact.gelu(x.reference(), b.exact, y.reference());
  CHECK(y.error() < bound<T>);
  auto dx = dy;  // in place
  f.fast.gelu_gradient(x.view(), b.data, dx.view(), dx.view(), db.data, true);
  f.exact.gelu_gradient(x.reference(), b.exact, dx.reference(), dx.reference(), db.exact, true);
  CHECK(dx.error() < bound<T>);
  CHECK(db.error() < bound<float>);
  f.fast.tanh(x.view(), b.data, y.view());
  f.exact.tanh(x.reference(), b.exact, y.reference());
  CHECK(y.error() < bound<T>);
  y.exact.assign(y.exact.size(), 0);
  for (auto i = std::size_t{0}; i < y.exact.size(); ++i) {  // gradients from the same stored y
    y.exact[i] = static_cast<double>(static_cast<float>(y.data[i]));
  }
  f.fast.tanh_gradient(y.view(), dy.view(), dx.view(), db.data, false);
  f.exact.tanh_gradient(y.reference(), dy.reference(), dx.reference(), db.exact, false);
  CHECK(dx.error() < bound<T>);
  CHECK(db.error() < bound<T>);
}

TEST_CASE_TEMPLATE("cpu attention agrees with the reference, dropout included", T, float, bf16) {
  auto f       = fixture<T>{};
  auto qkv     = twin<T>{f.t, 3 * f.h, 1};
  auto context = twin<T>{f.t, f.h};
  auto lse     = twin_reals{f.heads * f.t};
  for (auto const& drop : {f.drop, dropout{}}) {
    f.fast.attention(f.rows, qkv.view(), f.heads, drop, context.view(), lse.data);
    f.exact.attention(f.rows, qkv.reference(), f.heads, drop, context.reference(), lse.exact);
    CHECK(context.error() < bound<T>);
    CHECK(lse.error() < bound<float>);
    auto dcontext = twin<T>{f.t, f.h, 3};
    auto dqkv     = twin<T>{f.t, 3 * f.h};
    f.fast.attention_gradient(
        f.rows, qkv.view(), f.heads, drop, context.view(), lse.data, dcontext.view(), dqkv.view());
    f.exact.attention_gradient(f.rows,
                               qkv.reference(),
                               f.heads,
                               drop,
                               context.reference(),
                               lse.exact,
                               dcontext.reference(),
                               dqkv.reference());
    CHECK(dqkv.error() < bound<T>);
  }
}

TEST_CASE_TEMPLATE("cpu attention of a sequence is the same bits in any batch", T, float, bf16) {
  auto f       = fixture<T>{};
  auto qkv     = twin<T>{f.t, 3 * f.h, 1};
  auto context = twin<T>{f.t, f.h};
  auto lse     = twin_reals{f.heads * f.t};
  f.fast.attention(f.rows, qkv.view(), f.heads, f.drop, context.view(), lse.data);
  auto const& all = f.rows.data();
  auto alone      = batch_index{};
  alone.assign(test::make_batch(f.config, {140}, 3));
  auto part = twin<T>{140, 3 * f.h};
  auto out  = twin<T>{140, f.h};
  std::copy(qkv.view().row(99), qkv.view().row(99) + 140 * 3 * f.h, part.data.begin());
  REQUIRE(all.starts[3] == 99);
  REQUIRE(all.samples[3] == alone.data().samples[0]);
  f.fast.attention(alone, part.view(), f.heads, f.drop, out.view(), lse.data);
  for (auto i = std::size_t{0}; i < 140 * f.h; ++i) {
    CHECK(static_cast<float>(out.data[i]) == static_cast<float>(context.data[99 * f.h + i]));
  }
}

TEST_CASE_TEMPLATE("cpu cross_entropy agrees with the reference", T, float, bf16) {
  auto f            = fixture<T>{};
  auto logits       = twin<T>{9, 301, 1};
  auto lse          = twin_reals{9};
  auto db           = twin_reals{301};
  auto const labels = std::vector<std::int32_t>{3, 0, 10, 3, 7, 300, 299, 64, 128};
  auto fast         = entropy{};
  auto exact        = entropy{};
  f.fast.cross_entropy(logits.view(), labels, lse.data, &fast);
  f.exact.cross_entropy(logits.reference(), labels, lse.exact, &exact);
  CHECK(std::abs(fast.loss - exact.loss) < bound<T> * exact.loss);
  CHECK(fast.correct == exact.correct);
  CHECK(lse.error() < bound<float>);
  f.fast.cross_entropy_gradient(logits.view(), labels, lse.data, 0.125);
  f.exact.cross_entropy_gradient(logits.reference(), labels, lse.exact, 0.125);
  CHECK(logits.error() < bound<T>);
  f.fast.column_sums(logits.view(), db.data, false);
  f.exact.column_sums(logits.reference(), db.exact, false);
  CHECK(db.error() < bound<T>);
}

TEST_CASE_TEMPLATE("cpu gather and scatter_add agree with the reference", T, float, bf16) {
  auto f          = fixture<T>{};
  auto x          = twin<T>{9, f.h, 1};
  auto y          = twin<T>{4, f.h};
  auto sum        = twin<T>{9, f.h, 2};
  auto const from = std::vector<std::int32_t>{8, 0, 3, 8};
  f.fast.gather(x.view(), from, y.view());
  f.exact.gather(x.reference(), from, y.reference());
  CHECK(y.error() == 0);
  auto const to = std::vector<std::int32_t>{8, 0, 3, 5};
  f.fast.scatter_add(y.view(), to, sum.view());
  f.exact.scatter_add(y.reference(), to, sum.reference());
  CHECK(sum.error() < bound<T>);
}

TEST_CASE("exp_fast and normal_fast keep their relative error over the whole range") {
  for (auto i = -86999; i <= 86999; ++i) {
    auto const x     = static_cast<float>(i) * 1e-3F;
    auto const exact = std::exp(static_cast<double>(x));
    CHECK_UNARY(std::abs(static_cast<double>(cpu::exp_fast(x)) / exact - 1) < 1e-7);
  }
  CHECK(cpu::exp_fast(-1e30F) < 2e-38F);
  CHECK(cpu::exp_fast(0) == 1);
  for (auto i = -12000; i <= 12000; ++i) {
    auto const z     = static_cast<float>(i) * 1e-3F;
    auto const exact = std::erfc(-static_cast<double>(z) / std::sqrt(2.0)) / 2;
    // exp of -z²/2, itself rounded, adds z²/2 · 2^-24: 4.3e-6 at z = 12
    auto const allowed = 4e-7 + static_cast<double>(z * z) / 2 * 0x1p-24;
    CHECK_UNARY(std::abs(static_cast<double>(cpu::normal_fast(z).cumulative) / exact - 1) <
                allowed);
  }
}

TEST_CASE("dropout bytes filled by vectors are those of the definition") {
  auto const drop = dropout_sites{test::tiny_config(), 0.1, 77, 78}.feed_forward_output(1);
  auto row        = std::vector<std::uint8_t>(512);
  cpu::fill_row_bytes(drop, 5, 9, 300, row.data());
  for (auto j = 0U; j < 300; ++j) {
    CHECK(cpu::byte_factor{drop}(row[j]) == row_factor(drop, 5, 9, j));
  }
  auto tile = std::vector<std::uint8_t>(32 * 192);
  cpu::fill_attention_bytes(drop, 6, 64, 130, 192, tile.data());
  for (auto q = 0U; q < 32; ++q) {
    for (auto k = 0U; k < 130; ++k) {
      CHECK(cpu::byte_factor{drop}(tile[q * 192 + k]) == attention_factor(drop, 6, 64 + q, k));
    }
  }
}

}  // namespace

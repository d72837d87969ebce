// SPDX-License-Identifier: Apache-2.0
#include "support.hpp"  // for make_batch, matrix, noise, tiny_config

#include <doctest/doctest.h>

#include <bert/reference.hpp>

#include <algorithm>   // for max
#include <functional>  // for function

// Each operation's gradient against central differences of a scalar: the operation's outputs times
// fixed random numbers, summed. In fp64 with a step of 1e-5 on values of order 1, truncation
// (1e-10 times a third derivative) and cancellation (1e-16 / 1e-5) stay below 1e-8 times the size
// of the gradient; the bound leaves a factor of ten.

namespace {

using namespace bert;
using test::matrix;
using test::noise;
using device = reference_device<double>;
using reals  = std::vector<double>;

constexpr auto tolerance = 1e-7;

void check_gradient(char const* of,
                    reals& x,
                    reals const& gradient,
                    std::function<double()> const& value) {
  REQUIRE(x.size() == gradient.size());
  auto largest = 0.0;
  for (auto const g : gradient) { largest = std::max(largest, std::abs(g)); }
  CHECK_MESSAGE(largest > 1e-3, of);  // a gradient that vanishes proves nothing
  auto worst = 0.0;
  for (auto i = std::size_t{0}; i < x.size(); ++i) {
    auto const before = x[i];
    x[i]              = before + 1e-5;
    auto const above  = value();
    x[i]              = before - 1e-5;
    auto const below  = value();
    x[i]              = before;
    worst             = std::max(worst, std::abs((above - below) / 2e-5 - gradient[i]));
  }
  CHECK_MESSAGE(worst < tolerance * std::max(1.0, largest), of);
}

double dot(reals const& a, reals const& b) {
  auto sum = 0.0;
  for (auto i = std::size_t{0}; i < a.size(); ++i) { sum += a[i] * b[i]; }
  return sum;
}

struct fixture {
  model_config config = test::tiny_config();
  batch_index rows;
  device on;
  std::size_t t;
  std::size_t h = config.hidden_size;
  dropout drop  = dropout_sites{config, 0.3, 5, 6}.attention_heads(1);

  fixture() {
    auto data      = test::make_batch(config, {5, 1, 9});
    data.tokens[3] = data.tokens[4] = data.tokens[7];  // one token in several places
    rows.assign(data);
    t = data.token_count();
  }
};

TEST_CASE_FIXTURE(fixture, "linear's gradients are those of x wᵀ + bias") {
  auto x       = matrix<double>{4, 5, 1};
  auto w       = noise<double>(3 * 5, 2);
  auto b       = noise<double>(3, 4);
  auto const c = matrix<double>{4, 3, 3};
  auto out     = matrix<double>{4, 3};
  auto loss    = [&] {
    on.load(w);
    on.linear(x.view(), {0, 3, 5}, b, out.view());
    return dot(out.data, c.data);
  };
  auto dy = c;
  auto dx = matrix<double>{4, 5};
  auto dw = reals(w.size(), 100.0);
  auto db = reals(b.size());
  on.load(w);
  on.linear_input_gradient(dy.view(), {0, 3, 5}, dx.view());
  on.linear_weight_gradient(dy.view(), x.view(), dw, false);
  on.column_sums(dy.view(), db, false);
  check_gradient("x", x.data, dx.data, loss);
  check_gradient("w", w, dw, loss);
  check_gradient("bias", b, db, loss);
  auto twice = dw;
  on.linear_weight_gradient(dy.view(), x.view(), twice, true);
  for (auto i = std::size_t{0}; i < dw.size(); ++i) {
    CHECK(twice[i] == doctest::Approx(2 * dw[i]));
  }
}

TEST_CASE_FIXTURE(fixture, "norm's gradients are those of LayerNorm") {
  auto x       = matrix<double>{4, h, 1};
  auto w       = noise<double>(h, 2);
  auto b       = noise<double>(h, 3);
  auto const c = matrix<double>{4, h, 4};
  auto z       = matrix<double>{4, h};
  auto inverse = reals(4);
  auto out     = matrix<double>{4, h};
  auto loss    = [&] {
    on.norm(x.view(), w, b, 1e-12, {z.view(), inverse.data()}, out.view());
    return dot(out.data, c.data);
  };
  loss();
  auto dy = c;
  auto dx = matrix<double>{4, h};
  auto dw = reals(h);
  auto db = reals(h);
  on.norm_gradient(dy.view(), w, {z.view(), inverse.data()}, dx.view(), dw, db, false);
  check_gradient("x", x.data, dx.data, loss);
  check_gradient("weight", w, dw, loss);
  check_gradient("bias", b, db, loss);
}

TEST_CASE_FIXTURE(fixture, "add_norm's gradients are those of LayerNorm(residual + dropout)") {
  auto branch      = matrix<double>{t, h, 1};
  auto branch_bias = noise<double>(h, 2);
  auto residual    = matrix<double>{t, h, 3};
  auto w           = noise<double>(h, 4);
  auto b           = noise<double>(h, 5);
  auto c           = matrix<double>{t, h, 6};
  auto more        = matrix<double>{t, h, 7};
  auto z           = matrix<double>{t, h};
  auto inverse     = reals(t);
  auto out         = matrix<double>{t, h};
  auto loss        = [&] {
    on.add_norm(rows,
                branch.view(),
                branch_bias,
                residual.view(),
                w,
                b,
                1e-12,
                drop,
                       {z.view(), inverse.data()},
                out.view());
    return dot(out.data, c.data) + dot(out.data, more.data);
  };
  loss();
  auto dresidual = matrix<double>{t, h};
  auto dbranch   = matrix<double>{t, h};
  auto dbb       = reals(h);
  auto dw        = reals(h);
  auto db        = reals(h);
  on.add_norm_gradient(rows,
                       c.view(),
                       more.view(),
                       w,
                       drop,
                       {z.view(), inverse.data()},
                       dresidual.view(),
                       dbranch.view(),
                       dbb,
                       dw,
                       db,
                       false);
  check_gradient("residual", residual.data, dresidual.data, loss);
  check_gradient("branch", branch.data, dbranch.data, loss);
  check_gradient("branch bias", branch_bias, dbb, loss);
  check_gradient("weight", w, dw, loss);
  check_gradient("bias", b, db, loss);
}

TEST_CASE_FIXTURE(fixture, "embed's gradients are those of the three tables and LayerNorm") {
  auto word     = noise<double>(config.vocab_size * h, 1);
  auto position = noise<double>(config.max_position_embeddings * h, 2);
  auto type     = noise<double>(config.type_vocab_size * h, 3);
  auto w        = noise<double>(h, 4);
  auto b        = noise<double>(h, 5);
  auto c        = matrix<double>{t, h, 6};
  auto z        = matrix<double>{t, h};
  auto inverse  = reals(t);
  auto out      = matrix<double>{t, h};
  auto loss     = [&] {
    on.embed(rows, word, position, type, w, b, 1e-12, drop, {z.view(), inverse.data()}, out.view());
    return dot(out.data, c.data);
  };
  loss();
  auto dword     = reals(word.size(), 1.0);  // the decoder's part, which must stay
  auto dposition = reals(position.size());
  auto dtype     = reals(type.size());
  auto dw        = reals(h);
  auto db        = reals(h);
  on.embed_gradient(rows,
                    c.view(),
                    {},
                    w,
                    drop,
                    {z.view(), inverse.data()},
                    dword,
                    dposition,
                    dtype,
                    dw,
                    db,
                    false);
  for (auto& g : dword) { g -= 1.0; }
  check_gradient("word", word, dword, loss);
  check_gradient("position", position, dposition, loss);
  check_gradient("type", type, dtype, loss);
  check_gradient("weight", w, dw, loss);
  check_gradient("bias", b, db, loss);
}

TEST_CASE_FIXTURE(fixture, "embed_gradient gives token 0 nothing") {
  auto data = rows.data();
  for (auto& token : data.tokens) { token = 0; }
  rows.assign(data);
  auto const w = noise<double>(h, 4);
  auto c       = matrix<double>{t, h, 6};
  auto z       = matrix<double>{t, h, 7};
  auto inverse = reals(t, 1.0);
  auto dword   = reals(config.vocab_size * h);
  auto dpos    = reals(config.max_position_embeddings * h);
  auto dtype   = reals(config.type_vocab_size * h);
  auto dw      = reals(h);
  auto db      = reals(h);
  on.embed_gradient(
      rows, c.view(), {}, w, drop, {z.view(), inverse.data()}, dword, dpos, dtype, dw, db, false);
  CHECK(dot(dword, dword) == 0);
  CHECK(dot(dtype, dtype) > 0);
}

TEST_CASE_FIXTURE(fixture, "gelu's gradients are those of z Φ(z)") {
  auto x    = matrix<double>{6, 7, 1};
  auto b    = noise<double>(7, 2);
  auto c    = matrix<double>{6, 7, 3};
  auto out  = matrix<double>{6, 7};
  auto loss = [&] {
    on.gelu(x.view(), b, out.view());
    return dot(out.data, c.data);
  };
  auto dx = matrix<double>{6, 7};
  auto db = reals(7);
  on.gelu_gradient(x.view(), b, c.view(), dx.view(), db, false);
  check_gradient("x", x.data, dx.data, loss);
  check_gradient("bias", b, db, loss);
  x.data[0] = 1;
  b[0]      = 0;
  loss();
  CHECK(out.data[0] == doctest::Approx(0.841344746068543).epsilon(1e-14));  // Φ(1)
}

TEST_CASE_FIXTURE(fixture, "tanh's gradients are those of tanh(x + bias)") {
  auto x    = matrix<double>{3, 7, 1};
  auto b    = noise<double>(7, 2);
  auto c    = matrix<double>{3, 7, 3};
  auto out  = matrix<double>{3, 7};
  auto loss = [&] {
    on.tanh(x.view(), b, out.view());
    return dot(out.data, c.data);
  };
  loss();
  auto dx = matrix<double>{3, 7};
  auto db = reals(7);
  on.tanh_gradient(out.view(), c.view(), dx.view(), db, false);
  check_gradient("x", x.data, dx.data, loss);
  check_gradient("bias", b, db, loss);
}

TEST_CASE_FIXTURE(fixture, "attention's gradients are those of dropped-out softmax attention") {
  auto qkv  = matrix<double>{t, 3 * h, 1};
  auto c    = matrix<double>{t, h, 3};
  auto out  = matrix<double>{t, h};
  auto lse  = reals(config.num_attention_heads * t);
  auto loss = [&] {
    on.attention(rows, qkv.view(), config.num_attention_heads, drop, out.view(), lse);
    return dot(out.data, c.data);
  };
  loss();
  auto dqkv = matrix<double>{t, 3 * h};
  on.attention_gradient(
      rows, qkv.view(), config.num_attention_heads, drop, out.view(), lse, c.view(), dqkv.view());
  check_gradient("qkv", qkv.data, dqkv.data, loss);
}

TEST_CASE_FIXTURE(fixture, "cross_entropy's gradients are those of its loss, times the scale") {
  auto logits       = matrix<double>{5, 11, 1};
  auto const labels = std::vector<std::int32_t>{3, 0, 10, 3, 7};
  auto lse          = reals(5);
  auto sums         = entropy{};
  auto loss         = [&] {
    on.cross_entropy(logits.view(), labels, lse, &sums);
    return 0.25 * sums.loss;
  };
  loss();
  auto dlogits = logits;
  on.cross_entropy_gradient(dlogits.view(), labels, lse, 0.25);
  check_gradient("logits", logits.data, dlogits.data, loss);
}

TEST_CASE_FIXTURE(fixture, "cross_entropy counts the rows whose label has the largest logit") {
  auto logits = matrix<double>{2, 3};
  logits.data = {0, 5, 10, 2, 1, 9};
  auto lse    = reals(2);
  auto result = entropy{};
  on.cross_entropy(logits.view(), std::vector<std::int32_t>{2, 0}, lse, &result);
  CHECK(result.correct == 1);
  CHECK(lse[0] == doctest::Approx(std::log(1 + std::exp(5.0) + std::exp(10.0))));
}

TEST_CASE_FIXTURE(fixture, "gather and scatter_add move and add rows") {
  auto x           = matrix<double>{4, 3, 1};
  auto const rows_ = std::vector<std::int32_t>{2, 0, 2};
  auto y           = matrix<double>{3, 3};
  on.gather(x.view(), rows_, y.view());
  CHECK(y.data[0] == x.data[6]);
  CHECK(y.data[3] == x.data[0]);
  auto sum = matrix<double>{4, 3};
  on.scatter_add(y.view(), std::vector<std::int32_t>{2, 0, 3}, sum.view());
  on.scatter_add(y.view(), std::vector<std::int32_t>{2, 0, 3}, sum.view());
  CHECK(sum.data[6] == 2 * x.data[6]);
  CHECK(sum.data[0] == 2 * x.data[0]);
  CHECK(sum.data[3] == 0);
}

}  // namespace

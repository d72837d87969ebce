// SPDX-License-Identifier: Apache-2.0
#include "cuda_memory.hpp"  // for device_memory, on_cuda, test_stream
#include "operations.hpp"   // for twin, twin_reals
#include "support.hpp"      // for make_batch

#include <gradlane/types.hpp>  // for bf16

#include <doctest/doctest.h>

#include <bert/config.hpp>
#include <bert/cuda/device.hpp>
#include <bert/cuda/optimizer.hpp>
#include <bert/dropout.hpp>
#include <bert/parameters.hpp>

#include <algorithm>  // for sort, unique
#include <cstddef>    // for size_t
#include <cstdint>    // for int32_t
#include <iostream>   // for cout
#include <span>       // for span
#include <vector>     // for vector

// One operation a test case, and how many bytes it cannot do without: cuda_traffic_test.sh runs
// each under ptxsim and compares. Every look-up in a table counts as a read.

namespace {

using namespace bert;
using gradlane::bf16;
using test::on_cuda;

void must_move(std::size_t bytes) { std::cout << "must move " << bytes << "\n"; }

template <class T>
struct operation {
  using twin       = test::twin<on_cuda<T>>;
  using twin_reals = test::twin_reals<on_cuda<T>>;

  static constexpr std::size_t v = sizeof(T);
  static constexpr std::size_t t = 2048;  // tokens, in 16 sequences
  static constexpr std::size_t h = 512;
  static constexpr std::size_t i = 2048;

  cuda::device<T> on = on_cuda<T>::make();
  cuda::index rows;
  dropout drop{1, 2, 3, 230, 256.0F / 230};
  twin_reals w{h, 1};
  twin_reals s{t, 2};
  twin_reals dw{h};
  twin_reals db{h};

  operation() {
    auto config = model_config{};
    on.assign(test::make_batch(config, std::vector<std::size_t>(16, t / 16)), rows);
  }
  [[nodiscard]] norm_state<T, float> kept(twin& z) { return {z.view(), s.span().data()}; }
};

TEST_CASE_TEMPLATE("norm", T, float, bf16) {
  auto f = operation<T>{};
  auto x = typename operation<T>::twin{f.t, f.h, 1};
  auto z = typename operation<T>::twin{f.t, f.h};
  auto y = typename operation<T>::twin{f.t, f.h};
  f.on.norm(x.view(), f.w.span(), f.w.span(), 1e-12, f.kept(z), y.view());
  must_move(3 * f.v * f.t * f.h + 4 * f.t);
}

TEST_CASE_TEMPLATE("norm_gradient", T, float, bf16) {
  auto f = operation<T>{};
  auto d = typename operation<T>::twin{f.t, f.h, 1};
  auto z = typename operation<T>::twin{f.t, f.h, 2};
  f.on.norm_gradient(d.view(), f.w.span(), f.kept(z), d.view(), f.dw.span(), f.db.span(), false);
  must_move(3 * f.v * f.t * f.h + 4 * f.t + 3 * 4 * f.h);
}

TEST_CASE_TEMPLATE("add_norm", T, float, bf16) {
  auto f = operation<T>{};
  auto x = typename operation<T>::twin{f.t, f.h, 1};
  auto r = typename operation<T>::twin{f.t, f.h, 2};
  auto z = typename operation<T>::twin{f.t, f.h};
  auto y = typename operation<T>::twin{f.t, f.h};
  f.on.add_norm(f.rows,
                x.view(),
                f.w.span(),
                r.view(),
                f.w.span(),
                f.w.span(),
                1e-12,
                f.drop,
                f.kept(z),
                y.view());
  must_move(4 * f.v * f.t * f.h + 12 * f.t);
}

TEST_CASE_TEMPLATE("add_norm_gradient", T, float, bf16) {
  auto f = operation<T>{};
  auto d = typename operation<T>::twin{f.t, f.h, 1};
  auto e = typename operation<T>::twin{f.t, f.h, 2};
  auto z = typename operation<T>::twin{f.t, f.h, 3};
  f.on.add_norm_gradient(f.rows,
                         d.view(),
                         e.view(),
                         f.w.span(),
                         f.drop,
                         f.kept(z),
                         d.view(),
                         e.view(),
                         f.dw.span(),
                         f.dw.span(),
                         f.db.span(),
                         false);
  must_move(5 * f.v * f.t * f.h + 12 * f.t + 4 * 4 * f.h);
}

TEST_CASE_TEMPLATE("embed", T, float, bf16) {
  auto f        = operation<T>{};
  auto word     = typename operation<T>::twin_reals{30522 * f.h, 1};
  auto position = typename operation<T>::twin_reals{512 * f.h, 2};
  auto type     = typename operation<T>::twin_reals{2 * f.h, 3};
  auto z        = typename operation<T>::twin{f.t, f.h};
  auto y        = typename operation<T>::twin{f.t, f.h};
  f.on.embed(f.rows,
             word.span(),
             position.span(),
             type.span(),
             f.w.span(),
             f.w.span(),
             1e-12,
             f.drop,
             f.kept(z),
             y.view());
  must_move((3 * 4 + 2 * f.v) * f.t * f.h + 20 * f.t);
}

TEST_CASE_TEMPLATE("embed_gradient", T, float, bf16) {
  auto f        = operation<T>{};
  auto d        = typename operation<T>::twin{f.t, f.h, 1};
  auto e        = typename operation<T>::twin{f.t, f.h, 2};
  auto z        = typename operation<T>::twin{f.t, f.h, 3};
  auto word     = typename operation<T>::twin_reals{30522 * f.h, 1};
  auto position = typename operation<T>::twin_reals{512 * f.h, 2};
  auto type     = typename operation<T>::twin_reals{2 * f.h, 3};
  f.on.embed_gradient(f.rows,
                      d.view(),
                      e.view(),
                      f.w.span(),
                      f.drop,
                      f.kept(z),
                      word.span(),
                      position.span(),
                      type.span(),
                      f.dw.span(),
                      f.db.span(),
                      true);
  auto tokens = f.rows.data().tokens;
  std::sort(tokens.begin(), tokens.end());
  auto const distinct = std::unique(tokens.begin(), tokens.end()) - tokens.begin();
  auto const entries  = static_cast<std::size_t>(distinct) + f.t / 16 + 2;
  // the sum's gradient is written once, then read for each of the tables
  must_move((3 * f.v + 4 + 3 * 4) * f.t * f.h + 2 * 4 * entries * f.h + 3 * 4 * f.t);
}

TEST_CASE_TEMPLATE("gelu", T, float, bf16) {
  auto f = operation<T>{};
  auto x = typename operation<T>::twin{f.t, f.i, 1};
  auto b = typename operation<T>::twin_reals{f.i, 2};
  auto y = typename operation<T>::twin{f.t, f.i};
  f.on.gelu(x.view(), b.span(), y.view());
  must_move(2 * f.v * f.t * f.i + 4 * f.i);
}

TEST_CASE_TEMPLATE("gelu_gradient", T, float, bf16) {
  auto f = operation<T>{};
  auto x = typename operation<T>::twin{f.t, f.i, 1};
  auto b = typename operation<T>::twin_reals{f.i, 2};
  auto d = typename operation<T>::twin{f.t, f.i, 3};
  f.on.gelu_gradient(x.view(), b.span(), d.view(), d.view(), b.span(), false);
  must_move(3 * f.v * f.t * f.i + 2 * 4 * f.i);
}

TEST_CASE_TEMPLATE("column_sums", T, float, bf16) {
  auto f = operation<T>{};
  auto x = typename operation<T>::twin{f.t, 3 * f.h, 1};
  f.on.column_sums(x.view().columns(f.h, f.h), f.db.span(), false);
  must_move(f.v * f.t * f.h + 4 * f.h);
}

TEST_CASE_TEMPLATE("cross_entropy", T, float, bf16) {
  auto f      = operation<T>{};
  auto logits = typename operation<T>::twin{100, 5003, 1};
  auto lse    = typename operation<T>::twin_reals{100};
  auto labels = test::device_memory<std::int32_t>{std::vector<std::int32_t>(100, 5002)};
  auto target = test::device_memory<entropy>{std::vector<entropy>(1)};
  f.on.cross_entropy(logits.view(), labels.span(), lse.span(), target.span().data());
  must_move(f.v * 100 * 5003);
}

TEST_CASE_TEMPLATE("cross_entropy_gradient", T, float, bf16) {
  auto f      = operation<T>{};
  auto logits = typename operation<T>::twin{100, 5003, 1};
  auto lse    = typename operation<T>::twin_reals{100, 2};
  auto labels = test::device_memory<std::int32_t>{std::vector<std::int32_t>(100, 5002)};
  f.on.cross_entropy_gradient(logits.view(), labels.span(), lse.span(), 1);
  must_move(2 * f.v * 100 * 5003);
}

TEST_CASE_TEMPLATE("gather", T, float, bf16) {
  auto f = operation<T>{};
  auto x = typename operation<T>::twin{f.t, f.h, 1};
  auto y = typename operation<T>::twin{f.rows.predicted().size(), f.h};
  f.on.gather(x.view(), f.rows.predicted(), y.view());
  must_move(2 * f.v * f.rows.predicted().size() * f.h);
}

TEST_CASE_TEMPLATE("scatter_add", T, float, bf16) {
  auto f = operation<T>{};
  auto x = typename operation<T>::twin{f.t, f.h, 1};
  auto y = typename operation<T>::twin{f.rows.predicted().size(), f.h, 2};
  f.on.scatter_add(y.view(), f.rows.predicted(), x.view());
  must_move(3 * f.v * f.rows.predicted().size() * f.h);
}

TEST_CASE("load") {
  auto device     = on_cuda<bf16>::make();
  auto parameters = test::device_memory<float>{std::vector<float>(1000003)};
  device.load(parameters.span());
  must_move(6 * 1000003);
}

void update(optimizer_settings const& settings, std::size_t bytes_an_element) {
  auto const list = parameter_list{preset("mini")};
  auto parameters = test::device_memory<float>{std::vector<float>(list.total())};
  auto gradient   = test::device_memory<float>{std::vector<float>(list.total())};
  auto working    = test::device_memory<bf16>{std::vector<bf16>(list.total())};
  auto gradients  = std::vector<std::span<float>>{};
  for (auto i = std::size_t{0}; i < list.size(); ++i) {
    gradients.push_back(list.slice(gradient.span(), i));
  }
  auto own = cuda::optimizer{list, settings, gradients, test::test_stream()};
  own.step(parameters.span(), 1e-3, nullptr, working.span());
  static_cast<void>(own.sync_steps());
  must_move(bytes_an_element * list.total());
}

// gradient, parameter and moments are read, parameter, moments and working copy written; LAMB
// reads all but the gradient once more, since a tensor's norms come before its first update
TEST_CASE("adamw") { update({}, 16 + 12 + 2); }
TEST_CASE("lamb") { update(lamb_settings(), 16 + 8 + 12 + 4 + 2); }

}  // namespace

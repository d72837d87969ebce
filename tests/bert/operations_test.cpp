// SPDX-License-Identifier: Apache-2.0
#include "operations.hpp"  // for BERT_OPERATIONS_CONFORMANCE, twin, twin_reals

#include "attention_operations.hpp"  // for BERT_ATTENTION_CONFORMANCE, attention_run
#include "on_cpu.hpp"                // for on_cpu

#include <gradlane/types.hpp>  // for bf16

#include <doctest/doctest.h>

#include <bert/cpu/device.hpp>
#include <bert/cpu/dropout_bytes.hpp>
#include <bert/cpu/vector_math.hpp>
#include <bert/reference.hpp>

// The CPU's operations against the reference; operations.hpp says how.

namespace {

using namespace bert;
using gradlane::bf16;
using test::bound;
using test::on_cpu;

template <class T>
using twin       = test::twin<on_cpu<T>>;
using twin_reals = test::twin_reals<on_cpu<float>>;

TEST_CASE("cpu linear in bf16 agrees with the reference by either kind of product") {
  for (auto const kind : {cpu::bf16_products::native, cpu::bf16_products::widened}) {
    auto fast          = cpu::device<bf16>{kind};
    auto exact         = reference_device<double>{};
    auto const weights = weight_matrix{0, 50, 70};
    auto w             = twin_reals{50 * 70, 1};
    for (auto& value : w.exact) { value = static_cast<double>(static_cast<float>(bf16{value})); }
    fast.load(w.span());
    exact.load(w.exact);
    for (auto const n : {std::size_t{3}, std::size_t{100}, std::size_t{3}}) {
      auto x  = twin<bf16>{n, 70, 2};
      auto y  = twin<bf16>{n, 50};
      auto dy = twin<bf16>{n, 50, 3};
      auto dx = twin<bf16>{n, 70};
      auto dw = twin_reals{50 * 70, 4};
      auto b  = twin_reals{50, 5};
      fast.linear(x.view(), weights, b.span(), y.view());
      exact.linear(x.reference(), weights, b.exact, y.reference());
      CHECK(y.error() < bound<bf16>);
      fast.linear_input_gradient(dy.view(), weights, dx.view());
      exact.linear_input_gradient(dy.reference(), weights, dx.reference());
      CHECK(dx.error() < bound<bf16>);
      fast.linear_weight_gradient(dy.view(), x.view(), dw.span(), true);
      exact.linear_weight_gradient(dy.reference(), x.reference(), dw.exact, true);
      CHECK(dw.error() < bound<float>);
    }
  }
}

TEST_CASE_TEMPLATE("cpu attention takes heads of any size", T, float, bf16) {
  for (auto const& drop : {test::attention_drop(), dropout{}}) {
    test::attention_run<on_cpu<T>>{{65, 1, 33, 140, 17}, 3, 16, drop}.compare(bound<T>);
  }
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

BERT_OPERATIONS_CONFORMANCE(on_cpu<float>, on_cpu<bf16>);
BERT_ATTENTION_CONFORMANCE(on_cpu<float>, on_cpu<bf16>);

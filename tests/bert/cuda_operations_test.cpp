// SPDX-License-Identifier: Apache-2.0
#include "cuda_memory.hpp"  // for on_cuda
#include "operations.hpp"   // for BERT_OPERATIONS_CONFORMANCE, twin, twin_reals

#include <gradlane/types.hpp>  // for bf16, fp16

#include <doctest/doctest.h>

// The CUDA operations against the reference; operations.hpp says how.

namespace {

using namespace bert;
using gradlane::bf16;
using gradlane::fp16;
using test::on_cuda;

TEST_CASE_TEMPLATE("cuda dropout masks are the reference's, bit for bit", T, float, bf16, fp16) {
  using on    = on_cuda<T>;
  auto f      = test::operations_fixture<on>{};
  auto w      = test::twin_reals<on>{f.h, 1};
  auto z      = test::twin<on>{f.t, f.h, 2};
  auto s      = test::twin_reals<on>{f.t, 3};
  auto dy     = test::twin<on>{f.t, f.h, 4};
  auto dx     = test::twin<on>{f.t, f.h};
  auto branch = test::twin<on>{f.t, f.h};
  auto sums   = test::twin_reals<on>{f.h};
  f.fast.add_norm_gradient(f.rows,
                           dy.view(),
                           {},
                           w.span(),
                           f.drop,
                           {z.view(), s.span().data()},
                           dx.view(),
                           branch.view(),
                           sums.span(),
                           sums.span(),
                           sums.span(),
                           false);
  auto const values = dx.values();
  auto const kept   = branch.values();
  auto wrong        = 0;
  for (auto i = std::size_t{0}; i < f.t; ++i) {
    for (auto j = std::size_t{0}; j < f.h; ++j) {
      auto const factor = row_factor(f.drop,
                                     f.host_rows.row_samples()[i],
                                     static_cast<std::uint32_t>(f.host_rows.positions()[i]),
                                     static_cast<std::uint32_t>(j));
      auto const value  = static_cast<float>(values[i * f.h + j]);
      auto const result = static_cast<float>(kept[i * f.h + j]);
      if (value != 0 && (factor == 0) != (result == 0)) { ++wrong; }
    }
  }
  CHECK(wrong == 0);
}

}  // namespace

BERT_OPERATIONS_CONFORMANCE(on_cuda<float>, on_cuda<gradlane::bf16>, on_cuda<gradlane::fp16>);

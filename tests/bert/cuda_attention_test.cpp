// SPDX-License-Identifier: Apache-2.0
#include "attention_operations.hpp"  // for BERT_ATTENTION_CONFORMANCE, attention_run
#include "cuda_memory.hpp"           // for on_cuda

#include <gradlane/error.hpp>  // for contract_error
#include <gradlane/types.hpp>  // for bf16, fp16

#include <doctest/doctest.h>

// The device's attention against the reference; the kernels by themselves have their test beside
// them, and attention_operations.hpp says how.

namespace {

using bert::test::attention_run;
using bert::test::on_cuda;

TEST_CASE("cuda attention refuses heads that have not 64 columns") {
  CHECK_THROWS_AS((attention_run<on_cuda<float>>{{3}, 2, 32, bert::dropout{}}),
                  gradlane::contract_error);
}

}  // namespace

BERT_ATTENTION_CONFORMANCE(on_cuda<float>, on_cuda<gradlane::bf16>, on_cuda<gradlane::fp16>);

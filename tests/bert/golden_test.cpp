// SPDX-License-Identifier: Apache-2.0
#include "golden_run.hpp"    // for check_golden, golden
#include "on_reference.hpp"  // for on_reference

#include <doctest/doctest.h>

#include <bert/reference.hpp>

// The reference in fp64 against Hugging Face's BERT in fp64. Both round at 1e-16 and differ in the
// order of sums over at most 160 terms and 30 operations: 1e-12 of each tensor's norm is ample.

namespace {

using namespace bert;

TEST_CASE("model agrees with Hugging Face's BERT: logits, losses and every gradient") {
  for (auto const* expected : {&test::golden::heads_of_16, &test::golden::heads_of_64}) {
    auto device = reference_device<double>{};
    test::check_golden<test::on_reference<double>>(*expected, device, 1e-12);
  }
}

}  // namespace

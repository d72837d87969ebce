// SPDX-License-Identifier: Apache-2.0
#include <gradlane/buckets/parameter.hpp>

#include <doctest/doctest.h>

#include <support/model.hpp>

#include <array>
#include <span>
#include <vector>

using namespace gradlane;

TEST_CASE("detect_ties ties the same memory and leaves neighbours apart") {
  auto memory     = std::array<float, 12>{};
  auto const all  = std::span{memory};
  auto parameters = test::parameters({4, 4, 4, 4});
  auto const tensors =
      std::vector<buffer_view>{all.subspan(4, 4), all.first(4), all.subspan(4, 4), all.last(4)};
  detect_ties(parameters, tensors);
  CHECK(parameters[0].tied_to.empty());
  CHECK(parameters[1].tied_to.empty());
  CHECK(parameters[2].tied_to == "p0");
  CHECK(parameters[3].tied_to.empty());
}

TEST_CASE("detect_ties leaves out frozen and empty parameters") {
  auto memory             = std::array<float, 4>{};
  auto parameters         = test::parameters({4, 4, 0});
  parameters[1].trainable = false;
  auto const all          = std::span{memory};
  detect_ties(parameters, std::vector<buffer_view>{all, all, buffer_view{}});
  CHECK(parameters[1].tied_to.empty());
}

TEST_CASE("detect_ties refuses ranges that overlap in part, or that are seen as two dtypes") {
  auto memory     = std::array<float, 12>{};
  auto const all  = std::span{memory};
  auto parameters = test::parameters({4, 8});
  for (auto const start : {0, 1, 3}) {
    auto const tensors =
        std::vector<buffer_view>{all.subspan(static_cast<std::size_t>(start), 4), all.first(8)};
    CHECK_THROWS_WITH_AS(
        detect_ties(parameters, tensors), doctest::Contains("overlap"), contract_error);
  }
  auto mixed    = test::parameters({4, 8});
  mixed[1].type = dtype::bf16;
  auto* bytes   = reinterpret_cast<std::byte*>(memory.data());
  CHECK_THROWS_AS(
      detect_ties(mixed, std::vector<buffer_view>{all.first(4), {bytes, 8, dtype::bf16}}),
      contract_error);
}

TEST_CASE("detect_ties refuses tensors that differ from their parameters") {
  auto memory     = std::array<float, 12>{};
  auto const all  = std::span{memory};
  auto parameters = test::parameters({4});
  CHECK_THROWS_AS(detect_ties(parameters, {}), contract_error);
  CHECK_THROWS_WITH_AS(detect_ties(parameters, std::vector<buffer_view>{all.first(5)}),
                       doctest::Contains("'p0' has 5 elements of fp32"),
                       contract_error);
}

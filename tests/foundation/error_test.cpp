// SPDX-License-Identifier: Apache-2.0
#include <gradlane/error.hpp>  // for all that is tested

#include <doctest/doctest.h>

#include <source_location>  // for source_location
#include <string>           // for string, to_string
#include <string_view>      // for string_view
#include <type_traits>      // for is_base_of_v

using namespace gradlane;

static_assert(std::is_base_of_v<contract_error, state_error>);
static_assert(std::is_base_of_v<communication_error, timeout_error>);
static_assert(std::is_base_of_v<communication_error, aborted_error>);
static_assert(std::is_base_of_v<error, plan_mismatch_error>);
static_assert(std::is_base_of_v<std::runtime_error, error>);

TEST_CASE("error says where it was thrown, then what") {
  auto const here = std::source_location::current();
  auto const e    = contract_error{"bound is NaN", here};
  CHECK(e.what() ==
        std::string{here.file_name()} + ":" + std::to_string(here.line()) + ": bound is NaN");
  CHECK(e.where().line() == here.line());
}

TEST_CASE("non_finite_error carries bucket, parameter and offset") {
  auto const e = non_finite_error{"NaN", 2, "encoder.weight", 17};
  CHECK(e.bucket() == 2);
  CHECK(e.parameter() == "encoder.weight");
  CHECK(e.offset() == 17);
}

TEST_CASE("expects throws at its caller's place unless the condition holds") {
  expects(true, "not thrown");
  auto line = std::source_location::current().line();
  try {
    line = std::source_location::current().line() + 1;
    expects(false, "thrown");
    FAIL("not thrown");
  } catch (contract_error const& e) {
    CHECK(e.where().line() == line);
    CHECK(std::string_view{e.what()}.ends_with(": thrown"));
  }
}

TEST_CASE("error tells its message without the place too") {
  auto const e = gradlane::error{"the text"};
  CHECK(e.message() == "the text");
  CHECK(std::string_view{e.what()}.ends_with(": the text"));
}

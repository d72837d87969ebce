// SPDX-License-Identifier: Apache-2.0
#include <gradlane/buffer_view.hpp>  // for buffer_view, const_buffer_view
#include <gradlane/error.hpp>        // for contract_error

#include <doctest/doctest.h>

#include <array>        // for array
#include <cstddef>      // for size_t
#include <cstdint>      // for int32_t
#include <span>         // for span
#include <string_view>  // for string_view
#include <type_traits>  // for is_convertible_v, is_trivially_copyable_v

using namespace gradlane;

static_assert(std::is_trivially_copyable_v<buffer_view>);
static_assert(std::is_convertible_v<buffer_view, const_buffer_view>);
static_assert(!std::is_convertible_v<const_buffer_view, buffer_view>);
static_assert(!std::is_convertible_v<std::span<float const>, buffer_view>);

TEST_CASE("buffer_view of a span has its data, count and dtype, and gives the span back") {
  auto x          = std::array{bf16{1.0F}, bf16{2.0F}, bf16{3.0F}};
  auto const view = buffer_view{std::span{x}};
  CHECK(view.type() == dtype::bf16);
  CHECK(view.count() == 3);
  CHECK(view.size_bytes() == 6);
  CHECK_FALSE(view.empty());
  CHECK(view.as<bf16>().data() == x.data());
  CHECK(view.as<bf16>().size() == 3);

  auto const readable = const_buffer_view{view};
  static_assert(std::is_same_v<decltype(readable.as<bf16>()), std::span<bf16 const>>);
  CHECK(readable.as<bf16>().data() == x.data());
  auto const copy = view;
  CHECK(copy.data() == view.data());
}

TEST_CASE("buffer_view is empty by default") {
  CHECK(buffer_view{}.empty());
  CHECK(buffer_view{}.size_bytes() == 0);
  CHECK(buffer_view{}.as<float>().empty());
}

TEST_CASE("buffer_view::as refuses another dtype and names both") {
  auto x = std::array<std::int32_t, 2>{};
  try {
    static_cast<void>(buffer_view{std::span{x}}.as<float>());
    FAIL("not refused");
  } catch (contract_error const& e) {
    auto const text = std::string_view{e.what()};
    CHECK(text.find("asked for fp32, holds int32") != std::string_view::npos);
    CHECK(text.find("buffer_view_test.cpp") != std::string_view::npos);
  }
}

TEST_CASE("buffer_view::subview takes elements, and refuses a range that is not inside") {
  auto x          = std::array{0.0, 1.0, 2.0, 3.0};
  auto const view = buffer_view{std::span{x}};
  CHECK(view.subview(1, 2).as<double>().front() == 1.0);
  CHECK(view.subview(1, 2).count() == 2);
  CHECK(view.subview(4, 0).empty());
  CHECK_THROWS_AS(static_cast<void>(view.subview(5, 0)), contract_error);
  CHECK_THROWS_AS(static_cast<void>(view.subview(1, 4)), contract_error);
  CHECK_THROWS_AS(static_cast<void>(view.subview(1, ~std::size_t{0})), contract_error);  // no wrap
}

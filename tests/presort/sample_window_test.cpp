// SPDX-License-Identifier: Apache-2.0
// Descriptions of samples, and views of a rank's part of a window.
#include <gradlane/sample_window.hpp>

#include <doctest/doctest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace {

using namespace gradlane;

/// Two batches: samples of 2 and 0 tokens, then one of 3; a per-token array of pairs of bytes, a
/// per-sample one, a counted one of rows 1, 2, 0.
struct fixture {
  std::array<std::uint8_t, 10> tokens{0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
  std::array<float, 3> labels{0.5F, 1.5F, 2.5F};
  std::array<std::uint16_t, 3> marks{7, 8, 9};
  std::array<std::uint64_t, 3> ids{40, 41, 42};
  std::array<std::int32_t, 5> starts{0, 2, 2, 0, 3};
  std::array<std::int32_t, 5> mark_starts{0, 1, 3, 0, 0};

  [[nodiscard]] presorted_window window() {
    auto samples  = detail::dealt_samples{.micro_steps = 1,
                                          .first       = {0, 2, 3},
                                          .ids         = {40, 41, 42},
                                          .lengths     = {2, 0, 3},
                                          .rows        = {{0, 2, 2, 0, 3}, {0, 1, 3, 0, 0}},
                                          .rows_of     = {0, 2, 1}};
    auto const at = [](auto& array) { return reinterpret_cast<std::byte*>(array.data()); };
    auto memory   = detail::dealt_memory{.ids       = ids.data(),
                                         .rows      = {starts.data(), mark_starts.data()},
                                         .arrays    = {at(tokens), at(labels), at(marks)},
                                         .row_bytes = {2, 4, 2},
                                         .first_row = {{0, 2, 5}, {0, 2, 3}, {0, 3, 3}}};
    return {std::move(samples), std::move(memory), {.samples = 3}};
  }
};

}  // namespace

TEST_CASE("array_of counts bytes of rows") {
  struct pair {
    double a;
    char b;
  };
  CHECK(array_of<std::uint32_t>("ids").row_bytes == 4);
  CHECK(array_of<float>("vectors", array_rows::counted, 3).row_bytes == 12);
  CHECK(array_of<pair>("pairs", array_rows::per_sample).row_bytes == 16);
  CHECK(name_of(array_rows::counted) == "counted");
}

TEST_CASE("presorted_window shows batches without padding") {
  auto data         = fixture{};
  auto const window = data.window();
  CHECK(window.steps() == 2);
  CHECK(window.traffic().samples == 3);
  auto const first  = window.batch(0);
  auto const second = window.batch(1);
  CHECK(first.size() == 2);
  CHECK(first.tokens() == 2);
  CHECK(first.ids()[1] == 41);
  CHECK(first.device_ids().data() == data.ids.data());
  CHECK(std::vector<std::int32_t>(first.starts().begin(), first.starts().end()) ==
        std::vector<std::int32_t>{0, 2, 2});
  CHECK(second.starts().size() == 2);
  CHECK(second.starts()[1] == 3);
  CHECK(second.device_starts().data() == data.starts.data() + 3);
  CHECK(first.array<std::uint8_t>(0).size() == 4);
  CHECK(second.array<std::uint8_t>(0)[0] == 4);
  CHECK(second.array<std::array<std::uint8_t, 2>>(0)[2][1] == 9);
  CHECK(second.array<float>(1)[0] == 2.5F);
  CHECK(first.array<std::uint16_t>(2).size() == 3);
  CHECK(second.array<std::uint16_t>(2).empty());
  CHECK(first.row_starts(2)[1] == 1);
  CHECK(first.row_starts(0).data() == first.starts().data());
  CHECK(second.device_row_starts(2).data() == data.mark_starts.data() + 3);
}

TEST_CASE("presorted_window refuses what it does not hold") {
  auto data         = fixture{};
  auto const window = data.window();
  CHECK_THROWS_AS(static_cast<void>(window.batch(2)), contract_error);
  CHECK_THROWS_AS(static_cast<void>(window.batch(0, 1)), contract_error);
  CHECK_THROWS_AS(static_cast<void>(window.batch(0).array<float>(3)), contract_error);
  CHECK_THROWS_WITH_AS(static_cast<void>(window.batch(0).array<double>(1)),
                       doctest::Contains("rows of array 1 have 4 bytes, elements asked for 8"),
                       contract_error);
  CHECK_THROWS_AS(static_cast<void>(window.batch(0).row_starts(1)), contract_error);
  CHECK_THROWS_AS(static_cast<void>(window.batch(0).row_starts(9)), contract_error);
}

TEST_CASE("presorted_window is empty before anything was dealt, and where it was moved from") {
  auto const window = presorted_window{};
  CHECK(window.steps() == 0);
  CHECK_THROWS_AS(static_cast<void>(window.batch(0)), contract_error);
  auto data        = fixture{};
  auto given       = data.window();
  auto const taken = std::move(given);
  CHECK(taken.steps() == 2);
  CHECK(given.steps() == 0);  // NOLINT(bugprone-use-after-move)
}

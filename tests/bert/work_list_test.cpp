// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <bert/attention/work_list.hpp>

#include <cstddef>    // for size_t
#include <cstdint>    // for int32_t
#include <limits>     // for numeric_limits
#include <stdexcept>  // for invalid_argument
#include <vector>     // for vector

namespace {

using bert::attention::count_tiles;
using bert::attention::fill_tiles;
using bert::attention::tile;

using numbers = std::vector<std::int32_t>;

TEST_CASE("fill_tiles covers every row once, longest sequences first, ties in order") {
  auto const starts = numbers{0, 5, 5, 134, 262, 267, 523};  // lengths 5, 0, 129, 128, 5, 256
  auto tiles        = std::vector<tile>(count_tiles(starts));
  CHECK(fill_tiles(starts, tiles) == 7);
  auto const expected =
      std::vector<tile>{{5, 0}, {5, 128}, {2, 0}, {2, 128}, {3, 0}, {0, 0}, {4, 0}};
  CHECK_UNARY(tiles == expected);
}

TEST_CASE("fill_tiles makes tiles without work of what is left") {
  auto tiles = std::vector<tile>(3, tile{7, 7});
  CHECK(fill_tiles(numbers{0, 3}, tiles) == 1);
  auto const expected = std::vector<tile>{{0, 0}, {}, {}};
  CHECK_UNARY(tiles == expected);
  CHECK(tiles.back().sequence < 0);
}

TEST_CASE("count_tiles is 0 without rows") {
  CHECK(count_tiles(numbers{}) == 0);
  CHECK(count_tiles(numbers{0}) == 0);
  CHECK(count_tiles(numbers{0, 0, 0}) == 0);
  CHECK(fill_tiles(numbers{0, 0}, {}) == 0);
}

TEST_CASE("fill_tiles gives every length from 0 to 2048 its tiles") {
  for (auto length = std::int32_t{0}; length <= 2048; ++length) {
    auto const starts = numbers{9, 9 + length};
    auto tiles        = std::vector<tile>(16);
    auto const count  = fill_tiles(starts, tiles);
    REQUIRE(count == static_cast<std::size_t>((length + 127) / 128));
    for (auto i = std::size_t{0}; i < count; ++i) {
      REQUIRE(tiles[i] == tile{0, static_cast<std::int32_t>(128 * i)});
    }
  }
}

TEST_CASE("count_tiles does not overflow") {
  constexpr auto most = std::numeric_limits<std::int32_t>::max();
  CHECK(count_tiles(numbers{0, most}) == 1U << 24U);
  CHECK(count_tiles(numbers{-most, most}) == 1U << 25U);
}

TEST_CASE("fill_tiles refuses starts that descend, and too little room") {
  auto tiles = std::vector<tile>(1);
  CHECK_THROWS_AS(static_cast<void>(count_tiles(numbers{0, 5, 4})), std::invalid_argument);
  CHECK_THROWS_AS(fill_tiles(numbers{0, 129}, tiles), std::invalid_argument);
}

}  // namespace

// SPDX-License-Identifier: Apache-2.0
#include <gradlane/element_range.hpp>

#include <doctest/doctest.h>

using namespace gradlane;

TEST_CASE("intersection of ranges is empty where they do not meet") {
  using range = element_range;
  CHECK(intersection(range{0, 10}, range{4, 6}) == range{4, 6});
  CHECK(intersection(range{5, 10}, range{4, 6}) == range{5, 6});
  CHECK(intersection(range{0, 4}, range{4, 6}).count() == 0);
  CHECK(intersection(range{6, 9}, range{4, 6}).count() == 0);
  CHECK(intersection(range{8, 9}, range{4, 6}).end <= 6);
  CHECK(intersection(range{3, 3}, range{0, 6}).count() == 0);
}

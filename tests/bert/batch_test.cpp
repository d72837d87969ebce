// SPDX-License-Identifier: Apache-2.0
#include "support.hpp"  // for make_batch, tiny_config

#include <doctest/doctest.h>

#include <bert/batch.hpp>
#include <bert/batch_index.hpp>

namespace {

using namespace bert;
using gradlane::contract_error;

TEST_CASE("batch takes sequences back to back and counts predicted rows over all of them") {
  auto data = batch{};
  data.append(7, {2, 5, 3}, {0, 0, 0}, {1}, {9}, 0);
  data.append(4, {2, 6}, {0, 1}, {1}, {8}, 1);
  check(data, test::tiny_config());
  CHECK(data.starts == std::vector<std::int32_t>{0, 3, 5});
  CHECK(data.predicted == std::vector<std::int32_t>{1, 4});
  auto index = batch_index{};
  index.assign(data);
  CHECK(index.positions() == std::vector<std::int32_t>{0, 1, 2, 0, 1});
  CHECK(index.row_samples() == std::vector<std::uint32_t>{7, 7, 7, 4, 4});
  CHECK(index.first_rows() == std::vector<std::int32_t>{0, 3});
  CHECK(index.by_token() == std::vector<std::int32_t>{0, 3, 2, 1, 4});
}

TEST_CASE("batch without sequences is legal") {
  CHECK_NOTHROW(check(batch{}, test::tiny_config()));
}

TEST_CASE("batch is refused with the entry that no model can take") {
  auto const config = test::tiny_config();
  auto const good   = test::make_batch(config, {5, 9});
  auto const refuse = [&](auto const& spoil, char const* message) {
    auto bad = good;
    spoil(bad);
    CHECK_THROWS_WITH_AS(check(bad, config), doctest::Contains(message), contract_error);
  };
  check(good, config);
  refuse([](batch& b) { b.tokens[3] = 37; }, "tokens[3] is 37, must lie in [0, 37)");
  refuse([](batch& b) { b.tokens[0] = -1; }, "tokens[0]");
  refuse([](batch& b) { b.segments[2] = 2; }, "segments[2]");
  refuse([](batch& b) { b.segments.pop_back(); }, "one segment id for each token");
  refuse([](batch& b) { b.labels.front() = 99; }, "labels[0]");
  refuse([](batch& b) { b.labels.pop_back(); }, "one label for each predicted row");
  refuse([](batch& b) { b.predicted.front() = 14; }, "predicted[0]");
  refuse([](batch& b) { b.predicted.back() = b.predicted.front(); }, "ascend");
  refuse([](batch& b) { b.next[1] = 2; }, "next[1]");
  refuse([](batch& b) { b.next.pop_back(); }, "next-sentence label");
  refuse([](batch& b) { b.starts[1] = 0; }, "sequence 0 has length 0");
  refuse([](batch& b) { b.starts.back() = 13; }, "from 0 to the number of tokens");
  refuse([](batch& b) { b.starts.pop_back(); }, "one entry more than samples");
  CHECK_THROWS_WITH_AS(check(test::make_batch(config, {41}), config),
                       doctest::Contains("sequence 0 has length 41, must be 1 to 40"),
                       contract_error);
}

}  // namespace

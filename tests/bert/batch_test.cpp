// SPDX-License-Identifier: Apache-2.0
#include "support.hpp"  // for make_batch, tiny_config

#include <doctest/doctest.h>

#include <bert/batch.hpp>
#include <bert/batch_index.hpp>
#include <bert/pad.hpp>

#include <algorithm>  // for equal, max
#include <cstddef>    // for size_t
#include <cstdint>    // for int32_t, uint32_t
#include <set>        // for set
#include <vector>     // for vector

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

TEST_CASE("pad fills a batch up to a shape with what counts for nothing") {
  auto const config = test::tiny_config();
  auto const data   = test::make_batch(config, {5, 9});
  auto const counts = data.prediction_count();
  auto const padded = pad(data, {.tokens = 64, .sequences = 5, .predictions = 8}, 40);
  check(padded, config);
  CHECK(padded.starts == std::vector<std::int32_t>{0, 5, 14, 54, 64, 64});
  CHECK(padded.next == std::vector<std::int32_t>{0, 1, -1, -1, -1});
  CHECK(padded.prediction_count() == 8);
  CHECK(padded.counted_predictions() == counts);
  CHECK(padded.counted_next() == 2);
  auto index = batch_index{};
  index.assign(padded);
  CHECK(index.first_rows() == std::vector<std::int32_t>{0, 5, -1, -1, -1});
  CHECK(std::equal(data.tokens.begin(), data.tokens.end(), padded.tokens.begin()));
  CHECK(std::equal(data.predicted.begin(), data.predicted.end(), padded.predicted.begin()));
}

TEST_CASE("pad takes a batch without sequences, and one without labels") {
  auto const config = test::tiny_config();
  auto const none   = pad(batch{}, {.tokens = 64, .sequences = 8, .predictions = 8}, 40);
  check(none, config);
  CHECK(none.starts == std::vector<std::int32_t>{0, 40, 64, 64, 64, 64, 64, 64, 64});
  auto data = test::make_batch(config, {5, 9});
  data.next.clear();
  CHECK(pad(data, {.tokens = 14, .sequences = 3, .predictions = 8}, 40).next ==
        std::vector<std::int32_t>{-1, -1, -1});
}

TEST_CASE("pad refuses a shape that is too small") {
  auto const data   = test::make_batch(test::tiny_config(), {5, 9});
  auto const refuse = [&](batch_shape const& shape) {
    CHECK_THROWS_AS(static_cast<void>(pad(data, shape, 40)), contract_error);
  };
  refuse({.tokens = 13, .sequences = 8, .predictions = 8});
  refuse({.tokens = 64, .sequences = 1, .predictions = 8});
  refuse({.tokens = 64, .sequences = 3, .predictions = 8});
  refuse({.tokens = 64, .sequences = 8, .predictions = 1});
}

TEST_CASE("rounded_up gives few shapes that are little larger, and that batches fit into") {
  auto shapes = std::set<std::size_t>{};
  for (auto tokens = std::size_t{0}; tokens < 20000; tokens += 7) {
    auto const real  = batch_shape{tokens, tokens / 100, tokens / 7};
    auto const least = tokens - tokens / 9;
    auto const shape = rounded_up(real, least, 128);
    CHECK(shape.tokens >= tokens);
    CHECK(shape.sequences >= real.sequences + (shape.tokens - least + 127) / 128);
    CHECK(shape.predictions >= real.predictions);
    CHECK(shape.tokens * 16 <= std::max<std::size_t>(tokens, 64) * 17);
    CHECK(shape.predictions * 8 <= std::max<std::size_t>(real.predictions, 8) * 9);
    CHECK(rounded_up({shape.tokens, 1, 1}, 1, 128).tokens == shape.tokens);
    shapes.insert(shape.tokens);
  }
  CHECK(shapes.size() <= 16 * 9);
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
  refuse([](batch& b) { b.predicted.back() = -1; }, "-1 together");
  refuse([](batch& b) { b.labels.front() = -1; }, "-1 together");
  refuse([](batch& b) { b.predicted.front() = b.labels.front() = -1; }, "after filler");
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

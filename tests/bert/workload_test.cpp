// SPDX-License-Identifier: Apache-2.0
#include <gradlane/balance/histogram.hpp>  // for length_count, length_histogram

#include <doctest/doctest.h>

#include <balance/lengths.hpp>  // for paper_model
#include <bert/batch.hpp>
#include <bert/config.hpp>
#include <bert/workload.hpp>

#include <cstddef>  // for size_t
#include <vector>   // for vector

// What bench/bert measures: lengths, batches and the operations that they are worth.

namespace {

using namespace bert;
using gradlane::balance::length_histogram;
using lengths = std::vector<std::size_t>;

length_histogram some() { return length_histogram{{{10, 1}, {20, 2}, {300, 1}}}; }

TEST_CASE("workload takes the middles of equal shares, cut to what a model takes") {
  CHECK(bench::quantiles(some(), 4, 512) == lengths{10, 20, 20, 300});
  CHECK(bench::quantiles(some(), 1, 512) == lengths{20});
  CHECK(bench::quantiles(some(), 8, 128) == lengths{10, 10, 20, 20, 20, 20, 128, 128});
  CHECK_THROWS(
      bench::quantiles(length_histogram{std::vector<gradlane::balance::length_count>{}}, 1, 5));
}

TEST_CASE("workload pads natural lengths to the longest, and counts text alone") {
  auto const full = bench::make_workload("full", some(), 3, 128);
  CHECK(full.computed == lengths{128, 128, 128});
  CHECK(full.tokens() == 3 * 128);
  auto const natural = bench::make_workload("natural", some(), 4, 512);
  CHECK(natural.computed == natural.text);
  auto const padded = bench::make_workload("padded", some(), 4, 512);
  CHECK(padded.computed == lengths(4, 300));
  CHECK(padded.text == natural.text);
  CHECK_THROWS(bench::make_workload("half", some(), 4, 512));
}

TEST_CASE("workload predicts 15 % of the text and nothing of the padding, the same when padded") {
  auto const config  = preset("base");
  auto const natural = bench::make_workload("natural", simulation::paper_model(), 64, 512);
  auto const padded  = bench::make_workload("padded", simulation::paper_model(), 64, 512);
  auto const a       = bench::make_batch(config, natural, 7);
  auto const b       = bench::make_batch(config, padded, 7);
  check(a, config);
  check(b, config);
  CHECK(b.token_count() == 64 * 512);
  CHECK(a.labels == b.labels);
  auto const share =
      static_cast<double>(a.prediction_count()) / static_cast<double>(a.token_count());
  CHECK(share == doctest::Approx(0.15).epsilon(0.05));
  CHECK(bench::make_batch(config, natural, 8).labels != a.labels);
}

TEST_CASE("workload counts the known operations of base and large on Wikipedia's lengths") {
  // mean length 255.8 and 386.3 for scores; per token, 15 % predicted: 0.574 and 1.955 G
  auto const text        = lengths{386, 387, 386, 386};
  auto const predictions = std::size_t{232};
  auto const per_token   = [&](char const* name) {
    return bench::model_flops(preset(name), text, predictions) / 1545;
  };
  CHECK(per_token("base") == doctest::Approx(0.574e9).epsilon(0.005));
  CHECK(per_token("large") == doctest::Approx(1.955e9).epsilon(0.005));
}

}  // namespace

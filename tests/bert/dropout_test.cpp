// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <bert/config.hpp>
#include <bert/dropout.hpp>

#include <cmath>    // for abs
#include <cstdint>  // for uint32_t
#include <set>      // for set

namespace {

using namespace bert;

TEST_CASE("dropout keeps 230 of 256 at probability 0.1 and scales by the inverse") {
  auto const site = dropout_sites{preset("base"), 0.1, 1, 2}.embeddings();
  CHECK(site.threshold == 230);
  CHECK(site.scale == 256.0F / 230.0F);
  auto kept = 0;
  for (auto position = 0U; position < 512; ++position) {
    for (auto j = 0U; j < 768; ++j) {
      auto const factor = row_factor(site, 5, position, j);
      CHECK_UNARY(factor == 0 || factor == site.scale);
      kept += factor != 0 ? 1 : 0;
    }
  }
  // 393,216 draws: the standard deviation of the rate is 4.8e-4; five of them
  CHECK(std::abs(kept / (512.0 * 768.0) - 230.0 / 256.0) < 2.4e-3);
}

TEST_CASE("dropout of attention probabilities keeps the same rate in rows and in columns") {
  auto const site = dropout_sites{preset("base"), 0.1, 3, 4}.attention_heads(7);
  for (auto fixed : {0U, 9U, 31U, 33U}) {
    auto by_query = 0;
    auto by_key   = 0;
    for (auto other = 0U; other < 20000; ++other) {
      by_query += attention_factor(site, 11, fixed, other) != 0 ? 1 : 0;
      by_key += attention_factor(site, 11, other, fixed) != 0 ? 1 : 0;
    }
    // 20,000 draws: standard deviation 2.1e-3; five of them
    CHECK(std::abs(by_query / 20000.0 - 230.0 / 256.0) < 1.1e-2);
    CHECK(std::abs(by_key / 20000.0 - 230.0 / 256.0) < 1.1e-2);
  }
}

TEST_CASE("dropout gives every attention probability of a tile a byte of its own") {
  // All 32 x 16 places of a tile share 32 calls of 16 bytes; each byte must be used once.
  auto const head = dropout{1, 2, 3, 128, 2.0F};
  auto calls      = std::set<std::uint32_t>{};
  auto places     = std::set<std::uint64_t>{};
  for (auto q = 0U; q < 32; ++q) {
    for (auto k = 0U; k < 16; ++k) {
      auto const call = attention_bytes(head, 9, q, k).x;
      auto const byte = q / 8 * 4 + k / 8 * 2 + k % 2;
      calls.insert(call);
      places.insert(std::uint64_t{call} * 16 + byte);
    }
  }
  CHECK(calls.size() == 32);
  CHECK(places.size() == 512);
}

TEST_CASE("dropout_sites gives all places of the model different streams") {
  auto const config = preset("mini");
  auto const sites  = dropout_sites{config, 0.1, 0, 0};
  auto seen         = std::set<std::uint32_t>{sites.embeddings().site};
  for (auto layer = std::size_t{0}; layer < config.num_hidden_layers; ++layer) {
    seen.insert(sites.attention_output(layer).site);
    seen.insert(sites.feed_forward_output(layer).site);
    for (auto head = 0U; head < config.num_attention_heads; ++head) {
      seen.insert(sites.attention_heads(layer).site + head);
    }
  }
  CHECK(seen.size() == 1 + config.num_hidden_layers * (2 + config.num_attention_heads));
}

TEST_CASE("dropout is disabled by probability 0") {
  auto const site = dropout_sites{preset("base"), 0, 1, 2}.embeddings();
  CHECK_FALSE(site.enabled());
  CHECK(row_factor(site, 1, 2, 3) == 1);
  CHECK(attention_factor(site, 1, 2, 3) == 1);
}

}  // namespace

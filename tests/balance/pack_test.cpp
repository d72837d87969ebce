// SPDX-License-Identifier: Apache-2.0
#include <gradlane/balance/pack.hpp>
#include <gradlane/error.hpp>

#include <doctest/doctest.h>

#include <balance/lengths.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <random>
#include <vector>

using namespace gradlane;
using balance::fitting;
using balance::length_count;
using balance::length_histogram;
using balance::pack;
using balance::pack_rules;
using balance::sample;

namespace {

constexpr auto both = {fitting::shortest_pack_first, fitting::best_fit};

void check_holds_all(length_histogram const& lengths,
                     balance::packing const& packed,
                     pack_rules const& rules) {
  auto counts = std::map<std::uint32_t, std::uint64_t>{};
  for (auto const& p : packed.patterns) {
    REQUIRE(p.count > 0);
    REQUIRE(!p.lengths.empty());
    REQUIRE(p.lengths.size() <= rules.most);
    REQUIRE(std::is_sorted(p.lengths.rbegin(), p.lengths.rend()));
    auto sum = std::uint64_t{0};
    for (auto const length : p.lengths) {
      counts[length] += p.count;
      sum += length;
    }
    REQUIRE(sum <= rules.capacity);
  }
  auto expected = std::map<std::uint32_t, std::uint64_t>{};
  for (auto const& e : lengths.entries()) { expected[e.length] = e.count; }
  REQUIRE(counts == expected);
}

[[nodiscard]] length_histogram random_histogram(std::mt19937_64& random, std::uint32_t longest) {
  auto lengths = std::vector<std::uint32_t>(random() % 200);
  for (auto& length : lengths) { length = static_cast<std::uint32_t>(random() % (longest + 1)); }
  return length_histogram{lengths};
}

}  // namespace

TEST_CASE("pack puts every sequence into one pack that has room for it") {
  auto random = std::mt19937_64{21};
  for (auto turn = 0; turn < 2'000; ++turn) {
    CAPTURE(turn);
    auto const rules =
        pack_rules{.capacity = static_cast<std::uint32_t>(random() % 600),
                   .most     = 1 + random() % 14,
                   .method = random() % 2 == 0 ? fitting::best_fit : fitting::shortest_pack_first};
    auto const lengths = random_histogram(random, rules.capacity);
    check_holds_all(lengths, pack(lengths, rules), rules);
  }
}

TEST_CASE("pack takes the pack that each method is named for") {
  // 60 and 50 stand alone in packs of 100; 35 fits both.
  auto const lengths = length_histogram{std::vector<length_count>{{35, 1}, {50, 1}, {60, 1}}};
  auto const lists   = [&](fitting method) {
    auto result = std::vector<std::vector<std::uint32_t>>{};
    for (auto const& p : pack(lengths, {.capacity = 100, .method = method}).patterns) {
      result.push_back(p.lengths);
    }
    std::sort(result.begin(), result.end());
    return result;
  };
  using packs = std::vector<std::vector<std::uint32_t>>;
  CHECK(lists(fitting::best_fit) == packs{{50}, {60, 35}});
  CHECK(lists(fitting::shortest_pack_first) == packs{{50, 35}, {60}});
}

TEST_CASE("pack fills lengths like Wikipedia's to 99.5 % and more") {
  auto const lengths = simulation::paper_model();
  for (auto const method : both) {
    auto const rules  = pack_rules{.most = 16, .method = method};
    auto const packed = pack(lengths, rules);
    check_holds_all(lengths, packed, rules);
    CHECK(packed.fullness() >= 0.995);
  }
}

TEST_CASE("pack with few sequences a pack leaves more room") {
  auto const lengths = simulation::paper_model();
  CHECK(pack(lengths, {.most = 1}).packs() == lengths.samples());
  CHECK(pack(lengths, {.most = 1}).fullness() == doctest::Approx(lengths.mean_length() / 512));
  CHECK(pack(lengths, {.most = 2}).fullness() < pack(lengths, {.most = 3}).fullness());
}

TEST_CASE("pack bears nothing, sequences of nothing, and packs that are just full") {
  CHECK(pack(length_histogram{std::vector<length_count>{}}, {}).packs() == 0);
  CHECK(pack(length_histogram{std::vector<length_count>{}}, {}).fullness() == 1.0);
  auto const empty = length_histogram{std::vector<length_count>{{0, 25}}};
  CHECK(pack(empty, {.capacity = 0, .most = 10}).packs() == 3);
  auto const full = length_histogram{std::vector<length_count>{{256, 6}, {512, 5}}};
  CHECK(pack(full, {}).packs() == 8);
  CHECK(pack(full, {}).fullness() == 1.0);
}

TEST_CASE("pack refuses what fits no pack") {
  auto const lengths = length_histogram{std::vector<length_count>{{5, 1}, {513, 1}}};
  CHECK_THROWS_AS(static_cast<void>(pack(lengths, {})), contract_error);
  CHECK_THROWS_AS(static_cast<void>(pack(lengths, {.capacity = 1000, .most = 0})), contract_error);
}

TEST_CASE("pack of samples uses each once and does not depend on their order") {
  auto random = std::mt19937_64{22};
  for (auto turn = 0; turn < 500; ++turn) {
    CAPTURE(turn);
    auto samples = std::vector<sample>{};
    for (auto i = random() % 100; i > 0; --i) {
      samples.push_back({1000 - i, static_cast<std::uint32_t>(random() % 513)});
    }
    auto const rules = pack_rules{.most = 1 + random() % 6};
    auto const ids   = [&](std::vector<sample> const& from) {
      auto const packs = pack(from, rules);
      auto result      = std::vector<std::vector<std::uint64_t>>{};
      for (std::size_t p = 0; p < packs.ranks(); ++p) {
        auto sum   = std::uint64_t{0};
        auto& list = result.emplace_back();
        for (auto const i : packs.bin(0, p)) {
          list.push_back(from[i].id);
          sum += from[i].length;
        }
        REQUIRE(sum <= rules.capacity);
        REQUIRE(list.size() <= rules.most);
      }
      return result;
    };
    auto const packs = ids(samples);
    auto all         = std::vector<std::uint64_t>{};
    for (auto const& list : packs) { all.insert(all.end(), list.begin(), list.end()); }
    std::sort(all.begin(), all.end());
    REQUIRE(all.size() == samples.size());
    REQUIRE(std::adjacent_find(all.begin(), all.end()) == all.end());
    auto shuffled = samples;
    std::shuffle(shuffled.begin(), shuffled.end(), random);
    REQUIRE(ids(shuffled) == packs);
  }
}

// SPDX-License-Identifier: Apache-2.0
// Which bytes go where: plans of all ranks together move every byte of every sample exactly once.
#include <gradlane/detail/presort_plan.hpp>

#include <doctest/doctest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

namespace {

using namespace gradlane;
using detail::group_samples;
using detail::presort_plan;
using detail::presort_planner;
using detail::sample_piece;

[[nodiscard]] std::vector<sample_array> arrays() {
  return {array_of<std::uint32_t>("ids"),
          array_of<std::uint8_t>("marks", array_rows::counted, 3),
          array_of<std::uint64_t>("label", array_rows::per_sample)};
}

[[nodiscard]] group_samples random_group(std::mt19937_64& random, std::size_t ranks) {
  auto result  = group_samples{.counts = {{}}, .first = {0}};
  auto const k = random() % 3;
  for (auto r = std::size_t{0}; r < ranks; ++r) {
    for (auto n = random() % 12; n > 0; --n) {
      auto const length = k == 0 ? 9 : k == 1 ? random() % 3 : random() % 100;
      result.samples.push_back({.id     = result.samples.size() * 7 % 1000 + 1000,
                                .length = static_cast<std::uint32_t>(length)});
      result.counts[0].push_back(static_cast<std::uint32_t>(random() % 4));
    }
    result.first.push_back(result.samples.size());
  }
  return result;
}

[[nodiscard]] std::size_t sum(std::vector<std::size_t> const& x) {
  auto result = std::size_t{0};
  for (auto const n : x) { result += n; }
  return result;
}

/// The bytes of a rank's array: each names its array, sample and place.
struct byte_name {
  std::size_t array;
  std::uint64_t id;
  std::size_t place;
  friend bool operator==(byte_name const&, byte_name const&) = default;
};
constexpr auto nothing = byte_name{99, 0, 0};

[[nodiscard]] std::size_t bytes_of(group_samples const& g, std::size_t array, std::size_t sample) {
  return array == 0   ? 4 * std::size_t{g.samples[sample].length}
         : array == 1 ? 3 * std::size_t{g.counts[0][sample]}
                      : 8;
}

[[nodiscard]] std::vector<std::vector<byte_name>> own_bytes(group_samples const& g, std::size_t r) {
  auto result = std::vector<std::vector<byte_name>>(3);
  for (auto i = g.first[r]; i < g.first[r + 1]; ++i) {
    for (auto a = std::size_t{0}; a < 3; ++a) {
      for (auto b = std::size_t{0}; b < bytes_of(g, a, i); ++b) {
        result[a].push_back({a, g.samples[i].id, b});
      }
    }
  }
  return result;
}

void put(std::vector<byte_name>& to, std::size_t at, byte_name what) {
  if (to.size() <= at) { to.resize(at + 1, nothing); }
  CHECK(to[at] == nothing);  // written once
  to[at] = what;
}

/// Carries the plans of all ranks out on names of bytes, and checks what comes out.
void check_plans(group_samples const& g,
                 balance::assignment const& dealt,
                 std::size_t micro_steps) {
  auto const ranks = g.ranks();
  auto const list  = arrays();
  auto plans       = std::vector<presort_plan>{};
  for (auto r = std::size_t{0}; r < ranks; ++r) {
    plans.push_back(presort_planner{g, dealt, list, r}.plan());
    CHECK(plans[r].moved == plans[0].moved);
    CHECK(plans[r].moved_samples == plans[0].moved_samples);
    CHECK(plans[r].result.micro_steps == micro_steps);
    CHECK(plans[r].send[r] == 0);
  }
  auto sent = std::vector<std::vector<byte_name>>(ranks);
  auto all  = std::size_t{0};
  for (auto r = std::size_t{0}; r < ranks; ++r) {
    auto const own = own_bytes(g, r);
    for (auto const& p : plans[r].outgoing) {
      for (auto b = std::size_t{0}; b < p.bytes; ++b) {
        put(sent[r], p.to + b, own[p.array][p.from + b]);
      }
    }
    CHECK(sent[r].size() == sum(plans[r].send));
    all += sent[r].size();
  }
  CHECK(all == plans[0].moved);
  for (auto r = std::size_t{0}; r < ranks; ++r) {
    auto received = std::vector<byte_name>{};
    for (auto from = std::size_t{0}; from < ranks; ++from) {
      CHECK(plans[r].receive[from] == plans[from].send[r]);
      auto begin = std::size_t{0};
      for (auto k = std::size_t{0}; k < r; ++k) { begin += plans[from].send[k]; }
      for (auto b = std::size_t{0}; b < plans[r].receive[from]; ++b) {
        received.push_back(sent[from][begin + b]);
      }
    }
    auto const own = own_bytes(g, r);
    auto out       = std::vector<std::vector<byte_name>>(3);
    for (auto const& p : plans[r].kept) {
      for (auto b = std::size_t{0}; b < p.bytes; ++b) {
        put(out[p.array], p.to + b, own[p.array][p.from + b]);
      }
    }
    for (auto const& p : plans[r].incoming) {
      for (auto b = std::size_t{0}; b < p.bytes; ++b) {
        put(out[p.array], p.to + b, received[p.from + b]);
      }
    }
    auto at    = std::array<std::size_t, 3>{};
    auto batch = std::size_t{0};
    for (auto s = std::size_t{0}; s < dealt.steps(); ++s) {
      for (auto m = std::size_t{0}; m < micro_steps; ++m, ++batch) {
        auto const wanted = dealt.bin(s, m * ranks + r);
        auto const& got   = plans[r].result;
        CHECK(got.first[batch + 1] - got.first[batch] == wanted.size());
        for (auto k = std::size_t{0}; k < wanted.size(); ++k) {
          auto const i = wanted[k];
          CHECK(got.ids[got.first[batch] + k] == g.samples[i].id);
          auto const place = got.first[batch] + batch + k;
          CHECK(got.rows[0][place + 1] - got.rows[0][place] ==
                static_cast<std::int32_t>(g.samples[i].length));
          CHECK(got.rows[1][place + 1] - got.rows[1][place] ==
                static_cast<std::int32_t>(g.counts[0][i]));
          for (auto a = std::size_t{0}; a < 3; ++a) {
            for (auto b = std::size_t{0}; b < bytes_of(g, a, i); ++b, ++at.at(a)) {
              CHECK(out[a][at.at(a)] == byte_name{a, g.samples[i].id, b});
            }
          }
        }
        CHECK(got.rows[0][got.first[batch] + batch] == 0);
        for (auto a = std::size_t{0}; a < 3; ++a) {
          CHECK(plans[r].first_row[a][batch + 1] * list[a].row_bytes == at.at(a));
        }
      }
    }
    CHECK(plans[r].result.batches() == batch);
  }
}

}  // namespace

TEST_CASE("presort plans of all ranks move every byte exactly once, to where the deal wants it") {
  for (auto seed = std::uint64_t{0}; seed < 300; ++seed) {
    CAPTURE(seed);
    auto random     = std::mt19937_64{seed};
    auto const g    = random_group(random, 1 + random() % 5);
    auto const m    = 1 + random() % 3;
    auto const rule = balance::deal_rules{
        .method =
            std::array{balance::dealing::none, balance::dealing::snake, balance::dealing::lpt_free}
                .at(random() % 3),
        .ranks = g.ranks() * m,
        .steps = 1 + random() % 4};
    check_plans(g, balance::deal(g.samples, rule), m);
  }
}

TEST_CASE("presort plans count bytes beyond 2^32") {
  // Rows of 16 KiB: two samples of 2^18 tokens are 4 GiB each.
  auto const list = std::vector<sample_array>{{.name = "features", .row_bytes = 16384}};
  auto const g =
      group_samples{.samples = {{1, 1U << 18U}, {2, 1U << 18U}, {3, 5}}, .first = {0, 3, 3}};
  auto const dealt =
      balance::deal(g.samples, {.method = balance::dealing::raster, .ranks = 2, .steps = 1});
  auto const sender   = presort_planner{g, dealt, list, 0}.plan();
  auto const receiver = presort_planner{g, dealt, list, 1}.plan();
  auto const four_gib = std::size_t{1} << 32U;
  CHECK(sender.send[1] == four_gib);
  CHECK(receiver.receive[0] == four_gib);
  CHECK(sender.outgoing[0].from == four_gib);
  CHECK(sender.kept[1].from == 2 * four_gib);
  CHECK(sender.kept[1].to == four_gib);
  CHECK(sender.moved == four_gib);
}

TEST_CASE("presort plans find a batch whose rows an int32 cannot count") {
  auto const list = std::vector<sample_array>{array_of<char>("text")};
  auto group      = group_samples{.samples = {{1, 1U << 31U}}, .first = {0, 0, 1}};
  auto const rule = balance::deal_rules{.method = balance::dealing::none, .ranks = 2, .steps = 1};
  auto const find = [&] {
    auto const dealt = balance::deal(group.samples, rule);
    return presort_planner{group, dealt, list, 1}.oversized_batch();
  };
  REQUIRE(find());
  CHECK(*find() == "rank 0 would have 2147483648 rows of 'tokens' in step 0 of the window");
  group.samples[0].length -= 1;
  CHECK_FALSE(find());
}

TEST_CASE("repeated_id names the sample and both ranks") {
  auto group = group_samples{.samples = {{5, 1}, {6, 1}, {7, 1}}, .first = {0, 1, 1, 3}};
  CHECK_FALSE(detail::repeated_id(group));
  group.samples[2].id = 5;
  CHECK(detail::repeated_id(group) == "sample 5 was submitted twice, by rank 0 and by rank 2");
}

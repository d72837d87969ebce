// SPDX-License-Identifier: Apache-2.0
#include <gradlane/adasum/tree.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <set>
#include <string>
#include <vector>

namespace {

using namespace gradlane;

constexpr auto nobody = tree_level::nobody;
using all_levels      = std::vector<std::vector<tree_level>>;  // by rank, level

[[nodiscard]] std::size_t at(int rank) { return static_cast<std::size_t>(rank); }

[[nodiscard]] all_levels levels_of(int ranks, std::size_t count, std::size_t granularity = 1) {
  auto const tree = rank_tree{ranks};
  auto result     = all_levels{};
  for (auto r = 0; r < ranks; ++r) { result.push_back(tree.levels(r, count, granularity)); }
  return result;
}

/// Which gradients, joined in which way, each rank holds of each element: "((0 1) 2)".
using contents = std::vector<std::vector<std::string>>;

/// Carries the levels out on expressions, forwards and backwards.
[[nodiscard]] contents carry_out(all_levels const& levels, std::size_t count) {
  auto held = contents{};
  for (auto r = std::size_t{0}; r < levels.size(); ++r) {
    held.emplace_back(count, std::to_string(r));
  }
  auto const depth = levels[0].size();
  for (auto k = std::size_t{0}; k < depth; ++k) {
    auto next = held;
    for (auto r = std::size_t{0}; r < levels.size(); ++r) {
      auto const& own = levels[r][k];
      if (own.partner == nobody) { continue; }
      for (auto i = own.keep.begin; i < own.keep.end; ++i) {
        auto const& other = held[at(own.partner)][i];
        next[r][i] =
            "(" + (own.holds_a ? held[r][i] + " " + other : other + " " + held[r][i]) + ")";
      }
      for (auto i = own.give.begin; i < own.give.end; ++i) { next[r][i] = "given away"; }
    }
    held = next;
  }
  for (auto k = depth; k-- > 0;) {
    auto next = held;
    for (auto r = std::size_t{0}; r < levels.size(); ++r) {
      auto const& own = levels[r][k];
      for (auto i = own.give.begin; i < own.give.end; ++i) {
        next[r][i] = held[at(own.partner)][i];
      }
    }
    held = next;
  }
  return held;
}

/// Neighbours first, surplus ranks before all: written down a second time, in its plainest form.
[[nodiscard]] std::string expected(int ranks) {
  auto power = 1;
  while (2 * power <= ranks) { power *= 2; }
  auto groups = std::vector<std::string>{};
  for (auto r = 0; r < ranks; ++r) {
    if (r < 2 * (ranks - power)) {
      groups.push_back("(" + std::to_string(r) + " " + std::to_string(r + 1) + ")");
      ++r;
    } else {
      groups.push_back(std::to_string(r));
    }
  }
  while (groups.size() > 1) {
    auto joined = std::vector<std::string>{};
    for (auto i = std::size_t{0}; i < groups.size(); i += 2) {
      joined.push_back("(" + groups[i] + " " + groups[i + 1] + ")");
    }
    groups = joined;
  }
  return groups[0];
}

}  // namespace

TEST_CASE("rank_tree joins neighbours first, and surplus ranks before all") {
  CHECK(carry_out(levels_of(1, 3), 3)[0][0] == "0");
  CHECK(carry_out(levels_of(2, 3), 3)[0][0] == "(0 1)");
  CHECK(carry_out(levels_of(3, 3), 3)[0][0] == "((0 1) 2)");
  CHECK(carry_out(levels_of(4, 3), 3)[0][0] == "((0 1) (2 3))");
  CHECK(carry_out(levels_of(5, 3), 3)[0][0] == "(((0 1) 2) (3 4))");
  CHECK(carry_out(levels_of(6, 3), 3)[0][0] == "(((0 1) (2 3)) (4 5))");
  CHECK(carry_out(levels_of(7, 3), 3)[0][0] == "(((0 1) (2 3)) ((4 5) 6))");
  CHECK(rank_tree{7}.surplus() == 3);
  CHECK(rank_tree{8}.surplus() == 0);
}

TEST_CASE("rank_tree brings the same tree to every element of every rank") {
  for (auto ranks = 1; ranks <= 33; ++ranks) {
    for (auto const count : {0U, 1U, 2U, 5U, 64U, 67U, 1000U}) {
      for (auto const granularity : {1U, 16U}) {
        CAPTURE(ranks);
        CAPTURE(count);
        auto const held = carry_out(levels_of(ranks, count, granularity), count);
        auto const tree = expected(ranks);
        for (auto const& own : held) {
          REQUIRE(std::all_of(own.begin(), own.end(), [&](auto const& x) { return x == tree; }));
        }
      }
    }
  }
}

TEST_CASE("rank_tree gives partners what they expect, in slices at multiples of the granularity") {
  for (auto ranks = 1; ranks <= 17; ++ranks) {
    auto const levels = levels_of(ranks, 1000, 16);
    for (auto r = 0; r < ranks; ++r) {
      REQUIRE(levels[at(r)].size() == levels[0].size());
      for (auto k = std::size_t{0}; k < levels[0].size(); ++k) {
        auto const& own = levels[at(r)][k];
        REQUIRE(own.sharers.size() == levels[0][k].sharers.size());
        if (own.partner == nobody) {
          CHECK(own.keep.count() == 0);
          CHECK(own.give.count() == 0);
          continue;
        }
        auto const& other = levels[at(own.partner)][k];
        CHECK(other.partner == r);
        CHECK(other.keep == own.give);
        CHECK(other.give == own.keep);
        CHECK(other.holds_a != own.holds_a);
        CHECK(own.holds_a == (r < own.partner));
        CHECK(own.keep.begin % 16 == 0);
        CHECK((own.keep.end % 16 == 0 || own.keep.end == 1000));
      }
    }
  }
}

TEST_CASE("rank_tree shares scalars among all holders of both vectors, and counts their leaves") {
  for (auto ranks = 1; ranks <= 33; ++ranks) {
    CAPTURE(ranks);
    auto const levels = levels_of(ranks, 64);
    auto leaves       = std::vector<int>(at(ranks), 1);
    for (auto k = std::size_t{0}; k < levels[0].size(); ++k) {
      auto known = std::vector<std::set<int>>{};
      for (auto r = 0; r < ranks; ++r) { known.push_back({r}); }
      for (auto s = std::size_t{0}; s < levels[0][k].sharers.size(); ++s) {
        auto next = known;
        for (auto r = 0; r < ranks; ++r) {
          auto const peer = levels[at(r)][k].sharers[s];
          if (peer == nobody) { continue; }
          CHECK(levels[at(peer)][k].sharers[s] == r);
          for (auto const x : known[at(peer)]) { CHECK(next[at(r)].insert(x).second); }
        }
        known = next;
      }
      auto next = leaves;
      for (auto r = 0; r < ranks; ++r) {
        auto const& own = levels[at(r)][k];
        if (own.partner == nobody) { continue; }
        CHECK(known[at(r)].size() == 2 * at(own.holders));
        CHECK(known[at(own.partner)] == known[at(r)]);
        CHECK(leaves[at(r)] == (own.holds_a ? own.a_leaves : own.b_leaves));
        next[at(r)] = own.a_leaves + own.b_leaves;
      }
      leaves = next;
    }
    CHECK(leaves[0] == ranks);
  }
}

TEST_CASE("rank_tree refuses what is no rank") {
  CHECK_THROWS_AS(rank_tree{0}, contract_error);
  CHECK_THROWS_AS(static_cast<void>(rank_tree{3}.levels(3, 1)), contract_error);
  CHECK_THROWS_AS(static_cast<void>(rank_tree{3}.levels(-1, 1)), contract_error);
  CHECK_THROWS_AS(static_cast<void>(rank_tree{3}.levels(0, 1, 0)), contract_error);
}

// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <bert/attention/philox.hpp>
#include <bert/cuda/row_groups.hpp>

#include <cstddef>  // for size_t
#include <cstdint>  // for int32_t, uint32_t
#include <vector>   // for vector

namespace {

using namespace bert;
using cuda::row_groups;

/// Adds up 1 for each row as the kernels would, and checks that no two blocks meet.
std::vector<int> add_ones(row_groups const& groups, std::size_t entries, std::size_t limit) {
  auto table  = std::vector<int>(entries);
  auto alone  = std::vector<int>(entries);
  auto slots  = std::vector<int>(groups.slots, -1);
  auto last   = std::vector<std::int32_t>(entries, -1);
  auto shared = std::vector<bool>(entries);
  for (auto const& chunk : groups.chunks) {
    auto const entry = static_cast<std::size_t>(chunk.entry);
    CHECK(chunk.count >= 1);
    CHECK(static_cast<std::size_t>(chunk.count) <= limit);
    for (auto i = chunk.first; i < chunk.first + chunk.count; ++i) {
      auto const row = groups.order[static_cast<std::size_t>(i)];
      CHECK(row > last[entry]);  // the order of rows, within a chunk and from chunk to chunk
      last[entry] = row;
    }
    if (chunk.slot < 0) {
      table[entry] += chunk.count;
      ++alone[entry];
    } else {
      CHECK(slots[static_cast<std::size_t>(chunk.slot)] == -1);
      slots[static_cast<std::size_t>(chunk.slot)] = chunk.count;
    }
  }
  for (auto const& sum : groups.sums) {
    auto const entry = static_cast<std::size_t>(sum.entry);
    CHECK(!shared[entry]);
    CHECK(sum.count > 1);
    shared[entry] = true;
    for (auto i = sum.first; i < sum.first + sum.count; ++i) {
      auto& slot = slots[static_cast<std::size_t>(i)];
      CHECK(slot > 0);
      table[entry] += slot;
      slot = 0;
    }
  }
  for (auto const slot : slots) { CHECK(slot == 0); }
  for (auto entry = std::size_t{0}; entry < entries; ++entry) {
    CHECK(alone[entry] + (shared[entry] ? 1 : 0) <= 1);
  }
  return table;
}

TEST_CASE("row_groups give each row to its entry once, in chunks that share nothing") {
  auto groups = row_groups{};  // reused, as from step to step
  for (auto seed = 0U; seed < 200; ++seed) {
    auto const draw    = [&](std::uint32_t i) { return philox<10>({i, 0, 0, 0}, seed, 1).x; };
    auto const rows    = draw(1000000) % 300;
    auto const entries = 1 + draw(1000001) % 20;
    auto const first   = draw(1000002) % 2;
    auto const limit   = 1 + draw(1000003) % 40;
    auto entry_of      = std::vector<std::int32_t>(rows);
    auto expected      = std::vector<int>(entries);
    for (auto i = 0U; i < rows; ++i) {
      entry_of[i] = static_cast<std::int32_t>(draw(i) % entries * (draw(i + 5000) % 3) / 2);
      if (entry_of[i] >= static_cast<std::int32_t>(first)) {
        ++expected[static_cast<std::size_t>(entry_of[i])];
      }
    }
    groups.assign(entry_of, entries, first, limit);
    CHECK(groups.slots <= 2 * rows / limit);
    CHECK(groups.chunks.size() <= rows);  // what fill_up relies on
    CHECK(groups.sums.size() <= rows / limit);
    CHECK(add_ones(groups, entries, limit) == expected);
  }
}

TEST_CASE("row_groups of no rows have no chunks") {
  auto groups = row_groups{};
  groups.assign({}, 0, 0, 32);
  CHECK(groups.chunks.empty());
  groups.assign({}, 0, 1, 32);  // no entry, not even the one left out
  CHECK(groups.chunks.empty());
  CHECK(groups.sums.empty());
}

}  // namespace

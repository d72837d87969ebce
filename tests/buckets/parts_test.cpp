// SPDX-License-Identifier: Apache-2.0
#include <gradlane/buckets/parts.hpp>

#include <doctest/doctest.h>

#include <support/model.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <random>
#include <vector>

namespace {

using namespace gradlane;

/// What each rank owns, in elements without gaps.
std::vector<std::size_t> owned(bucket_plan const& plan, bucket_parts const& parts, int ranks) {
  auto result = std::vector<std::size_t>(static_cast<std::size_t>(ranks));
  for (auto b = std::size_t{0}; b < plan.buckets().size(); ++b) {
    for (auto const p : plan.buckets()[b].parameters) {
      auto const& slot = *plan.slot(p);
      auto owners      = 0;
      for (auto r = 0; r < ranks; ++r) {
        auto const part = parts.part(b, r);
        if (slot.offset < part.begin || slot.offset >= part.end) { continue; }
        CHECK(slot.offset + slot.count <= part.end);  // as a whole
        result[static_cast<std::size_t>(r)] += slot.count;
        ++owners;
      }
      CHECK(owners == 1);
    }
  }
  return result;
}

/// What every division by parameters promises.
void check_invariants(bucket_plan const& plan, int ranks) {
  CAPTURE(plan.describe());
  CAPTURE(ranks);
  auto const parts = bucket_parts{plan, ranks, shard_by::parameters};
  auto largest     = std::size_t{0};
  for (auto b = std::size_t{0}; b < plan.buckets().size(); ++b) {
    auto const& layout = plan.buckets()[b];
    auto const counts  = parts.counts(b);
    CHECK(counts.size() == static_cast<std::size_t>(ranks));
    CHECK(std::accumulate(counts.begin(), counts.end(), std::size_t{0}) == layout.count);
    auto end = std::size_t{0};
    for (auto r = 0; r < ranks; ++r) {  // back to back, in rank order
      auto const part = parts.part(b, r);
      CHECK(part.begin == end);
      CHECK(part.count() == counts[static_cast<std::size_t>(r)]);
      end = part.end;
    }
    for (auto const p : layout.parameters) { largest = std::max(largest, plan.slot(p)->count); }
  }
  auto const loads = owned(plan, parts, ranks);
  auto const share = static_cast<double>(plan.payload()) / ranks;
  for (auto const load : loads) {
    CHECK(std::abs(static_cast<double>(load) - share) <= static_cast<double>(largest));
  }
}

}  // namespace

TEST_CASE("bucket_parts give a rank whole parameters, 1/W of all but for one of them") {
  auto random      = std::mt19937_64{7};
  auto const below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  for (auto trial = 0; trial < 2000; ++trial) {
    auto sizes       = std::vector<std::size_t>(1 + below(30));
    auto const scale = std::array<std::size_t, 3>{3, 100, 5000}.at(below(3));
    for (auto& size : sizes) { size = below(4) == 0 ? below(10 * scale) : below(scale); }
    auto const cap = 1 + below(20000);
    auto list      = test::parameters(sizes);
    if (below(2) == 0) {
      list.push_back({.name = "tied", .count = sizes[0], .tied_to = "p0"});
      list.push_back({.name = "frozen", .count = 1000, .trainable = false});
      list.push_back({.name = "bf16", .count = below(900), .type = dtype::bf16});
    }
    check_invariants(bucket_plan{list, {.cap_bytes = cap, .first_cap_bytes = 1 + below(cap)}},
                     1 + static_cast<int>(below(9)));
  }
}

TEST_CASE("bucket_parts spread equal parameters evenly, over buckets and within them") {
  for (auto const ranks : {2, 3, 4, 8}) {
    auto const count   = static_cast<std::size_t>(ranks);
    auto const one_all = bucket_plan{test::parameters(std::vector<std::size_t>(count, 64))};
    auto const parts   = bucket_parts{one_all, ranks, shard_by::parameters};
    for (auto const n : parts.counts(0)) { CHECK(n == 64); }
    auto const apart =
        bucket_plan{test::parameters(std::vector<std::size_t>(count, 64)), test::one_each};
    for (auto const n : owned(apart, bucket_parts{apart, ranks, shard_by::parameters}, ranks)) {
      CHECK(n == 64);
    }
  }
}

TEST_CASE("bucket_parts leave what is small to the ranks that do not own what is large") {
  auto const plan = bucket_plan{test::parameters({1000, 10, 10, 10, 10, 10, 10}),
                                {.cap_bytes = 100, .first_cap_bytes = 1}};
  auto loads      = owned(plan, bucket_parts{plan, 4, shard_by::parameters}, 4);
  std::sort(loads.begin(), loads.end());
  CHECK(loads == std::vector<std::size_t>{20, 20, 20, 1000});
}

TEST_CASE("bucket_parts by elements are equal, and refuse buckets that are not") {
  auto const plan  = bucket_plan{test::parameters({70, 30}), {.pad_to = 3}};
  auto const parts = bucket_parts{plan, 3, shard_by::elements};
  CHECK(parts.part(0, 1) == detail::equal_part(plan.buckets()[0].count, 1, 3));
  CHECK_THROWS_WITH_AS((bucket_parts{bucket_plan{test::parameters({4})}, 3, shard_by::elements}),
                       doctest::Contains("set bucket_options::pad_to"),
                       contract_error);
}

TEST_CASE("bucket_parts of no buckets, and of ranks without parameters, are legal") {
  check_invariants(bucket_plan{test::parameters({0})}, 3);
  check_invariants(bucket_plan{test::parameters({5})}, 9);
}

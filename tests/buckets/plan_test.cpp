// SPDX-License-Identifier: Apache-2.0
#include <gradlane/buckets/plan.hpp>

#include <doctest/doctest.h>

#include <support/model.hpp>

#include <array>
#include <cstddef>
#include <limits>
#include <random>
#include <string>
#include <vector>

namespace {

using namespace gradlane;
using indices = std::vector<std::size_t>;

void refuse(std::vector<parameter> parameters, char const* message, bucket_options options = {}) {
  CHECK_THROWS_WITH_AS(
      (bucket_plan{std::move(parameters), options}), doctest::Contains(message), contract_error);
}

/// What every plan promises, whatever went in.
void check_invariants(bucket_plan const& plan) {
  auto seen = indices(plan.parameters().size());
  for (auto b = std::size_t{0}; b < plan.buckets().size(); ++b) {
    auto const& bucket   = plan.buckets()[b];
    auto const width     = size_of(bucket.type);
    auto const alignment = plan.options().alignment_bytes / width;
    auto end             = std::size_t{0};
    auto payload         = std::size_t{0};
    auto marks           = std::size_t{0};
    CHECK_FALSE(bucket.parameters.empty());
    CHECK(bucket.count % plan.options().pad_to == 0);
    for (auto const owner : bucket.parameters) {
      auto const& slot = plan.slot(owner);
      REQUIRE(slot);
      CHECK(slot->bucket == b);
      CHECK(slot->offset % alignment == 0);
      CHECK(slot->offset >= end);
      CHECK(slot->offset < end + alignment);
      CHECK(plan.parameters()[owner].type == bucket.type);
      end = slot->offset + slot->count;
      payload += slot->count;
      ++seen[owner];
    }
    for (auto i = std::size_t{0}; i < seen.size(); ++i) {
      if (plan.slot(i) && plan.slot(i)->bucket == b) { marks += plan.parameters()[i].uses; }
    }
    CHECK(bucket.marks == marks);
    CHECK(bucket.payload == payload);
    CHECK(bucket.count >= end);
    auto const& o  = plan.options();
    auto const cap = std::max(o.cap_bytes, o.first_cap_bytes);
    CHECK((end * width <= cap || bucket.parameters.size() == 1));
  }
  for (auto i = std::size_t{0}; i < seen.size(); ++i) {
    auto const& p     = plan.parameters()[i];
    auto const wanted = p.trainable && p.count > 0;
    CHECK(plan.slot(i).has_value() == wanted);
    CHECK(seen[i] == (wanted && plan.owner(i) == i ? 1U : 0U));
  }
}

}  // namespace

TEST_CASE("bucket_plan fills buckets in backward order under the caps") {
  // fp32: 100 elements are 400 B; first cap 500, cap 1000, alignment 8.
  auto const plan = bucket_plan{test::parameters({100, 100, 100, 100}),
                                {.cap_bytes = 1000, .first_cap_bytes = 500, .alignment_bytes = 8}};
  REQUIRE(plan.buckets().size() == 3);
  CHECK(plan.buckets()[0].parameters == indices{3});
  CHECK(plan.buckets()[1].parameters == indices{2, 1});
  CHECK(plan.buckets()[2].parameters == indices{0});
  CHECK(plan.slot(1)->offset == 100);
  CHECK(plan.payload() == 400);
  check_invariants(plan);
}

TEST_CASE("bucket_plan gives a parameter larger than the cap a bucket of its own") {
  auto const plan =
      bucket_plan{test::parameters({1, 2560, 1}), {.cap_bytes = 1024, .first_cap_bytes = 1024}};
  REQUIRE(plan.buckets().size() == 3);
  CHECK(plan.buckets()[1].count * sizeof(float) == 10240);
  CHECK(plan.describe().find("bucket 1: 2560 x fp32, 10240 B, 'p1'") != std::string::npos);
  auto const first = bucket_plan{test::parameters({1, 2560})};
  CHECK(first.buckets()[0].parameters == indices{1, 0});
}

TEST_CASE("bucket_plan numbers buckets by the parameter that completes them") {
  auto parameters    = test::parameters({4, 4, 4});
  parameters[1].type = dtype::bf16;
  // Backward: p2 fp32, p1 bf16, p0 fp32: the bf16 bucket is complete before that of p2 and p0.
  auto const plan = bucket_plan{parameters};
  REQUIRE(plan.buckets().size() == 2);
  CHECK(plan.buckets()[0].parameters == indices{1});
  CHECK(plan.buckets()[1].parameters == indices{2, 0});
  check_invariants(plan);
}

TEST_CASE("bucket_plan gives 22 buckets of about the cap for BERT-large in fp16") {
  // 336,226,108 elements; DDP-like caps. The word embedding is larger than the cap and comes last.
  auto parameters = std::vector<parameter>{};
  auto const add  = [&](std::size_t count) {
    parameters.push_back(
        {.name = std::to_string(parameters.size()), .count = count, .type = dtype::fp16});
  };
  constexpr auto h = std::size_t{1024};
  for (auto const count : {30522 * h, 512 * h, 2 * h, h, h}) { add(count); }
  for (auto layer = 0; layer < 24; ++layer) {
    for (auto i = 0; i < 4; ++i) {
      add(h * h);
      add(h);
    }
    for (auto const count : {h, h, 4 * h * h, 4 * h, 4 * h * h, h, h, h}) { add(count); }
  }
  for (auto const count : {h * h, h, h * h, h, h, h, std::size_t{30522}, 2 * h, std::size_t{2}}) {
    add(count);
  }
  auto const plan = bucket_plan{parameters};
  CHECK(plan.payload() == 336226108);
  CHECK(plan.buckets().back().parameters == indices{0});
  for (auto const& bucket : plan.buckets().first(plan.buckets().size() - 1)) {
    CHECK(bucket.count * 2 <= (std::size_t{25} << 20U));
  }
  check_invariants(plan);
}

TEST_CASE("bucket_plan leaves frozen and empty parameters out, and may be empty") {
  auto parameters = test::parameters({8, 0, 24});
  parameters.push_back({.name = "frozen", .count = 7, .type = dtype::fp64, .trainable = false});
  auto const plan = bucket_plan{parameters};
  CHECK(plan.buckets().size() == 1);
  CHECK_FALSE(plan.slot(1));
  CHECK_FALSE(plan.slot(3));
  CHECK(plan.payload() == 32);
  CHECK(bucket_plan{test::parameters({0, 0})}.buckets().empty());
  CHECK(bucket_plan{{}}.buckets().empty());
}

TEST_CASE("bucket_plan shares the slot of tied parameters, complete at the first use in forward") {
  auto parameters = std::vector<parameter>{{.name = "word", .count = 6, .uses = 2},
                                           {.name = "middle", .count = 3},
                                           {.name = "decoder", .count = 6, .tied_to = "word"}};
  auto const plan = bucket_plan{parameters, {.cap_bytes = 1, .first_cap_bytes = 1}};
  REQUIRE(plan.buckets().size() == 2);
  CHECK(plan.buckets()[0].parameters == indices{1});
  CHECK(plan.buckets()[1].parameters == indices{0});
  CHECK(plan.buckets()[1].marks == 3);
  CHECK(plan.slot(2)->bucket == 1);
  CHECK(plan.owner(2) == 0);
  check_invariants(plan);
}

TEST_CASE("bucket_plan pads buckets to the multiple that sharding asks for") {
  auto const plan =
      bucket_plan{test::parameters({3}),
                  {.cap_bytes = 1, .first_cap_bytes = 1, .alignment_bytes = 8, .pad_to = 4}};
  CHECK(plan.buckets()[0].count == 4);
  CHECK(plan.buckets()[0].payload == 3);
}

TEST_CASE("bucket_plan refuses what cannot be planned, and says which parameter it is") {
  refuse({{.name = "a", .count = 1}, {.name = "a", .count = 2}},
         "parameter 1 'a' has the same name as parameter 0");
  refuse({{.name = "", .count = 1}}, "parameter 0 '' has no name");
  refuse({{.name = "n", .count = 1, .type = dtype::int32}}, "'n' is int32");
  refuse({{.name = "n", .count = 1, .type = dtype::uint8}}, "'n' is uint8");
  refuse({{.name = "n", .count = 1, .uses = 0}}, "'n' has uses 0");
  refuse({{.name = "n", .count = std::numeric_limits<std::size_t>::max() / 2}}, "overflow");
  refuse({{.name = "n", .count = 1, .tied_to = "m"}}, "'n' is tied to 'm', which does not exist");
  refuse({{.name = "m", .count = 2}, {.name = "n", .count = 1, .tied_to = "m"}}, "differs");
  refuse({{.name = "m", .count = 1, .trainable = false}, {.name = "n", .count = 1, .tied_to = "m"}},
         "differs");
  refuse({{.name = "l", .count = 1},
          {.name = "m", .count = 1, .tied_to = "l"},
          {.name = "n", .count = 1, .tied_to = "m"}},
         "tied itself");
  refuse({{.name = "n", .count = 1, .tied_to = "n"}}, "tied itself");
  auto const good = test::parameters({1});
  refuse(good, "cap_bytes", {.cap_bytes = 0});
  refuse(good, "cap_bytes", {.first_cap_bytes = 0});
  refuse(good, "alignment_bytes", {.alignment_bytes = 0});
  refuse(good, "alignment_bytes", {.alignment_bytes = 4});
  refuse(good, "alignment_bytes", {.alignment_bytes = 96});
  refuse(good, "alignment_bytes", {.alignment_bytes = std::size_t{1} << 63U});
  refuse(good, "pad_to", {.pad_to = 0});
  refuse(good, "pad_to", {.pad_to = std::numeric_limits<std::size_t>::max()});
  auto const plan = bucket_plan{good};
  CHECK_THROWS_AS(static_cast<void>(plan.slot(1)), contract_error);
  CHECK_THROWS_WITH_AS(
      static_cast<void>(plan.index_of("x")), doctest::Contains("'x'"), contract_error);
  CHECK(plan.index_of("p0") == 0);
}

TEST_CASE("bucket_plan hashes what ranks must agree on, and nothing else") {
  auto const base = test::parameters({4, 8});
  auto const hash = bucket_plan{base}.hash("policy");
  CHECK(bucket_plan{base}.hash("policy") == hash);
  CHECK(bucket_plan{base}.hash("other") != hash);
  auto const differs = [&](auto change) {
    auto changed = base;
    change(changed);
    CHECK(bucket_plan{changed}.hash("policy") != hash);
  };
  differs([](auto& p) { p[0].count = 5; });
  differs([](auto& p) { p[1].name = "q"; });
  differs([](auto& p) { p[1].type = dtype::bf16; });
  differs([](auto& p) { p[1].uses = 2; });
  differs([](auto& p) { p[0].trainable = false; });
  differs([](auto& p) { p.pop_back(); });
  differs([](auto& p) { std::swap(p[0], p[1]); });
  CHECK(bucket_plan{base, {.cap_bytes = 1024}}.hash("policy") != hash);
  // No name can pass for two parameters.
  auto const two = std::vector<parameter>{{.name = "a", .count = 1}, {.name = "b", .count = 1}};
  for (auto const* end : {"\xFF", "\n", ""}) {
    auto const one = std::string{"a' 1 x fp32, uses 1"} + end + "0:64" + end + "'b";
    CHECK(bucket_plan{{{.name = one, .count = 1}}}.hash() != bucket_plan{two}.hash());
  }
}

TEST_CASE("bucket_plan can be laid out in an order that was observed") {
  auto parameters = test::parameters({4, 5, 6});
  parameters.push_back({.name = "tied", .count = 4, .tied_to = "p0"});
  auto const plan    = bucket_plan{parameters, test::one_each};
  auto const learned = plan.reordered(indices{1, 0, 2});
  CHECK(learned.buckets()[0].parameters == indices{1});
  CHECK(learned.buckets()[1].parameters == indices{0});
  CHECK(learned.slot(3)->bucket == 1);
  CHECK(learned.hash() != plan.hash());
  CHECK(bucket_plan{parameters, test::one_each}.reordered(learned.completion_order()).hash() ==
        learned.hash());
  check_invariants(learned);
  for (auto const& bad : {indices{1, 0}, {1, 0, 0}, {1, 0, 3}, {1, 0, 9}, {0, 1, 2, 2}}) {
    CHECK_THROWS_AS(static_cast<void>(plan.reordered(bad)), contract_error);
  }
}

TEST_CASE("bucket_plan keeps its promises for random parameter lists") {
  auto random = std::mt19937_64{20240402};
  for (auto run = 0; run < 2000; ++run) {
    auto parameters   = std::vector<parameter>{};
    auto const count  = random() % 20;
    constexpr auto of = std::array{dtype::fp32, dtype::fp64, dtype::bf16, dtype::fp16};
    for (auto i = std::size_t{0}; i < count; ++i) {
      auto p      = parameter{.name = "p" + std::to_string(i), .count = random() % 300};
      p.type      = of.at(random() % 4);
      p.uses      = 1 + random() % 3;
      p.trainable = random() % 5 != 0;
      if (i > 0 && random() % 4 == 0) {
        auto const& other = parameters[random() % i];
        if (other.tied_to.empty()) {
          p.count     = other.count;
          p.type      = other.type;
          p.trainable = other.trainable;
          p.tied_to   = other.name;
        }
      }
      parameters.push_back(std::move(p));
    }
    auto const options = bucket_options{.cap_bytes       = 1 + random() % 3000,
                                        .first_cap_bytes = 1 + random() % 1000,
                                        .alignment_bytes = std::size_t{8} << (random() % 6),
                                        .pad_to          = 1 + random() % 5};
    check_invariants(bucket_plan{parameters, options});
  }
}

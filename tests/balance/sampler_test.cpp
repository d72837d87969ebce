// SPDX-License-Identifier: Apache-2.0
#include <gradlane/balance/sampler.hpp>
#include <gradlane/balance/strata.hpp>
#include <gradlane/error.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <random>
#include <string>
#include <utility>
#include <vector>

using namespace gradlane;
using balance::leftovers;
using balance::sample_order;
using balance::sampler;
using balance::sampler_state;
using balance::strata;

namespace {

using ids = std::vector<std::uint32_t>;

[[nodiscard]] ids some_lengths(std::size_t count) {
  auto random = std::mt19937{12};
  auto result = ids{};
  for (std::size_t i = 0; i < count; ++i) {
    result.push_back(static_cast<std::uint32_t>(1 + random() % 512));
  }
  return result;
}

[[nodiscard]] sample_order stratified(std::size_t count, std::uint64_t seed = 3) {
  return sample_order::stratified(some_lengths(count), strata::of_bert(), seed);
}

[[nodiscard]] ids copy(balance::global_batch const& batch) {
  return {batch.samples.begin(), batch.samples.end()};
}

/// What contract_error says, without its place; empty where nothing is thrown.
template <class Call>
[[nodiscard]] std::string refusal(Call const& call) {
  try {
    call();
  } catch (contract_error const& e) { return std::string{e.message()}; }
  return {};
}

}  // namespace

TEST_CASE("sampler gives J1's 101 samples to four ranks once an epoch, every epoch") {
  for (auto const& order :
       {sample_order::sequential(101), sample_order::random(101, 5), stratified(101)}) {
    for (auto const rest : {leftovers::ragged, leftovers::keep}) {
      auto ranks = std::vector<sampler>(4, sampler{order, 16, rest});
      auto seen  = std::vector<std::vector<int>>(8, std::vector<int>(101));
      for (auto step = 0; step < 40; ++step) {
        for (std::size_t r = 0; r < ranks.size(); ++r) {
          auto const batch = ranks[r].next();
          auto const begin = batch.samples.size() * r / 4;
          auto const end   = batch.samples.size() * (r + 1) / 4;
          for (auto i = begin; i < end; ++i) { ++seen[batch.epoch_of(i)][batch.samples[i]]; }
        }
      }
      for (auto epoch = 0; epoch < 5; ++epoch) {
        CHECK(seen[static_cast<std::size_t>(epoch)] == std::vector<int>(101, 1));
      }
    }
  }
}

TEST_CASE("sampler ends an epoch with a ragged batch, or keeps the rest for the next") {
  auto ragged = sampler{sample_order::random(10, 1), 4};
  CHECK(ragged.steps_per_epoch() == 3);
  auto sizes = std::vector<std::size_t>{};
  for (auto i = 0; i < 6; ++i) { sizes.push_back(ragged.next().samples.size()); }
  CHECK(sizes == std::vector<std::size_t>{4, 4, 2, 4, 4, 2});
  CHECK(ragged.state().epoch == 2);
  CHECK(ragged.state().cursor == 0);

  auto keep = sampler{sample_order::random(10, 1), 4, leftovers::keep};
  CHECK(keep.steps_per_epoch() == 2);
  for (auto i = 0; i < 2; ++i) { static_cast<void>(keep.next()); }
  auto const third = keep.next();
  CHECK(third.samples.size() == 4);
  CHECK(third.epoch_of(1) == 0);
  CHECK(third.epoch_of(2) == 1);
  CHECK(keep.state().epoch == 1);
  CHECK(keep.state().cursor == 2);
}

TEST_CASE("sampler may have batches larger than its epochs") {
  auto ragged = sampler{sample_order::random(3, 1), 16};
  CHECK(ragged.next().samples.size() == 3);
  auto keep        = sampler{sample_order::random(3, 1), 16, leftovers::keep};
  auto const batch = keep.next();
  CHECK(batch.samples.size() == 16);
  CHECK(batch.epoch_of(15) == 5);
  CHECK(keep.state().epoch == 5);
  CHECK(keep.state().cursor == 1);
  CHECK(keep.steps_per_epoch() == 0);
}

TEST_CASE("sampler goes on after J3's restore as if it had never stopped") {
  for (auto const rest : {leftovers::ragged, leftovers::keep}) {
    auto first = sampler{stratified(1000), 16, rest};
    while (first.state().epoch < 2 || first.state().cursor < 37 * 16) {
      static_cast<void>(first.next());
    }
    auto const saved = first.state();
    auto second      = sampler{stratified(1000), 16, rest};  // in a new process
    second.restore(saved);
    for (auto i = 0; i < 50; ++i) {
      auto const expected = copy(first.next());
      CHECK(copy(second.next()) == expected);
    }
    CHECK(first.state() == second.state());
  }
}

TEST_CASE("sampler refuses another batch size inside an epoch, and takes it at the beginning") {
  auto saved = sampler{stratified(64), 16};  // say 4 ranks of 4
  static_cast<void>(saved.next());
  auto other = sampler{stratified(64), 8};  // 2 ranks of 4
  CHECK(refusal([&] { other.restore(saved.state()); }) ==
        "sampler: the state was saved inside epoch 0 with batches of 16 samples over all ranks, "
        "not 8; keep their size, or change it at the beginning of an epoch");
  CHECK(other.state().cursor == 0);
  auto same = sampler{stratified(64), 16};  // 2 ranks of 8
  CHECK_NOTHROW(same.restore(saved.state()));
  for (auto i = 0; i < 3; ++i) { static_cast<void>(saved.next()); }
  CHECK_NOTHROW(other.restore(saved.state()));
  CHECK(other.state().epoch == 1);
  auto const eight = copy(other.next());
  auto const all   = copy(saved.next());
  CHECK(eight == ids{all.begin(), all.begin() + 8});
}

TEST_CASE("sampler refuses states that are not its own") {
  auto mine = sampler{stratified(64), 16};
  CHECK_FALSE(refusal([&] { mine.restore(sampler{stratified(64, 4), 16}.state()); }).empty());
  CHECK_FALSE(refusal([&] { mine.restore(sampler{stratified(65), 16}.state()); }).empty());
  auto state   = mine.state();
  state.cursor = 64;
  CHECK(refusal([&] { mine.restore(state); }) ==
        "sampler: the state stands at sample 64 of an epoch that has 64");
  CHECK_FALSE(refusal([] { sampler{sample_order::random(0, 1), 16}; }).empty());
  CHECK_FALSE(refusal([] { sampler{sample_order::random(5, 1), 0}; }).empty());
}

TEST_CASE("sampler is not disturbed by J4's other uses of random numbers") {
  auto alone    = sampler{stratified(300), 7};
  auto together = sampler{stratified(300), 7};
  auto engine   = std::mt19937{1};
  for (auto i = 0; i < 200; ++i) {
    std::srand(static_cast<unsigned>(engine()));
    auto const expected = copy(alone.next());
    static_cast<void>(std::rand());
    CHECK(copy(together.next()) == expected);
  }
}

// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <bert/data/entropy.hpp>
#include <bert/data/masking.hpp>
#include <bert/data/random.hpp>

#include <cmath>
#include <set>

namespace {

using namespace bert;
using numbers = std::vector<std::uint32_t>;

TEST_CASE("random_stream counts Philox up, and its parts do not overlap") {
  auto stream      = random_stream{3, draw::pairs, 5, 6};
  auto const key   = static_cast<std::uint32_t>(draw::pairs);
  auto const first = philox<10>({0, 0, 5, 6}, 3, key);
  auto const later = philox<10>({1, 0, 5, 6}, 3, key);
  CHECK(numbers{stream.next(), stream.next(), stream.next(), stream.next(), stream.next()} ==
        numbers{first.x, first.y, first.z, first.w, later.x});
  auto seen = std::set<std::uint32_t>{};
  for (auto const purpose : {draw::pairs, draw::masks, draw::held_out}) {
    for (auto a = std::uint32_t{0}; a < 3; ++a) {
      for (auto b = std::uint32_t{0}; b < 3; ++b) {
        for (auto seed = std::uint32_t{0}; seed < 3; ++seed) {
          CHECK(seen.insert(random_stream{seed, purpose, a, b}.next()).second);
        }
      }
    }
  }
}

TEST_CASE("random_stream draws every number below its limit equally often") {
  auto stream = random_stream{1, draw::pairs, 0, 0};
  auto counts = std::vector<int>(7);
  for (auto i = 0; i < 7000; ++i) { ++counts[stream.below(7)]; }
  for (auto const count : counts) { CHECK(std::abs(count - 1000) < 150); }  // 5 deviations
  for (auto i = 0; i < 10; ++i) { CHECK(stream.below(1) == 0); }
  // With a limit of 2/3 of 2^32, even numbers would come twice as often without rejection.
  auto even = 0;
  for (auto i = 0; i < 10000; ++i) { even += stream.below(0xAAAAAAAAU) % 2 == 0 ? 1 : 0; }
  CHECK(std::abs(even - 5000) < 250);
}

[[nodiscard]] masking_rule rule() {
  auto result         = masking_rule{};
  result.mask         = 4;
  result.replacements = {10, 11, 12, 13};
  return result;
}

TEST_CASE("mask_tokens predicts 15 % of a sequence, and one token at least") {
  for (auto const& [length, expected] : {std::pair{128, 19}, {20, 3}, {5, 1}, {4, 1}}) {
    auto tokens     = std::vector<std::int32_t>(static_cast<std::size_t>(length), 7);
    auto candidates = std::vector<std::int32_t>{};
    for (auto i = 1; i + 1 < length; ++i) { candidates.push_back(i); }
    auto const masked = mask_tokens(rule(), 1, 2, 3, candidates, tokens);
    CHECK(masked.predicted.size() == static_cast<std::size_t>(expected));
    CHECK(masked.labels == std::vector<std::int32_t>(masked.predicted.size(), 7));
    for (auto i = std::size_t{1}; i < masked.predicted.size(); ++i) {
      CHECK(masked.predicted[i - 1] < masked.predicted[i]);
    }
    CHECK(tokens.front() == 7);
    CHECK(tokens.back() == 7);
  }
  auto limited             = rule();
  limited.most_predictions = 2;
  auto tokens              = std::vector<std::int32_t>(100, 7);
  CHECK(mask_tokens(limited, 1, 2, 3, {5, 6, 7}, tokens).predicted.size() == 2);
  CHECK(mask_tokens(rule(), 1, 2, 3, {}, tokens).predicted.empty());
}

TEST_CASE("mask_tokens masks 80 %, replaces 10 % and keeps 10 % of what it chose") {
  auto masked   = 0;
  auto replaced = 0;
  auto kept     = 0;
  auto places   = std::vector<int>(100);
  for (auto sample = std::uint32_t{0}; sample < 1000; ++sample) {
    auto tokens     = std::vector<std::int32_t>(100, 7);
    auto candidates = std::vector<std::int32_t>{};
    for (auto i = 0; i < 100; ++i) { candidates.push_back(i); }
    for (auto const position : mask_tokens(rule(), 1, 0, sample, candidates, tokens).predicted) {
      auto const place = static_cast<std::size_t>(position);
      ++places[place];
      masked += tokens[place] == 4 ? 1 : 0;
      kept += tokens[place] == 7 ? 1 : 0;
      replaced += tokens[place] >= 10 ? 1 : 0;
    }
  }
  // 15000 draws: five standard deviations of a count are 245 at 0.8 and 184 at 0.1.
  CHECK(masked + kept + replaced == 15000);
  CHECK(std::abs(masked - 12000) < 245);
  CHECK(std::abs(replaced - 1500) < 184);
  CHECK(std::abs(kept - 1500) < 184);
  for (auto const count : places) { CHECK(std::abs(count - 150) < 57); }  // each place alike
}

TEST_CASE("mask_tokens depends on seed, epoch and sample, and on nothing else") {
  auto const run = [](std::uint32_t seed, std::uint32_t epoch, std::uint32_t sample) {
    auto tokens     = std::vector<std::int32_t>(100, 7);
    auto candidates = std::vector<std::int32_t>{};
    for (auto i = 0; i < 100; ++i) { candidates.push_back(i); }
    return mask_tokens(rule(), seed, epoch, sample, candidates, tokens).predicted;
  };
  auto const once = run(1, 2, 3);
  CHECK(run(1, 2, 3) == once);
  CHECK(run(2, 2, 3) != once);
  CHECK(run(1, 3, 3) != once);
  CHECK(run(1, 2, 4) != once);
}

TEST_CASE("unigram_entropy is ln(n) for n equal tokens, and 0 for one or none") {
  using counts = std::vector<std::uint64_t>;
  CHECK(unigram_entropy(counts{5, 5, 0, 5, 5}) == doctest::Approx(std::log(4.0)).epsilon(1e-14));
  CHECK(unigram_entropy(counts{1, 3}) ==
        doctest::Approx(0.25 * std::log(4.0) + 0.75 * std::log(4.0 / 3)).epsilon(1e-14));
  CHECK(unigram_entropy(counts{0, 1000}) == doctest::Approx(0).epsilon(1e-12));
  CHECK(unigram_entropy(counts{}) == 0);
}

}  // namespace

// SPDX-License-Identifier: Apache-2.0
// What a step trains on: each sample once an epoch, the same whatever the ranks, evenly dealt.
#include <gradlane/gradlane.hpp>

#include <doctest/doctest.h>

#include <bert/train/balanced_batches.hpp>
#include <bert/train/host_samples.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace {

using gradlane::balance::dealing;
using gradlane::local::communicator;
using namespace bert;
using dealt = host_samples<communicator>;

constexpr auto samples    = std::size_t{101};  // 8 steps
constexpr auto batch_size = std::size_t{13};   // deals unevenly to 2, 3 and 4 ranks

/// Sequences whose contents tell which sample, epoch and place they are.
class told_samples final : public sample_source {
 public:
  explicit told_samples(std::uint32_t damaged = ~0U) : damaged_{damaged} {}
  [[nodiscard]] std::size_t size() const override { return samples; }
  [[nodiscard]] std::size_t length(std::uint32_t sample) const override {
    return 5 + sample * 7 % 36;
  }
  void append(std::uint32_t sample, std::uint32_t epoch, batch& out) const override {
    if (sample == damaged_) { throw input_error{"this sample cannot be read"}; }
    auto ids       = std::vector<std::int32_t>{};
    auto segments  = std::vector<std::int32_t>{};
    auto positions = std::vector<std::int32_t>{};
    auto labels    = std::vector<std::int32_t>{};
    for (auto i = std::uint32_t{0}; i < length(sample); ++i) {
      ids.push_back(static_cast<std::int32_t>(70000 + sample * 100 + epoch * 20000 + i));
      segments.push_back(static_cast<std::int32_t>(i % 2));
      if ((i + sample + epoch) % 6 != 1) { continue; }
      positions.push_back(static_cast<std::int32_t>(i));
      labels.push_back(static_cast<std::int32_t>(sample + i));
    }
    out.append(sample, ids, segments, positions, labels, static_cast<std::int32_t>(sample % 2));
  }
  [[nodiscard]] std::vector<std::uint64_t> count_tokens() const override { return {}; }
  [[nodiscard]] std::uint64_t fingerprint() const override { return 1; }

 private:
  std::uint32_t damaged_;
};

struct layout {
  int ranks               = 1;
  std::size_t micro_steps = 1;
  dealing deal            = dealing::lpt;
  std::size_t window      = 3;
};

[[nodiscard]] training_settings settings(layout const& wanted) {
  auto result        = training_settings{};
  result.batch_size  = batch_size;
  result.micro_steps = wanted.micro_steps;
  result.deal        = wanted.deal;
  result.window      = wanted.window;
  return result;
}

/// Samples by step, in the order of their numbers; and of each rank its tokens.
struct history {
  std::vector<std::vector<std::uint32_t>> steps;
  std::vector<std::map<int, std::size_t>> tokens;  // by step: of each rank
};

/// Whether a batch is what the source gives for its samples.
[[nodiscard]] bool is_right(batch const& found, sample_source const& data, std::uint32_t epoch) {
  auto const expected = make_batch(data, found.samples, epoch);
  return found.tokens == expected.tokens && found.segments == expected.segments &&
         found.starts == expected.starts && found.predicted == expected.predicted &&
         found.labels == expected.labels && found.next == expected.next;
}

/// Steps [from, to) of a run, by one that is at `at` where that is not the beginning.
[[nodiscard]] history run(layout const& wanted,
                          std::size_t from,
                          std::size_t to,
                          data_place const& at = {}) {
  auto result     = history{};
  auto mutex      = std::mutex{};
  auto const data = told_samples{};
  result.steps.resize(to - from);
  result.tokens.resize(to - from);
  auto const config = settings(wanted);
  gradlane::local::run(wanted.ranks, [&](communicator& comm, gradlane::host::device& lane) {
    auto batches = balanced_batches<dealt>{config, data, lane, {lane, comm.split(0, comm.rank())}};
    if (from > 0) { batches.restore(at); }
    auto times = step_times{};
    for (auto step = from; step < to; ++step) {
      auto const epoch = static_cast<std::uint32_t>(step / 8);
      auto const work  = batches.next(to - step, times);
      CHECK(work.size() == wanted.micro_steps);
      auto const lock = std::scoped_lock{mutex};
      for (auto const& b : work) {
        CHECK(is_right(b, data, epoch));
        auto& all = result.steps[step - from];
        all.insert(all.end(), b.samples.begin(), b.samples.end());
        result.tokens[step - from][comm.rank()] += b.token_count();
      }
    }
  });
  for (auto& step : result.steps) { std::sort(step.begin(), step.end()); }
  return result;
}

/// Where a run stands after so many steps.
[[nodiscard]] data_place place_after(layout const& wanted, std::size_t steps) {
  auto result       = data_place{};
  auto const data   = told_samples{};
  auto const config = settings(wanted);
  gradlane::local::run(wanted.ranks, [&](communicator& comm, gradlane::host::device& lane) {
    auto batches = balanced_batches<dealt>{config, data, lane, {lane, comm.split(0, comm.rank())}};
    auto times   = step_times{};
    for (auto step = std::size_t{0}; step < steps; ++step) {
      static_cast<void>(batches.next(steps - step, times));
    }
    if (comm.rank() == 0) { result = batches.place(); }
  });
  return result;
}

[[nodiscard]] std::vector<std::uint32_t> sorted(std::vector<std::vector<std::uint32_t>> const& x,
                                                std::size_t begin,
                                                std::size_t end) {
  auto all = std::vector<std::uint32_t>{};
  for (auto i = begin; i < end; ++i) { all.insert(all.end(), x[i].begin(), x[i].end()); }
  std::sort(all.begin(), all.end());
  return all;
}

constexpr auto methods = {
    dealing::none, dealing::raster, dealing::snake, dealing::lpt, dealing::lpt_free};

}  // namespace

TEST_CASE("balanced_batches trains on the same samples in a step on any ranks and micro-steps") {
  for (auto const deal : methods) {
    for (auto const window : {std::size_t{1}, std::size_t{2}, std::size_t{3}, std::size_t{8}}) {
      CAPTURE(name_of(deal));
      CAPTURE(window);
      auto const expected = run({.deal = deal, .window = window}, 0, 17).steps;
      for (auto const ranks : {2, 3, 4}) {
        for (auto const micro_steps : {std::size_t{1}, std::size_t{3}}) {
          if (ranks == 4 && micro_steps == 3) { continue; }
          CHECK(run({ranks, micro_steps, deal, window}, 0, 17).steps == expected);
        }
      }
    }
  }
}

TEST_CASE("balanced_batches gives each sample once an epoch, and other steps in the next") {
  auto everyone = std::vector<std::uint32_t>{};
  for (auto i = std::uint32_t{0}; i < samples; ++i) { everyone.push_back(i); }
  for (auto const deal : methods) {
    for (auto const window : {std::size_t{1}, std::size_t{3}, std::size_t{8}}) {
      auto const found = run({.ranks = 3, .deal = deal, .window = window}, 0, 16).steps;
      CHECK(sorted(found, 0, 8) == everyone);
      CHECK(sorted(found, 8, 16) == everyone);
      for (auto step = std::size_t{0}; step < 8; ++step) { CHECK(found[step] != found[step + 8]); }
    }
  }
}

TEST_CASE("balanced_batches evens the work of ranks out") {
  auto const worst = [](layout const& wanted) {
    auto result = 0.0;
    for (auto const& step : run(wanted, 0, 7).tokens) {  // all but the rest of the epoch
      auto sum  = std::size_t{0};
      auto most = std::size_t{0};
      for (auto const& [rank, tokens] : step) {
        sum += tokens;
        most = std::max(most, tokens);
      }
      result =
          std::max(result, static_cast<double>(most) * wanted.ranks / static_cast<double>(sum));
    }
    return result;
  };
  auto const none = worst({.ranks = 4, .deal = dealing::none, .window = 1});
  auto const lpt  = worst({.ranks = 4, .deal = dealing::lpt_free, .window = 4});
  MESSAGE("max/mean tokens: none " << none << ", lpt_free " << lpt);
  CHECK(lpt < 1.1);
  CHECK(none > 1.15);
}

TEST_CASE("balanced_batches goes on from any place, also on other ranks") {
  for (auto const& [deal, window] : {std::pair{dealing::lpt, std::size_t{3}},
                                     std::pair{dealing::none, std::size_t{1}},
                                     std::pair{dealing::snake, std::size_t{8}}}) {
    auto const one   = layout{.deal = deal, .window = window};
    auto const whole = run(one, 0, 20).steps;
    for (auto done = std::size_t{1}; done < 19; ++done) {
      CAPTURE(done);
      auto const at = place_after({.ranks = 2, .deal = deal, .window = window}, done);
      CHECK(at == place_after(one, done));
      auto const rest = run({.ranks = 3, .deal = deal, .window = window}, done, 20, at).steps;
      CHECK(rest == std::vector(whole.begin() + static_cast<std::ptrdiff_t>(done), whole.end()));
    }
  }
}

TEST_CASE("balanced_batches stands at the window that comes next once all its steps are done") {
  auto const one = layout{.window = 3};
  CHECK(place_after(one, 2).steps_done == 2);
  CHECK(place_after(one, 2).window.cursor == 0);
  CHECK(place_after(one, 3).steps_done == 0);
  CHECK(place_after(one, 3).window.cursor == 3 * batch_size);
  CHECK(place_after(one, 8).window.epoch == 1);  // the rest of the epoch is a window of 2 steps
  CHECK(place_after(one, 8).window.cursor == 0);
}

TEST_CASE("balanced_batches tells of a sample that cannot be read, on the rank that reads it") {
  auto const data   = told_samples{7};
  auto const config = settings({.ranks = 2, .window = 8});
  CHECK_THROWS_WITH_AS(
      gradlane::local::run(2,
                           [&](communicator& comm, gradlane::host::device& lane) {
                             auto batches = balanced_batches<dealt>{
                                 config, data, lane, {lane, comm.split(0, comm.rank())}};
                             auto times = step_times{};
                             for (auto left = std::uint64_t{8}; left > 0; --left) {
                               static_cast<void>(batches.next(left, times));
                             }
                           }),
      doctest::Contains("this sample cannot be read"),
      input_error);
}

TEST_CASE("balanced_batches refuses what it cannot deal") {
  auto const data   = told_samples{};
  auto const refuse = [&](auto change, char const* text) {
    gradlane::local::run(1, [&](communicator& comm, gradlane::host::device& lane) {
      auto config = settings({});
      change(config);
      CHECK_THROWS_WITH_AS((balanced_batches<dealt>{config, data, lane, {lane, comm.split(0, 0)}}),
                           doctest::Contains(text),
                           input_error);
    });
  };
  refuse([](auto& s) { s.batch_size = 0; }, "the batch size must be positive");
  refuse([](auto& s) { s.window = 0; }, "the window must have a step at least");
  CHECK_NOTHROW(expect_dealable(8, 4, 2));
  CHECK_THROWS_WITH_AS(expect_dealable(7, 4, 2),
                       doctest::Contains("a batch of 7 sequences cannot be dealt to 4 ranks in 2 "
                                         "micro-batches: it needs 8"),
                       input_error);
}

// SPDX-License-Identifier: Apache-2.0
// The trainer on ranks that are threads: the same losses on any layout, and learning at all.
#include "rule_samples.hpp"  // for rule_samples

#include <gradlane/gradlane.hpp>

#include <doctest/doctest.h>

#include <bert/checkpoint.hpp>
#include <bert/train/cpu_place.hpp>
#include <bert/train/gpu_of.hpp>
#include <bert/train/trainer.hpp>
#include <omp.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

namespace {

using bert::clip_mode;
using bert::test::rule_samples;
using gradlane::local::communicator;

template <class Value>
using place = bert::cpu_place<Value, communicator>;

[[nodiscard]] bert::model_config tiny() {
  auto config                    = bert::model_config{};
  config.vocab_size              = 97;
  config.hidden_size             = 32;
  config.num_hidden_layers       = 2;
  config.num_attention_heads     = 2;
  config.intermediate_size       = 64;
  config.max_position_embeddings = 40;
  return config;
}

[[nodiscard]] bert::training_settings settings(clip_mode clip, std::size_t micro_steps) {
  auto result         = bert::training_settings{};
  result.model        = tiny();
  result.batch_size   = 13;  // deals unevenly to 2, 3 and 4 ranks
  result.micro_steps  = micro_steps;
  result.clip         = clip;
  result.clip_norm    = 0.5;
  result.bucket_bytes = 8192;
  result.rate         = {.peak = 2e-3, .warm_up = 5, .steps = 100};
  return result;
}

/// The masked-LM losses of `steps` steps on `ranks` ranks.
template <class Value>
std::vector<double> losses_of(bert::training_settings const& wanted,
                              int ranks,
                              std::size_t steps,
                              std::size_t samples = 57) {
  auto result = std::vector<double>{};
  gradlane::local::run(ranks, [&](communicator& comm, gradlane::host::device& lane) {
    omp_set_num_threads(1);
    auto const data = rule_samples{samples};
    auto train      = bert::trainer<place<Value>>{wanted, {lane, comm}, data};
    for (auto step = std::size_t{0}; step < steps; ++step) {
      auto const numbers = train.step();
      CHECK_FALSE(numbers.skipped);
      if (comm.rank() == 0) { result.push_back(numbers.losses.masked_lm); }
    }
  });
  return result;
}

}  // namespace

TEST_CASE(
    "rank_totals waits for another rank no longer than its patience, and fails from then on") {
  auto told = std::atomic<bool>{false};
  gradlane::local::run(2, [&](communicator& comm, gradlane::host::device& lane) {
    auto totals =
        bert::rank_totals{lane, comm.split(0, comm.rank()), std::chrono::milliseconds{50}};
    auto values = std::array{1.0 + comm.rank(), 5.0};
    totals.sync_sum(values);
    CHECK(values == std::array{3.0, 10.0});
    if (comm.rank() == 1) {  // stuck
      while (!told) { std::this_thread::yield(); }
      return;
    }
    CHECK_THROWS_AS(totals.sync_max(values), gradlane::timeout_error);
    CHECK(values == std::array{3.0, 10.0});
    CHECK_THROWS_AS(totals.sync_meet(), gradlane::error);
    auto many = std::vector<double>(9);
    CHECK_THROWS_AS(totals.sync_sum(many), gradlane::contract_error);
    told = true;
  });
}

TEST_CASE("trainer gives the same losses on any number of ranks and micro-steps, dropout on") {
  for (auto const clip : {clip_mode::none, clip_mode::after}) {
    auto const expected = losses_of<float>(settings(clip, 1), 1, 30);
    for (auto const ranks : {1, 2, 3, 4}) {
      for (auto const micro_steps : {std::size_t{1}, std::size_t{3}}) {
        if (ranks == 4 && micro_steps == 3) { continue; }  // 12 shares: covered by 3 x 3
        CAPTURE(ranks);
        CAPTURE(micro_steps);
        auto const found = losses_of<float>(settings(clip, micro_steps), ranks, 30);
        for (auto step = std::size_t{0}; step < expected.size(); ++step) {
          CAPTURE(step);
          CHECK(std::abs(found[step] - expected[step]) <= 1e-5 * expected[step]);
        }
      }
    }
  }
}

TEST_CASE("trainer gives the same losses on any number of ranks however samples are dealt") {
  using gradlane::balance::dealing;
  for (auto const deal : {dealing::none, dealing::snake, dealing::lpt, dealing::lpt_free}) {
    for (auto const window : {std::size_t{1}, std::size_t{4}}) {
      auto wanted         = settings(clip_mode::after, 1);
      wanted.deal         = deal;
      wanted.window       = window;
      auto const expected = losses_of<float>(wanted, 1, 14, 157);  // 13 steps are an epoch
      for (auto const ranks : {2, 4}) {
        CAPTURE(name_of(deal));
        CAPTURE(window);
        CAPTURE(ranks);
        wanted.micro_steps = ranks == 2 ? 2 : 1;
        auto const found   = losses_of<float>(wanted, ranks, 14, 157);
        for (auto step = std::size_t{0}; step < expected.size(); ++step) {
          CAPTURE(step);
          CHECK(std::abs(found[step] - expected[step]) <= 1e-5 * expected[step]);
        }
      }
    }
  }
}

TEST_CASE("trainer clips bucketwise with one bucket and one rank as plain clipping does") {
  auto one              = settings(clip_mode::bucketwise, 1);
  one.bucket_bytes      = std::size_t{1} << 30U;
  auto const bucketwise = losses_of<float>(one, 1, 20);
  one.clip              = clip_mode::before;
  CHECK(losses_of<float>(one, 1, 20) == bucketwise);
  one.clip         = clip_mode::after;
  auto const after = losses_of<float>(one, 1, 20);
  for (auto step = std::size_t{0}; step < after.size(); ++step) {
    CHECK(std::abs(after[step] - bucketwise[step]) <= 1e-5 * after[step]);
  }
}

TEST_CASE("trainer repeats a run bit for bit") {
  for (auto const ranks : {1, 2}) {
    auto const wanted = settings(clip_mode::bucketwise, 2);
    CHECK(losses_of<float>(wanted, ranks, 10) == losses_of<float>(wanted, ranks, 10));
  }
}

TEST_CASE("trainer goes on from a checkpoint at step 37 as if it had never stopped, bit for bit") {
  using trainer     = bert::trainer<place<float>>;
  auto const wanted = settings(clip_mode::bucketwise, 1);
  auto const folder =
      std::filesystem::temp_directory_path() / ("gradlane_resume_" + std::to_string(getpid()));
  auto const samples  = std::size_t{101};  // step 37 lies inside of an epoch, and of a window
  auto const whole    = losses_of<float>(wanted, 2, 50, samples);
  auto const describe = [&](trainer& t, rule_samples const& data) {
    return bert::trainer_state{.step       = t.next_step(),
                               .place      = t.place(),
                               .seed       = wanted.seed,
                               .batch_size = wanted.batch_size,
                               .deal       = wanted.deal,
                               .window     = wanted.window,
                               .data       = data.fingerprint(),
                               .model      = wanted.model,
                               .update     = wanted.update};
  };
  gradlane::local::run(2, [&](communicator& comm, gradlane::host::device& lane) {
    omp_set_num_threads(1);
    auto const data = rule_samples{samples};
    auto train      = trainer{wanted, {lane, comm}, data};
    for (auto step = 0; step < 37; ++step) { train.step(); }
    auto const model = train.sync_state();
    if (comm.rank() == 0) {
      bert::checkpoint_store{folder}.save(describe(train, data), train.list(), model);
    }
  });
  auto resumed = std::vector<double>{};
  gradlane::local::run(2, [&](communicator& comm, gradlane::host::device& lane) {
    omp_set_num_threads(1);
    auto const data   = rule_samples{samples};
    auto train        = trainer{wanted, {lane, comm}, data};
    auto const newest = bert::checkpoint_store{folder}.newest();
    REQUIRE(newest);
    auto const found = bert::load_checkpoint(*newest, describe(train, data), train.list());
    auto const& at   = found.state;
    train.resume(at.step, at.place, found.model());
    CHECK(train.next_step() == 37);
    CHECK(train.place() == at.place);
    CHECK(at.place.steps_done == 2);
    for (auto step = 37; step < 50; ++step) {
      auto const loss = train.step().losses.masked_lm;
      if (comm.rank() == 0) { resumed.push_back(loss); }
    }
  });
  CHECK(resumed == std::vector<double>(whole.begin() + 37, whole.end()));
  std::filesystem::remove_all(folder);
}

TEST_CASE("trainer refuses a batch that cannot be dealt") {
  gradlane::local::run(2, [&](communicator& comm, gradlane::host::device& lane) {
    auto const data = rule_samples{57};
    auto wanted     = settings(clip_mode::none, 7);
    using trainer   = bert::trainer<place<float>>;
    CHECK_THROWS_WITH_AS((trainer{wanted, {lane, comm}, data}),
                         doctest::Contains("batch of 13 sequences cannot be dealt to 2 ranks"),
                         bert::input_error);
  });
}

TEST_CASE("gpu_of gives each rank of a node a GPU of its own, or says what is missing") {
  CHECK(bert::gpu_of(0, 2, 8) == 0);
  CHECK(bert::gpu_of(7, 8, 8) == 7);
  CHECK_THROWS_WITH_AS(static_cast<void>(bert::gpu_of(1, 3, 2)),
                       doctest::Contains("3 ranks and only 2 GPUs: start one rank a GPU"),
                       bert::input_error);
  CHECK_THROWS_WITH_AS(static_cast<void>(bert::gpu_of(0, 1, 0)),
                       doctest::Contains("no GPU here"),
                       bert::input_error);
}

TEST_CASE("trainer overfits 64 sequences") {
  auto wanted                    = settings(clip_mode::bucketwise, 1);
  wanted.model.dropout           = 0;
  wanted.batch_size              = 64;
  wanted.clip_norm               = 1.0;
  wanted.rate                    = {.peak = 8e-3, .warm_up = 20, .steps = 600};
  wanted.model.hidden_size       = 64;
  wanted.model.intermediate_size = 128;
  gradlane::local::run(2, [&](communicator& comm, gradlane::host::device& lane) {
    omp_set_num_threads(1);
    auto const data = rule_samples{64};
    auto train      = bert::trainer<place<float>>{wanted, {lane, comm}, data};
    for (auto step = 0; step < 600; ++step) { train.step(); }
    auto const numbers = train.evaluate(data, 64);
    CHECK(numbers.masked_lm_accuracy > 0.95);
  });
}

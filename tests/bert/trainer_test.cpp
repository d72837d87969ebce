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
using bert::reduce_mode;
using bert::test::rule_samples;
using gradlane::local::communicator;

template <class Value>
using place = bert::cpu_place<Value, communicator>;

constexpr auto all_modes = std::array{
    reduce_mode::average, reduce_mode::adasum, reduce_mode::adasum_delta, reduce_mode::sharded};

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

TEST_CASE("trainer repeats a run bit for bit, whatever joins the ranks") {
  for (auto const reduce : all_modes) {
    for (auto const ranks : {1, 2}) {
      CAPTURE(ranks);
      auto wanted   = settings(clip_mode::bucketwise, 2);
      wanted.reduce = reduce;
      CHECK(losses_of<float>(wanted, ranks, 10) == losses_of<float>(wanted, ranks, 10));
    }
  }
}

TEST_CASE("trainer with Adasum on one rank is what it is with an average") {
  for (auto const clip : {clip_mode::none, clip_mode::after, clip_mode::bucketwise}) {
    auto wanted        = settings(clip, 3);
    auto const average = losses_of<float>(wanted, 1, 10);
    wanted.reduce      = reduce_mode::adasum;
    CHECK(losses_of<float>(wanted, 1, 10) == average);
  }
}

TEST_CASE("trainer that joins one rank's own steps gives the losses of one that makes them") {
  for (auto const clip : {clip_mode::none, clip_mode::before, clip_mode::bucketwise}) {
    for (auto const& update : {bert::optimizer_settings{}, bert::lamb_settings()}) {
      auto wanted        = settings(clip, 2);
      wanted.update      = update;
      auto const average = losses_of<float>(wanted, 1, 20);
      wanted.reduce      = reduce_mode::adasum_delta;
      auto const found   = losses_of<float>(wanted, 1, 20);
      for (auto step = std::size_t{0}; step < average.size(); ++step) {
        CAPTURE(step);
        CHECK(std::abs(found[step] - average[step]) <= 1e-5 * average[step]);
      }
    }
  }
}

TEST_CASE("trainer with Adasum learns, and tells how orthogonal the ranks are") {
  for (auto const& [reduce, ranks] : {std::pair{reduce_mode::adasum, 2},
                                      std::pair{reduce_mode::adasum, 3},
                                      std::pair{reduce_mode::adasum_delta, 2},
                                      std::pair{reduce_mode::adasum_delta, 3}}) {
    CAPTURE(ranks);
    auto wanted          = settings(clip_mode::bucketwise, 1);
    wanted.reduce        = reduce;
    wanted.batch_size    = 16;
    wanted.rate          = {.peak = 8e-3, .warm_up = 20, .steps = 400};
    wanted.model.dropout = 0;
    gradlane::local::run(ranks, [&, w = ranks](communicator& comm, gradlane::host::device& lane) {
      omp_set_num_threads(1);
      auto const data = rule_samples{57};
      auto train      = bert::trainer<place<float>>{wanted, {lane, comm}, data};
      CHECK(train.describe().find("adasum") != std::string::npos);
      auto const first = train.step();
      for (auto step = 1; step < 399; ++step) {
        auto const numbers = train.step();
        REQUIRE(numbers.orthogonality);
        CHECK(*numbers.orthogonality > 0.9 / w);
        CHECK(*numbers.orthogonality < 1.2);
      }
      CHECK(train.step().losses.masked_lm < 0.95 * first.losses.masked_lm);
    });
  }
}

TEST_CASE(
    "trainer with a sharded step gives the losses of the whole one, with a part of its state") {
  for (auto const clip :
       {clip_mode::none, clip_mode::after, clip_mode::before, clip_mode::bucketwise}) {
    for (auto const ranks : {1, 2, 3, 4}) {
      CAPTURE(ranks);
      auto wanted      = settings(clip, ranks == 2 ? 2 : 1);
      auto const whole = losses_of<float>(wanted, ranks, 30);
      wanted.reduce    = reduce_mode::sharded;
      auto const found = losses_of<float>(wanted, ranks, 30);
      for (auto step = std::size_t{0}; step < whole.size(); ++step) {
        CAPTURE(step);
        CHECK(std::abs(found[step] - whole[step]) <= 1e-6 * whole[step]);
      }
    }
  }
  for (auto const ranks : {1, 2, 3, 4}) {  // by whole tensors
    CAPTURE(ranks);
    auto wanted      = settings(clip_mode::bucketwise, 1);
    wanted.update    = bert::lamb_settings();
    auto const whole = losses_of<float>(wanted, ranks, 30);
    wanted.reduce    = reduce_mode::sharded;
    auto const found = losses_of<float>(wanted, ranks, 30);
    for (auto step = std::size_t{0}; step < whole.size(); ++step) {
      CAPTURE(step);
      CHECK(std::abs(found[step] - whole[step]) <= 1e-6 * whole[step]);
    }
  }
}

TEST_CASE("trainer with a sharded step has 1 / ranks of the moments, or one tensor more or less") {
  for (auto const lamb : {false, true}) {
    for (auto const ranks : {1, 2, 3, 4}) {
      CAPTURE(ranks);
      auto bytes = std::atomic<std::size_t>{0};
      gradlane::local::run(ranks, [&](communicator& comm, gradlane::host::device& lane) {
        auto const data = rule_samples{57};
        auto wanted     = settings(clip_mode::none, 1);
        wanted.reduce   = reduce_mode::sharded;
        if (lamb) { wanted.update = bert::lamb_settings(); }
        auto const train        = bert::trainer<place<float>>{wanted, {lane, comm}, data};
        auto const all          = 2 * sizeof(float) * train.list().total();
        auto const one          = 2 * sizeof(float) * train.list()[bert::parameter_list::word].size;
        auto const wanted_bytes = all / static_cast<std::size_t>(ranks);
        CHECK(train.state_bytes() <= wanted_bytes + one);
        CHECK(train.state_bytes() + one >= wanted_bytes);
        bytes += train.state_bytes();
      });
      CHECK(bytes == 2 * sizeof(float) * bert::parameter_list{tiny()}.total());
    }
  }
}

namespace {

/// Runs of one mode that may stop and go on, with a checkpoint in between.
class resumable {
 public:
  explicit resumable(reduce_mode reduce) { wanted_.reduce = reduce; }
  ~resumable() { std::filesystem::remove_all(folder_); }
  resumable(resumable const&)            = delete;
  resumable& operator=(resumable const&) = delete;

  [[nodiscard]] std::vector<double> whole(std::size_t steps) const {
    return losses_of<float>(wanted_, 2, steps, samples);
  }

  /// Trains for so many steps, then saves.
  void save_at(int ranks, int steps) const {
    gradlane::local::run(ranks, [&](communicator& comm, gradlane::host::device& lane) {
      omp_set_num_threads(1);
      auto const data = rule_samples{samples};
      auto train      = trainer{wanted_, {lane, comm}, data};
      for (auto step = 0; step < steps; ++step) { train.step(); }
      auto const model = train.sync_state();
      auto const apart = train.ranks_with_moments();
      auto const rank  = static_cast<std::size_t>(comm.rank());
      if (rank == 0) {
        bert::checkpoint_store{folder_}.save(
            state_of(train, data), train.list(), model, {}, {apart, [&](std::size_t other) {
                                                               return train.sync_moments_of(other);
                                                             }});
      } else if (apart > 1) {
        static_cast<void>(train.sync_moments_of(rank));
      }
    });
  }

  /// The losses from the newest checkpoint on.
  [[nodiscard]] std::vector<double> go_on(reduce_mode reduce, int ranks, int steps) const {
    auto result = std::vector<double>{};
    gradlane::local::run(ranks, [&](communicator& comm, gradlane::host::device& lane) {
      omp_set_num_threads(1);
      auto const data   = rule_samples{samples};
      auto wanted       = wanted_;
      wanted.reduce     = reduce;
      auto train        = trainer{wanted, {lane, comm}, data};
      auto const newest = bert::checkpoint_store{folder_}.newest();
      REQUIRE(newest);
      auto const found = bert::load_checkpoint(*newest,
                                               state_of(train, data),
                                               train.list(),
                                               static_cast<std::size_t>(comm.rank()),
                                               train.ranks_with_moments());
      auto const& at   = found.state;
      train.resume(at.step, at.place, found.model());
      CHECK(train.next_step() == at.step);
      CHECK(train.place() == at.place);
      for (auto step = 0; step < steps; ++step) {
        auto const loss = train.step().losses.masked_lm;
        if (comm.rank() == 0) { result.push_back(loss); }
      }
    });
    return result;
  }

 private:
  using trainer                        = bert::trainer<place<float>>;
  static constexpr std::size_t samples = 101;  // step 37 lies inside of an epoch, and of a window

  [[nodiscard]] bert::trainer_state state_of(trainer const& t, rule_samples const& data) const {
    return {.step       = t.next_step(),
            .place      = t.place(),
            .seed       = wanted_.seed,
            .batch_size = wanted_.batch_size,
            .deal       = wanted_.deal,
            .window     = wanted_.window,
            .data       = data.fingerprint(),
            .model      = wanted_.model,
            .update     = wanted_.update};
  }

  bert::training_settings wanted_ = settings(clip_mode::bucketwise, 1);
  std::filesystem::path folder_ =
      std::filesystem::temp_directory_path() / ("gradlane_resume_" + std::to_string(getpid()));
};

}  // namespace

TEST_CASE("trainer goes on from a checkpoint at step 37 as if it had never stopped, bit for bit") {
  for (auto const reduce : all_modes) {
    CAPTURE(static_cast<int>(reduce));
    auto const run   = resumable{reduce};
    auto const whole = run.whole(50);
    run.save_at(2, 37);
    CHECK(run.go_on(reduce, 2, 13) == std::vector<double>(whole.begin() + 37, whole.end()));
  }
}

TEST_CASE("trainer goes on from what another mode has saved, on another number of ranks") {
  for (auto const saved : all_modes) {
    CAPTURE(static_cast<int>(saved));
    auto const run = resumable{saved};
    run.save_at(3, 7);
    auto const expected = run.go_on(reduce_mode::average, 1, 1);
    for (auto const reduce : all_modes) {
      for (auto const ranks : {1, 2, 4}) {
        auto const found = run.go_on(reduce, ranks, 1);  // a loss of the very weights saved
        CHECK(std::abs(found[0] - expected[0]) <= 1e-6 * expected[0]);
      }
    }
    auto const average = run.go_on(reduce_mode::average, 2, 6);
    auto const sharded = run.go_on(reduce_mode::sharded, 2, 6);
    for (auto step = std::size_t{0}; step < average.size(); ++step) {
      CHECK(std::abs(sharded[step] - average[step]) <= 1e-6 * average[step]);
    }
  }
}

TEST_CASE("trainer refuses to clip updates after they were joined") {
  gradlane::local::run(2, [&](communicator& comm, gradlane::host::device& lane) {
    auto const data = rule_samples{57};
    auto wanted     = settings(clip_mode::after, 1);
    wanted.reduce   = reduce_mode::adasum_delta;
    using trainer   = bert::trainer<place<float>>;
    CHECK_THROWS_WITH_AS((trainer{wanted, {lane, comm}, data}),
                         doctest::Contains("choose --clip none, before or bucketwise"),
                         bert::input_error);
  });
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

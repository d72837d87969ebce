// SPDX-License-Identifier: Apache-2.0
#include "support.hpp"              // for tiny_config, noise
#include "temporary_directory.hpp"  // for temporary_directory

#include <doctest/doctest.h>

#include <bert/checkpoint.hpp>
#include <bert/errors.hpp>
#include <bert/optimizer.hpp>
#include <bert/weights.hpp>

namespace {

using namespace bert;
namespace fs = std::filesystem;
using paths  = std::vector<fs::path>;

/// A run that has made `steps` steps.
struct run {
  trainer_state state;
  parameter_list list;
  std::vector<float> parameters;
  optimizer update;

  explicit run(std::uint32_t steps)
      : state{steps,
              {{2, 40, 24, 0xABCDEF0123456789U}, 1},
              7,
              8,
              gradlane::balance::dealing::lpt,
              3,
              0xFEDCBA9876543210U,
              test::tiny_config(),
              lamb_settings(),
              loss_scale_state{0x1p13F, 1234}},
        list{state.model},
        parameters(list.total()),
        update{list, state.update} {
    initialise(list, parameters, 1);
    for (auto step = std::uint32_t{0}; step < steps; ++step) { make_step(step); }
  }

  void make_step(std::uint32_t seed) {
    auto gradient  = test::noise<float>(list.total(), seed);
    auto gradients = std::vector<std::span<float>>{};
    for (auto i = std::size_t{0}; i < list.size(); ++i) {
      gradients.push_back(list.slice(std::span{gradient}, i));
    }
    update.step(parameters, gradients, 1e-3);
  }

  [[nodiscard]] model_state model() const {
    return {update.steps(), parameters, update.first_moment(), update.second_moment()};
  }
  fs::path save(checkpoint_store const& to) const {
    return to.save(state, list, model(), {{"vocab.txt", "[PAD]\n"}});
  }
  trainer_state load(fs::path const& from) {
    auto found = load_checkpoint(from, state, list);
    update.restore(found.steps, found.first, found.second);
    parameters = std::move(found.parameters);
    return found.state;
  }
};

TEST_CASE("checkpoint_store gives back a run that goes on bit for bit") {
  auto const folder = test::temporary_directory{};
  auto original     = run{3};
  auto const where  = original.save(checkpoint_store{folder.path() / "a" / "b"});
  CHECK(where == folder.path() / "a" / "b" / "step-00000003");
  auto resumed = run{0};
  CHECK(resumed.load(where) == original.state);
  CHECK(resumed.update.steps() == 3);
  CHECK(resumed.parameters == original.parameters);
  original.make_step(99);
  resumed.make_step(99);
  CHECK(resumed.parameters == original.parameters);
  CHECK(read_file(where / "vocab.txt") == "[PAD]\n");
  CHECK(read_config(where / "config.json") == original.state.model);
}

TEST_CASE("load_checkpoint takes a run in fp16 for one that needs no loss scale, and the reverse") {
  auto const folder = test::temporary_directory{};
  auto const scaled = run{1}.save(checkpoint_store{folder.path() / "scaled"});
  auto plain        = run{1};
  plain.state.scale.reset();
  CHECK(plain.load(scaled).scale == loss_scale_state{0x1p13F, 1234});
  auto const unscaled = plain.save(checkpoint_store{folder.path() / "plain"});
  CHECK_FALSE(run{0}.load(unscaled).scale);
}

TEST_CASE("checkpoint_store keeps the moments of ranks apart, for as many ranks as there were") {
  auto const folder = test::temporary_directory{};
  auto const own    = run{2};
  auto const others = std::vector{test::noise<float>(own.list.total(), 71),
                                  test::noise<float>(own.list.total(), 72)};
  auto const of     = [&](std::size_t rank) {
    return model_state{
            .steps = 2, .parameters = {}, .first = others[rank - 1], .second = others[rank - 1]};
  };
  auto const store = checkpoint_store{folder.path()};
  auto const where = store.save(own.state, own.list, own.model(), {}, {3, of});
  auto const load  = [&](std::size_t rank, std::size_t count) {
    return load_checkpoint(where, own.state, own.list, rank, count);
  };
  auto const common = std::vector<float>(own.model().first.begin(), own.model().first.end());
  CHECK(load(0, 3).first == common);
  CHECK(load(1, 3).first == others[0]);
  CHECK(load(2, 3).second == others[1]);
  CHECK(load(2, 3).parameters == own.parameters);
  CHECK(load(1, 2).first == common);
  CHECK(load(1, 1).first == common);
  CHECK(load(0, 1).ranks_with_moments == 3);
  CHECK(fs::remove(where / "optimizer-rank-2.safetensors"));
  CHECK_THROWS_WITH_AS(static_cast<void>(load(0, 1)),
                       doctest::Contains("optimizer-rank-2.safetensors: is missing"),
                       damaged_file_error);
}

TEST_CASE("checkpoint_store keeps the newest, and takes no unfinished one for one") {
  auto const folder = test::temporary_directory{};
  auto const store  = checkpoint_store{folder.path(), 2};
  CHECK(store.list().empty());
  CHECK_FALSE(store.newest());
  CHECK(checkpoint_store{folder.path() / "none"}.list().empty());
  for (auto const steps : {1U, 2U, 3U}) { run{steps}.save(store); }
  fs::create_directories(folder.path() / "step-00000009.partial");
  folder.write("step-00000010", "a file");
  folder.write("notes/x", "");
  CHECK(store.list() == paths{folder.path() / "step-00000002", folder.path() / "step-00000003"});
  CHECK(store.newest() == folder.path() / "step-00000003");
  run{3}.save(store);  // again
  CHECK(store.list().size() == 2);
}

TEST_CASE("load_checkpoint refuses every file that is truncated, damaged or missing by its name") {
  auto const folder = test::temporary_directory{};
  auto const where  = run{1}.save(checkpoint_store{folder.path()});
  auto resumed      = run{0};
  auto const before = resumed.parameters;
  auto const refuse = [&](std::string const& name, std::string const& content) {
    CAPTURE(name);
    auto const good = read_file(where / name);
    output_file{where / name}.write(content);
    CHECK_THROWS_WITH_AS(static_cast<void>(resumed.load(where)),
                         doctest::Contains(name.c_str()),
                         damaged_file_error);
    output_file{where / name}.write(good);
  };
  for (auto const& entry : fs::directory_iterator{where}) {
    auto const name = entry.path().filename().string();
    auto const good = read_file(entry.path());
    refuse(name, good.substr(0, good.size() / 2));
    refuse(name, "");
    auto flipped             = good;
    flipped[good.size() / 2] = static_cast<char>(flipped[good.size() / 2] ^ 1);
    refuse(name, flipped);
  }
  CHECK(resumed.parameters == before);
  CHECK(resumed.update.steps() == 0);
  CHECK_NOTHROW(static_cast<void>(resumed.load(where)));
  for (auto const* name : {"model.safetensors", "optimizer.safetensors", "trainer.json"}) {
    auto const away = folder.path() / "away";
    fs::rename(where / name, away);
    CHECK_THROWS_WITH_AS(static_cast<void>(resumed.load(where)),
                         doctest::Contains((std::string{name} + ": is missing").c_str()),
                         damaged_file_error);
    fs::rename(away, where / name);
  }
  CHECK_THROWS_AS(static_cast<void>(resumed.load(folder.path() / "none")), file_system_error);
}

TEST_CASE("load_checkpoint names the setting that another run had") {
  auto const folder = test::temporary_directory{};
  auto const where  = run{1}.save(checkpoint_store{folder.path()});
  auto const refuse = [&](auto const& change, char const* message) {
    auto other = run{0};
    change(other.state);
    CHECK_THROWS_WITH_AS(
        static_cast<void>(other.load(where)), doctest::Contains(message), input_error);
  };
  refuse([](trainer_state& s) { s.model.vocab_size = 99; },
         "model/vocab_size is 37 there, 99 here");
  refuse([](trainer_state& s) { s.seed = 8; }, "seed is 7 there, 8 here");
  refuse([](trainer_state& s) { s.data = 1; }, "data is \"fedcba9876543210\" there, \"1\" here");
  refuse([](trainer_state& s) { s.update.rule = update_rule::adamw; },
         "optimizer/rule is \"lamb\" there, \"adamw\" here");
  refuse([](trainer_state& s) { s.batch_size = 9; }, "batch_size is 8 there, 9 here");
  refuse([](trainer_state& s) { s.window = 9; }, "window is 3 there, 9 here");
  refuse([](trainer_state& s) { s.deal = gradlane::balance::dealing::snake; },
         "balance is \"lpt\" there, \"snake\" here");
}

TEST_CASE("checkpoint_store leaves older checkpoints alone when the disk is full") {
  auto const folder = test::temporary_directory{};
  auto const store  = checkpoint_store{folder.path(), 1};
  auto const before = run{1}.save(store);
  auto const next   = run{2};
  fs::create_symlink("/dev/full", folder.path() / "text.partial");
  try {  // the text is written last, through the link
    static_cast<void>(store.save(next.state, next.list, next.model(), {{"../text", "x"}}));
    FAIL("a full disk took a checkpoint");
  } catch (file_system_error const& problem) { CHECK(problem.disk_full()); }
  CHECK(store.list() == paths{before});
  CHECK_FALSE(fs::exists(folder.path() / "step-00000002.partial"));
  auto resumed = run{0};
  CHECK(resumed.load(before).step == 1);
  CHECK_THROWS_AS(static_cast<void>(next.save(checkpoint_store{"/dev/null/x"})), file_system_error);
}

}  // namespace

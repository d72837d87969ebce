// SPDX-License-Identifier: Apache-2.0
// The trainer on GPUs, one a rank, against the same on one rank of the CPU: same weights, samples
// and dropout. What it gives must not depend on the ranks, on graphs, or on where it was resumed.
#include "rule_samples.hpp"         // for rule_samples
#include "temporary_directory.hpp"  // for temporary_directory

#include <gradlane/cuda/device.cuh>
#include <gradlane/cuda/error.hpp>
#include <gradlane/error.hpp>
#include <gradlane/host/device.hpp>
#include <gradlane/mpi/communicator.hpp>
#include <gradlane/nccl/communicator.hpp>
#include <gradlane/types.hpp>

#include <doctest/doctest.h>

#include <cuda_runtime_api.h>
#include <mpi.h>
#include <nccl/support.cuh>  // for own_device

#include <bert/checkpoint.hpp>
#include <bert/errors.hpp>
#include <bert/loss_scale.hpp>
#include <bert/train/cpu_place.hpp>
#include <bert/train/trainer.hpp>
#include <omp.h>

#include <algorithm>  // for equal, max
#include <bert/train/cuda_place.cuh>
#include <cmath>    // for abs
#include <cstddef>  // for size_t
#include <span>     // for span
#include <string>   // for string
#include <vector>   // for vector

namespace {

using namespace bert;
using gradlane::bf16;
using gradlane::fp16;
using host_ranks = gradlane::mpi::communicator;

/// One layer, whose one head has the 64 columns that attention wants.
[[nodiscard]] training_settings settings(std::size_t micro_steps = 1) {
  auto result                          = training_settings{};
  result.model.vocab_size              = 97;
  result.model.hidden_size             = 64;
  result.model.num_hidden_layers       = 1;
  result.model.num_attention_heads     = 1;
  result.model.intermediate_size       = 128;
  result.model.max_position_embeddings = 40;
  result.batch_size                    = 9;  // deals unevenly to 2 and 4 ranks
  result.micro_steps                   = micro_steps;
  result.window                        = 2;
  result.clip                          = clip_mode::after;  // bounds nothing that ranks do alone
  result.clip_norm                     = 0.5;
  result.bucket_bytes                  = std::size_t{32} << 10U;
  result.rate                          = {.peak = 2e-3, .warm_up = 3, .steps = 100};
  return result;
}

[[nodiscard]] training_settings with_loss_scale(loss_scale_settings const& scale) {
  auto result       = settings();
  result.loss_scale = scale;
  return result;
}

/// The ranks of this test, as hosts and as GPUs.
struct cluster {
  gradlane::host::device host;
  host_ranks hosts = gradlane::mpi::from_mpi(host, MPI_COMM_WORLD);
  gradlane::cuda::device device{own_device()};
  gradlane::nccl::communicator gpus = gradlane::nccl::from_mpi(device, MPI_COMM_WORLD);

  static int own_device() {
    auto const index = gradlane::test::own_device();
    gradlane::cuda::check(cudaSetDevice(index));
    return index;
  }
  static cluster& get() {
    static auto* const result = new cluster{};  // MPI ends before static objects do
    return *result;
  }
};

template <class Value>
using gpu_place = cuda_place<Value, gradlane::nccl::communicator, host_ranks>;
using one_cpu   = cpu_place<float, host_ranks>;

template <class Value>
[[nodiscard]] gpu_place<Value> gpus(bool graphs = false) {
  auto& c = cluster::get();
  return {c.device, c.gpus, c.host, c.hosts, graphs};
}

/// The CPU's place for this rank alone.
struct alone {
  gradlane::host::device host;
  host_ranks self = gradlane::mpi::from_mpi(host, MPI_COMM_SELF);

  alone() { omp_set_num_threads(1); }
  [[nodiscard]] one_cpu place() { return {host, self}; }
};

struct run {
  std::vector<double> losses;
  std::vector<double> orthogonality;  // with Adasum
  std::vector<float> weights;         // on rank 0
  std::size_t graphs      = 0;
  std::size_t state_bytes = 0;
};

/// Steps, each told while the next is under way, as a place wants it.
template <class Place>
[[nodiscard]] run train(Place place, training_settings const& wanted, std::size_t steps) {
  auto const data = test::rule_samples{57};
  auto trains     = trainer<Place>{wanted, place, data};
  auto result     = run{};
  auto const tell = [&](std::size_t rest) {
    while (trains.under_way() > rest) {
      auto const told = trains.sync_result();
      CHECK(told.step == result.losses.size() / 3);
      CHECK_FALSE(told.skipped);
      result.losses.push_back(told.losses.masked_lm);
      result.losses.push_back(told.losses.next_sentence);
      result.losses.push_back(told.gradient_norm);
      if (told.orthogonality) { result.orthogonality.push_back(*told.orthogonality); }
    }
  };
  for (auto i = std::size_t{0}; i < steps; ++i) {
    trains.start_step();
    tell(Place::results_behind);
  }
  tell(0);
  auto const state = trains.sync_state();
  result.weights.assign(state.parameters.begin(), state.parameters.end());
  result.state_bytes = trains.state_bytes();
  if constexpr (Place::steps::pads) { result.graphs = trains.steps().graphs(); }
  return result;
}

void check_close(std::vector<double> const& a, std::vector<double> const& b, double bound) {
  REQUIRE(a.size() == b.size());
  for (auto i = std::size_t{0}; i < a.size(); ++i) {
    CAPTURE(i);
    CHECK(std::abs(a[i] / b[i] - 1) < bound);
  }
}

/// Weights on rank 0, to a bound that counts from 0.1 on as relative.
void check_near(std::vector<float> const& a, std::vector<float> const& b, float bound) {
  REQUIRE(a.size() == b.size());
  auto worst = 0.0F;
  for (auto i = std::size_t{0}; i < a.size(); ++i) {
    worst = std::max(worst, std::abs(a[i] - b[i]) / std::max(std::abs(b[i]), 0.1F));
  }
  CHECK(worst < bound);
}

TEST_CASE("cuda trainer gives one CPU's losses and norms over ten steps, dropout on") {
  auto cpu            = alone{};
  auto const expected = train(cpu.place(), settings(), 10);
  SUBCASE("to 1e-4 in fp32") {
    check_close(train(gpus<float>(), settings(), 10).losses, expected.losses, 1e-4);
  }
  SUBCASE("to 2e-2 in bf16") {
    auto found = train(gpus<bf16>(), settings(), 10);
    for (auto i = std::size_t{2}; i < found.losses.size(); i += 3) {
      found.losses[i] = expected.losses[i];  // of norms nothing is promised
    }
    check_close(found.losses, expected.losses, 2e-2);
  }
  SUBCASE("to 2e-2 in fp16, norms too") {
    auto const wanted = with_loss_scale({.initial = 0x1p10F});
    check_close(train(gpus<fp16>(), wanted, 10).losses, expected.losses, 2e-2);
  }
}

TEST_CASE("cuda trainer with Adasum does to 1e-4 what as many CPUs do, also from graphs") {
  auto wanted   = settings();
  wanted.reduce = reduce_mode::adasum;
  omp_set_num_threads(1);
  auto& c       = cluster::get();
  auto const on = train(one_cpu{c.host, c.hosts}, wanted, 6);
  auto const by = train(gpus<float>(), wanted, 6);
  check_close(by.losses, on.losses, 1e-4);
  REQUIRE(by.orthogonality.size() == 6);
  // Keys' biases have no gradient but rounding's, whose directions differ: one tensor of 30.
  check_close(by.orthogonality, on.orthogonality, 0.06);
  for (auto const ratio : by.orthogonality) {
    CHECK(ratio <= 1.0 + 1e-3);
    CHECK((ratio < 1.0 || c.hosts.size() == 1));
  }
  CHECK(train(gpus<float>(true), wanted, 6).losses == by.losses);
}

TEST_CASE("cuda trainer with a sharded step gives the whole one's, with a part of its state") {
  for (auto const& update : {optimizer_settings{}, lamb_settings()}) {
    auto wanted      = settings();
    wanted.update    = update;
    auto const whole = train(gpus<float>(), wanted, 6);
    wanted.reduce    = reduce_mode::sharded;
    auto const part  = train(gpus<float>(), wanted, 6);
    check_close(part.losses, whole.losses, 1e-5);
    check_near(part.weights, whole.weights, 1e-5F);
    auto const mean  = static_cast<double>(whole.state_bytes) / cluster::get().hosts.size();
    auto const found = static_cast<double>(part.state_bytes);
    if (update.rule == update_rule::adamw) {  // but for what fills buckets up to equal parts
      CHECK(std::abs(found - mean) < 4 * 2 * sizeof(float) * 30);
    } else {  // within the largest tensor
      CHECK(std::abs(found - mean) <= 2 * sizeof(float) * 128 * 64);
    }
    CHECK(train(gpus<float>(true), wanted, 6).losses == part.losses);
    auto const rounded = train(gpus<bf16>(true), wanted, 6);
    wanted.reduce      = reduce_mode::average;
    check_close(rounded.losses, train(gpus<bf16>(), wanted, 6).losses, 2e-2);
  }
}

TEST_CASE("cuda trainer gives the same bits from graphs, in micro-steps and by whole batches") {
  for (auto const micro_steps : {std::size_t{1}, std::size_t{2}}) {
    CAPTURE(micro_steps);
    auto const plain  = train(gpus<bf16>(), settings(micro_steps), 8);
    auto const graphs = train(gpus<bf16>(true), settings(micro_steps), 8);
    CHECK(graphs.graphs >= micro_steps);
    CHECK(plain.graphs == 0);
    CHECK(graphs.losses == plain.losses);
    CHECK(graphs.weights == plain.weights);
  }
}

/// What a checkpoint is written with, by rank 0.
template <class Place>
[[nodiscard]] trainer_state describe(trainer<Place>& of, training_settings const& wanted) {
  auto result       = trainer_state{};
  result.step       = of.next_step();
  result.place      = of.place();
  result.seed       = wanted.seed;
  result.batch_size = wanted.batch_size;
  result.deal       = wanted.deal;
  result.window     = wanted.window;
  result.data       = 57;
  result.model      = wanted.model;
  result.update     = wanted.update;
  return result;
}

void check_same(model_state const& a, model_state const& b) {
  auto const same = [](std::span<float const> x, std::span<float const> y) {
    return !x.empty() && std::ranges::equal(x, y);
  };
  CHECK(a.steps == b.steps);
  CHECK(same(a.parameters, b.parameters));
  CHECK(same(a.first, b.first));
  CHECK(same(a.second, b.second));
}

TEST_CASE("cuda trainer and the CPU's take over each other's checkpoints, bit for bit") {
  if (cluster::get().hosts.size() > 1) { return; }
  auto const folder = test::temporary_directory{};
  auto const data   = test::rule_samples{57};
  auto const wanted = settings();
  auto cpu          = alone{};
  auto on_cpu       = trainer<one_cpu>{wanted, cpu.place(), data};
  auto on_gpu       = trainer<gpu_place<bf16>>{wanted, gpus<bf16>(), data};
  auto const hand   = [&](auto& from, auto& to, std::string const& name) {
    auto const store = checkpoint_store{folder.path() / name};
    store.save(describe(from, wanted), from.list(), from.sync_state());
    auto const found = load_checkpoint(*store.newest(), describe(to, wanted), to.list());
    to.resume(found.state.step, found.state.place, found.model());
    check_same(to.sync_state(), from.sync_state());
    CHECK(to.next_step() == from.next_step());
  };
  for (auto i = 0; i < 3; ++i) { on_cpu.step(); }
  hand(on_cpu, on_gpu, "from_cpu");
  for (auto i = 0; i < 3; ++i) {
    auto const a = on_cpu.step().losses.masked_lm;
    auto const b = on_gpu.step().losses.masked_lm;
    CHECK(std::abs(a / b - 1) < 2e-2);
  }
  hand(on_gpu, on_cpu, "from_gpu");
  auto const a = on_cpu.step().losses.masked_lm;
  auto const b = on_gpu.step().losses.masked_lm;
  CHECK(std::abs(a / b - 1) < 2e-2);
}

/// A trainer's state, which rank 0 has, on all ranks: it travels through a file in the program.
struct state_everywhere {
  model_state state;
  std::vector<std::vector<float>> held;

  template <class Trainer>
  explicit state_everywhere(Trainer& of) : state{of.sync_state()} {
    for (auto* part : {&state.parameters, &state.first, &state.second}) {
      auto& copy = held.emplace_back(part->begin(), part->end());
      copy.resize(of.list().total());
      MPI_Bcast(copy.data(), static_cast<int>(copy.size()), MPI_FLOAT, 0, MPI_COMM_WORLD);
      *part = copy;
    }
  }
};

// 2^21 is too much for the gradients of losses; it grows again every two good steps.
TEST_CASE("cuda trainer in fp16 finds its loss scale, and goes on with it from a checkpoint") {
  auto const wanted = with_loss_scale({.initial = 0x1p21F, .growth_interval = 2});
  auto const data   = test::rule_samples{57};
  auto const steps  = [](auto& trains, int count) {
    auto told = std::vector<double>{};
    for (auto i = 0; i < count; ++i) {
      auto const result = trains.step();
      told.push_back(result.losses.masked_lm);
      told.push_back(result.skipped ? 1 : 0);
      told.push_back(static_cast<double>(trains.loss_scale()->scale));
    }
    return told;
  };
  auto whole       = trainer<gpu_place<fp16>>{wanted, gpus<fp16>(true), data};
  auto const first = steps(whole, 5);
  auto const kept  = state_everywhere{whole};
  auto resumed     = trainer<gpu_place<fp16>>{wanted, gpus<fp16>(), data};
  resumed.resume(whole.next_step(), whole.place(), kept.state, whole.loss_scale());
  auto const rest = steps(whole, 5);
  CHECK(steps(resumed, 5) == rest);
  CHECK(first[1] == 1);
  CHECK(first[2] == 0x1p20);
  auto good = 0;
  for (auto i = std::size_t{1}; i < rest.size(); i += 3) { good += rest[i] == 0 ? 1 : 0; }
  CHECK(good > 0);
  CHECK(good < 5);  // it has grown too far once more
}

TEST_CASE("cuda trainer in fp16 stops with a typed error where no loss scale will do") {
  auto const wanted = with_loss_scale({.initial = 0x1p30F, .floor = 0x1p29F});
  auto const data   = test::rule_samples{57};
  auto trains       = trainer<gpu_place<fp16>>{wanted, gpus<fp16>(), data};
  CHECK(trains.step().skipped);
  CHECK_THROWS_WITH_AS(
      trains.step(), doctest::Contains("training has diverged: at step 2 "), diverged_error);
  auto cpu        = alone{};
  auto const make = [&] { return trainer<one_cpu>{wanted, cpu.place(), data}; };
  CHECK_THROWS_AS(make(), gradlane::contract_error);
}

TEST_CASE("cuda trainer goes on from a checkpoint as if it had never stopped, bit for bit") {
  auto const whole  = train(gpus<bf16>(true), settings(), 7);
  auto const wanted = settings();
  auto const data   = test::rule_samples{57};
  auto first        = trainer<gpu_place<bf16>>{wanted, gpus<bf16>(), data};
  for (auto i = 0; i < 4; ++i) { first.step(); }
  auto const kept = state_everywhere{first};
  auto second     = trainer<gpu_place<bf16>>{wanted, gpus<bf16>(), data};
  second.resume(first.next_step(), first.place(), kept.state);
  auto resumed = std::vector<double>{};
  for (auto i = 0; i < 3; ++i) {
    auto const told = second.step();
    resumed.push_back(told.losses.masked_lm);
    resumed.push_back(told.losses.next_sentence);
    resumed.push_back(told.gradient_norm);
  }
  CHECK(resumed == std::vector<double>(whole.losses.begin() + 12, whole.losses.end()));
  auto const end = second.sync_state().parameters;
  CHECK(std::ranges::equal(end, whole.weights));
}

TEST_CASE("cuda trainer evaluates as the CPU's does to 1e-4") {
  auto const data = test::rule_samples{57};
  auto cpu        = alone{};
  auto on_cpu     = trainer<one_cpu>{settings(), cpu.place(), data};
  auto on_gpu     = trainer<gpu_place<float>>{settings(), gpus<float>(), data};
  auto const a    = on_gpu.evaluate(data, 20);
  auto const b    = on_cpu.evaluate(data, 20);
  CHECK(std::abs(a.masked_lm / b.masked_lm - 1) < 1e-4);
  CHECK(std::abs(a.next_sentence / b.next_sentence - 1) < 1e-4);
  CHECK(a.predictions == b.predictions);
}

}  // namespace

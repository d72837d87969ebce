// SPDX-License-Identifier: Apache-2.0
#include "cuda_memory.hpp"  // for device_memory, test_stream
#include "support.hpp"      // for noise, relative_error, tiny_config

#include <gradlane/clip/report.hpp>  // for step_status
#include <gradlane/cuda/error.hpp>   // for check
#include <gradlane/error.hpp>        // for contract_error
#include <gradlane/types.hpp>        // for bf16

#include <doctest/doctest.h>

#include <bert/cuda/optimizer.hpp>
#include <bert/errors.hpp>
#include <bert/optimizer.hpp>
#include <bert/parameters.hpp>

#include <cmath>    // for sqrt
#include <cstddef>  // for size_t
#include <cstdint>  // for uint16_t, uint32_t
#include <limits>   // for numeric_limits
#include <span>     // for span
#include <vector>   // for vector

// The CUDA optimizer against the CPU's, which its own test compares with the formulas in fp64.

namespace {

using namespace bert;
using gradlane::bf16;
using gradlane::step_status;
using test::device_memory;

/// A model whose largest tensor takes several blocks, and of whose tensors some lie unaligned.
struct problem {
  parameter_list list{config()};
  std::vector<float> parameters;
  std::vector<float> gradient;
  std::vector<std::span<float>> gradients;
  device_memory<float> own_parameters;
  device_memory<float> own_gradient{std::vector<float>(list.total())};
  std::vector<std::span<float>> own_gradients;

  problem() : parameters{initial(list)}, gradient(list.total()), own_parameters{parameters} {
    for (auto i = std::size_t{0}; i < list.size(); ++i) {
      gradients.push_back(list.slice(std::span{gradient}, i));
      own_gradients.push_back(list.slice(own_gradient.span(), i));
    }
  }
  [[nodiscard]] static model_config config() {
    auto result       = test::tiny_config();
    result.vocab_size = 3001;  // 36012 elements; odd, so that what follows lies unaligned
    return result;
  }
  [[nodiscard]] static std::vector<float> initial(parameter_list const& of) {
    auto result = std::vector<float>(of.total());
    initialise(of, result, 1);
    return result;
  }
  void draw_gradient(std::uint32_t seed) {
    auto const values = test::noise<float>(gradient.size(), seed);
    std::copy(values.begin(), values.end(), gradient.begin());
    put(own_gradient.span(), gradient);
  }
  static void put(std::span<float> to, std::vector<float> const& from) {
    gradlane::cuda::check(cudaMemcpyAsync(to.data(),
                                          from.data(),
                                          to.size_bytes(),
                                          cudaMemcpyHostToDevice,
                                          test::test_stream().get()));
    gradlane::cuda::check(cudaStreamSynchronize(test::test_stream().get()));
  }
  [[nodiscard]] cuda::optimizer make(optimizer_settings const& settings) const {
    return {list, settings, own_gradients, test::test_stream()};
  }
};

template <class T>
std::vector<T> download(std::span<T const> from) {
  auto result = std::vector<T>(from.size());
  gradlane::cuda::check(cudaMemcpyAsync(result.data(),
                                        from.data(),
                                        from.size_bytes(),
                                        cudaMemcpyDeviceToHost,
                                        test::test_stream().get()));
  gradlane::cuda::check(cudaStreamSynchronize(test::test_stream().get()));
  return result;
}

/// ‖a - b‖ against a change from `before`, plus the rounding of each of `steps` sums.
void check_close(problem const& data,
                 std::vector<float> const& tested,
                 std::vector<float> const& expected,
                 std::vector<float> const& before,
                 int steps) {
  for (auto const& tensor : data.list) {
    CAPTURE(tensor.name);
    auto difference = 0.0;
    auto moved      = 0.0;
    auto size       = 0.0;
    for (auto i = tensor.offset; i < tensor.offset + tensor.size; ++i) {
      auto const a = static_cast<double>(tested[i]);
      auto const b = static_cast<double>(expected[i]);
      auto const c = static_cast<double>(before[i]);
      difference += (a - b) * (a - b);
      moved += (b - c) * (b - c);
      size += b * b;
    }
    CHECK(moved > 0);
    CHECK(std::sqrt(difference) < 3e-6 * std::sqrt(moved) + steps * 0x1p-24 * std::sqrt(size));
  }
}

void compare(optimizer_settings const& settings) {
  auto data         = problem{};
  auto plain        = optimizer{data.list, settings};
  auto tested       = data.make(settings);
  auto const before = data.parameters;
  auto working      = device_memory<bf16>{std::vector<bf16>(data.list.total())};
  auto statuses     = device_memory<step_status>{{{1.0F, 0}, {0.25F, 0}}};
  for (auto step = std::uint32_t{0}; step < 5; ++step) {
    data.draw_gradient(step);
    auto const which = step % 3 == 1 ? std::size_t{1} : std::size_t{0};
    plain.step(data.parameters, data.gradients, 1e-3, {which == 1 ? 0.25F : 1.0F, 0});
    tested.step(data.own_parameters.span(), 1e-3, statuses.span().data() + which, working.span());
  }
  check_close(data, data.own_parameters.values(), data.parameters, before, 5);
  CHECK(test::relative_error(std::span<float const>{download(tested.first_moment())},
                             plain.first_moment()) < 1e-6);
  CHECK(test::relative_error(std::span<float const>{download(tested.second_moment())},
                             plain.second_moment()) < 1e-6);
  CHECK(tested.sync_steps() == 5);
  auto const rounded = working.values();
  auto const exact   = data.own_parameters.values();
  auto wrong         = 0;
  for (auto i = std::size_t{0}; i < exact.size(); ++i) {
    wrong += rounded[i].bits == bf16{exact[i]}.bits ? 0 : 1;
  }
  CHECK(wrong == 0);
}

TEST_CASE("cuda optimizer's AdamW is the CPU's, with and without bias correction") {
  auto settings = optimizer_settings{};
  compare(settings);
  settings.bias_correction = false;
  settings.weight_decay    = 0.5;
  compare(settings);
}

TEST_CASE("cuda optimizer's LAMB is the CPU's, a trust ratio for each tensor that decays") {
  compare(lamb_settings());
  auto settings                = lamb_settings();
  settings.trust_without_decay = true;
  compare(settings);
}

TEST_CASE("cuda optimizer skips a step on the device: no bit changes, and it does not count") {
  auto const nan = std::numeric_limits<float>::quiet_NaN();
  for (auto const& settings : {optimizer_settings{}, lamb_settings()}) {
    auto data   = problem{};
    auto tested = data.make(settings);
    data.draw_gradient(1);
    tested.step(data.own_parameters.span(), 1e-3);
    auto const parameters = data.own_parameters.values();
    auto const first      = download(tested.first_moment());
    auto const second     = download(tested.second_moment());
    auto status           = device_memory<step_status>{{{nan, 1}}};
    problem::put(data.own_gradient.span(), std::vector<float>(data.list.total(), nan));
    tested.step(data.own_parameters.span(), 1e-3, status.span().data());
    CHECK(data.own_parameters.values() == parameters);
    CHECK(download(tested.first_moment()) == first);
    CHECK(download(tested.second_moment()) == second);
    CHECK(tested.sync_steps() == 1);
  }
}

TEST_CASE("cuda optimizer goes on from a restored state, and repeats, bit for bit") {
  for (auto const& settings : {optimizer_settings{}, lamb_settings()}) {
    auto data   = problem{};
    auto one    = data.make(settings);
    auto second = data.make(settings);
    data.draw_gradient(1);
    one.step(data.own_parameters.span(), 1e-3);
    second.sync_restore(
        one.sync_steps(), download(one.first_moment()), download(one.second_moment()));
    auto copy = device_memory<float>{data.own_parameters.values()};
    data.draw_gradient(2);
    one.step(data.own_parameters.span(), 1e-3);
    second.step(copy.span(), 1e-3);
    CHECK(copy.values() == data.own_parameters.values());
    CHECK(second.sync_steps() == 2);
  }
}

TEST_CASE("cuda optimizer's step is captured into a graph and replayed with new gradients") {
  for (auto const& settings : {optimizer_settings{}, lamb_settings()}) {
    auto data         = problem{};
    auto const stream = test::test_stream().get();
    auto plain        = optimizer{data.list, settings};
    auto tested       = data.make(settings);
    auto const before = data.parameters;
    auto* graph       = cudaGraph_t{};
    auto* instance    = cudaGraphExec_t{};
    gradlane::cuda::check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    tested.step(data.own_parameters.span(), 1e-3);
    gradlane::cuda::check(cudaStreamEndCapture(stream, &graph));
    gradlane::cuda::check(cudaGraphInstantiate(&instance, graph, 0));
    for (auto step = std::uint32_t{0}; step < 3; ++step) {
      data.draw_gradient(step);
      plain.step(data.parameters, data.gradients, 1e-3);
      gradlane::cuda::check(cudaGraphLaunch(instance, stream));
    }
    check_close(data, data.own_parameters.values(), data.parameters, before, 3);
    CHECK(tested.sync_steps() == 3);
    gradlane::cuda::check(cudaGraphExecDestroy(instance));
    gradlane::cuda::check(cudaGraphDestroy(graph));
  }
}

TEST_CASE("cuda optimizer refuses what does not fit") {
  auto data   = problem{};
  auto tested = data.make({});
  CHECK_THROWS_AS(tested.step(data.own_parameters.span().subspan(1), 1e-3),
                  gradlane::contract_error);
  data.own_gradients.pop_back();
  CHECK_THROWS_AS(data.make({}), gradlane::contract_error);
  auto settings  = optimizer_settings{};
  settings.beta1 = 1;
  CHECK_THROWS_AS(problem{}.make(settings), input_error);
}

}  // namespace

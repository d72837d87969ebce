// SPDX-License-Identifier: Apache-2.0
#include "cuda_memory.hpp"  // for device_memory
#include "on_cpu.hpp"       // for host_memory
#include "support.hpp"      // for make_batch

#include <gradlane/clip_allreduce.hpp>    // for clip_allreduce
#include <gradlane/cuda/device.cuh>       // for device
#include <gradlane/cuda/error.hpp>        // for check
#include <gradlane/gradient_buckets.hpp>  // for gradient_buckets
#include <gradlane/host/device.hpp>       // for device
#include <gradlane/types.hpp>             // for bf16, fp16

#include <doctest/doctest.h>

#include <bert/cpu/device.hpp>
#include <bert/cuda/device.hpp>
#include <bert/cuda/loss_scaler.hpp>
#include <bert/cuda/optimizer.hpp>
#include <bert/cuda/step_memory.hpp>
#include <bert/dropout.hpp>
#include <bert/model.hpp>
#include <bert/optimizer.hpp>
#include <bert/pad.hpp>
#include <bert/parameters.hpp>
#include <bert/step_numbers.hpp>
#include <bert/step_value.hpp>
#include <support/lone_communicator.hpp>  // for lone_communicator

#include <cmath>        // for abs
#include <cstddef>      // for size_t
#include <cstdint>      // for uint32_t
#include <limits>       // for numeric_limits
#include <span>         // for span
#include <type_traits>  // for conditional_t, is_same_v
#include <utility>      // for move
#include <vector>       // for vector

// Training steps with gradlane's pipeline in between: backward marks gradients ready, the pipeline
// clips and reduces them beside it, the optimizer reads what the pipeline left. On CUDA the host
// waits for nothing but the losses that the test asks for.

namespace {

using namespace bert;
using gradlane::bf16;
using gradlane::fp16;

model_config config() {
  auto result              = preset("mini");
  result.num_hidden_layers = 1;
  result.vocab_size        = 515;
  return result;
}

batch data_of(std::uint32_t step) {
  return test::make_batch(config(), {30 + step, 1, 17, 40}, 4 * step);
}

/// The loss scale of what needs none.
struct unscaled {
  template <class Stream>
  explicit unscaled(Stream const& /*compute*/) {}
  [[nodiscard]] static float const* scale() { return nullptr; }
  void update(gradlane::step_status const* /*status*/) const {}
};

struct scaled : bert::cuda::loss_scaler {
  explicit scaled(gradlane::cuda::stream const& compute)
      : loss_scaler{{.initial = 0x1p10F, .growth_interval = 4}, compute} {}
};

/// All that trains a model on one place: a Lane for gradients, a Device for the model.
template <class Lane, class Device, class Update, template <class> class Memory, class Scaler>
struct training {
  using communicator = gradlane::test::lone_communicator<Lane, true>;
  using pipeline     = gradlane::clip_allreduce<Lane,
                                                communicator,
                                                gradlane::clip::bucketwise<gradlane::threshold::equal>,
                                                gradlane::average::ranks,
                                                gradlane::non_finite::skip>;

  parameter_list list{config()};
  Lane lane;
  typename Lane::stream compute = lane.make_stream();
  Memory<float> weights{initial(list)};
  gradlane::gradient_buckets<Lane> buckets{lane, plan(list)};
  communicator comm{lane};
  Scaler scaler{compute};
  pipeline reducer{buckets,
                   comm,
                   gradlane::clip::bucketwise{gradlane::threshold::equal{0.5}},
                   {},
                   {},
                   {},
                   {.loss_scale = scaler.scale()}};
  std::vector<std::span<float>> gradients = spans(list, buckets);
  Device device;
  model<Device> bert{config(), device, weights.span()};
  Update update;

  template <class MakeDevice, class MakeUpdate>
  training(MakeDevice make_device, MakeUpdate make_update)
      : device{make_device(compute)}, update{make_update(list, gradients, compute)} {}

  [[nodiscard]] static std::vector<float> initial(parameter_list const& of) {
    auto result = std::vector<float>(of.total());
    initialise(of, result, 1);
    return result;
  }
  [[nodiscard]] static gradlane::bucket_plan plan(parameter_list const& of) {
    auto parameters = std::vector<gradlane::parameter>{};
    for (auto const& p : of) { parameters.push_back({.name = p.name, .count = p.size}); }
    return gradlane::bucket_plan{std::move(parameters), {.cap_bytes = std::size_t{1} << 18U}};
  }
  [[nodiscard]] static std::vector<std::span<float>> spans(parameter_list const& of,
                                                           gradlane::gradient_buckets<Lane>& from) {
    auto result = std::vector<std::span<float>>{};
    for (auto i = std::size_t{0}; i < of.size(); ++i) {
      result.push_back(from.template gradient<float>(i));
    }
    return result;
  }

  void backward(step_value<double> of_losses) {
    auto const scale = of_losses.times(scaler.scale());
    reducer.begin(compute);
    bert.backward(
        scale, scale, gradients, false, [&](std::size_t i) { reducer.ready(i, compute); });
    reducer.finish(compute);
  }
};

/// The numbers of a step; one scale of losses is bad, so that its step is to be skipped.
/// @param bad  NaN makes all gradients NaN; 1e6 is too much for fp16 alone.
step_numbers numbers_of(std::uint32_t step, double bad = std::numeric_limits<double>::quiet_NaN()) {
  auto const scale = step == 4 ? bad : 1.0 / 20;
  return {.masked_lm_scale = scale, .learning_rate = 1e-3 / (1 + step), .step = step};
}

dropout_sites sites_of(std::uint32_t step) { return {config(), 0.1, 3, step}; }

constexpr auto steps = std::uint32_t{10};

template <class Value>
struct on_host
    : training<gradlane::host::device, cpu::device<Value>, optimizer, test::host_memory, unscaled> {
  using base =
      training<gradlane::host::device, cpu::device<Value>, optimizer, test::host_memory, unscaled>;

  explicit on_host(optimizer_settings const& settings)
      : base{[](auto&) { return cpu::device<Value>{}; },
             [&](auto& of, auto&, auto&) { return optimizer{of, settings}; }} {}

  void step(std::uint32_t number) {
    auto const numbers = numbers_of(number);
    this->bert.take(data_of(number));
    this->bert.start_forward(sites_of(number));
    this->backward(numbers.masked_lm_scale);
    this->lane.sync(this->compute);
    this->update.step(
        this->weights.span(), this->gradients, numbers.learning_rate, *this->reducer.status());
    this->bert.refresh();
  }
};

template <class Value>
using scale_of = std::conditional_t<std::is_same_v<Value, fp16>, scaled, unscaled>;

template <class Value>
struct on_gpu : training<gradlane::cuda::device,
                         bert::cuda::device<Value>,
                         bert::cuda::optimizer,
                         test::device_memory,
                         scale_of<Value>> {
  using base = training<gradlane::cuda::device,
                        bert::cuda::device<Value>,
                        bert::cuda::optimizer,
                        test::device_memory,
                        scale_of<Value>>;

  explicit on_gpu(optimizer_settings const& settings)
      : base{[](auto& stream) { return bert::cuda::device<Value>{stream}; },
             [&](auto& of, auto& from, auto& stream) {
               return bert::cuda::optimizer{of, settings, from, stream};
             }} {}

  /// The batch and the numbers of a step, which are all that its work depends on.
  void prepare(std::uint32_t number) {
    this->bert.take(pad(data_of(number), {.tokens = 112, .sequences = 8, .predictions = 40}, 64));
    numbers.upload(std::is_same_v<Value, fp16> ? numbers_of(number, 1e6) : numbers_of(number),
                   this->compute);
  }
  void run() {
    this->bert.start_forward(sites_of(0).with_step_at(numbers.step()));
    this->backward(numbers.masked_lm_scale());
    auto const rate = numbers.learning_rate();
    if constexpr (std::is_same_v<Value, float>) {
      this->update.step(this->weights.span(), rate, this->reducer.status());
    } else {
      this->update.step(this->weights.span(), rate, this->reducer.status(), this->device.working());
    }
    this->scaler.update(this->reducer.status());
  }
  void step(std::uint32_t number) {
    prepare(number);
    run();
  }
  [[nodiscard]] std::vector<float> final_weights() {
    this->lane.sync(this->compute);
    return this->weights.values();
  }

  bert::cuda::step_memory numbers;
};

void compare(optimizer_settings const& settings) {
  auto cpu = on_host<float>{settings};
  auto gpu = on_gpu<float>{settings};
  for (auto number = std::uint32_t{0}; number < steps; ++number) {
    CAPTURE(number);
    cpu.step(number);
    gpu.step(number);
    auto const a = gpu.bert.sync_losses();
    auto const b = cpu.bert.sync_losses();
    CHECK(std::abs(a.masked_lm / b.masked_lm - 1) < 1e-4);
    CHECK(std::abs(a.next_sentence / b.next_sentence - 1) < 1e-4);
  }
  CHECK(gpu.update.sync_steps() == steps - 1);
  CHECK(cpu.update.steps() == steps - 1);
}

TEST_CASE("cuda training gives the CPU's losses over ten steps to 1e-4, AdamW, one step skipped") {
  compare({});
}

TEST_CASE("cuda training gives the CPU's losses over ten steps to 1e-4, LAMB, one step skipped") {
  compare(lamb_settings());
}

TEST_CASE("cuda training in bf16 stays within 2e-2 of the CPU's losses in fp32") {
  auto cpu = on_host<float>{{}};
  auto gpu = on_gpu<bf16>{{}};
  for (auto number = std::uint32_t{0}; number < steps; ++number) {
    cpu.step(number);
    gpu.step(number);
    auto const a = gpu.bert.sync_losses();
    auto const b = cpu.bert.sync_losses();
    CHECK(std::abs(a.masked_lm / b.masked_lm - 1) < 2e-2);
  }
}

TEST_CASE("cuda training in fp16 stays within 2e-2 of the CPU's losses, one overflow skipped") {
  auto cpu          = on_host<float>{{}};
  auto gpu          = on_gpu<fp16>{{}};
  auto const scales = std::vector<float>{
      0x1p10F, 0x1p10F, 0x1p10F, 0x1p11F, 0x1p10F, 0x1p10F, 0x1p10F, 0x1p10F, 0x1p11F, 0x1p11F};
  for (auto number = std::uint32_t{0}; number < steps; ++number) {
    CAPTURE(number);
    cpu.step(number);
    gpu.step(number);
    auto const a = gpu.bert.sync_losses();
    auto const b = cpu.bert.sync_losses();
    CHECK(std::abs(a.masked_lm / b.masked_lm - 1) < 2e-2 / 8);
    CHECK(gpu.scaler.sync_state().scale == scales[number]);
    auto const& own   = gpu.reducer.sync_report();
    auto const& other = cpu.reducer.sync_report();
    CHECK(own.skipped == other.skipped);
    CHECK((own.skipped || std::abs(own.norm / other.norm - 1) < 2e-2));
  }
  CHECK(gpu.update.sync_steps() == steps - 1);
}

TEST_CASE_TEMPLATE("cuda training takes other steps from one step's graph, with the same bits",
                   T,
                   float,
                   bf16,
                   fp16) {
  using gradlane::cuda::check;
  auto plain  = on_gpu<T>{{}};
  auto graphs = on_gpu<T>{{}};
  for (auto number = std::uint32_t{1}; number < 5; ++number) { plain.step(number); }
  graphs.step(1);
  graphs.prepare(2);
  graphs.lane.sync(graphs.compute);
  auto* graph    = cudaGraph_t{};
  auto* instance = cudaGraphExec_t{};
  check(cudaStreamBeginCapture(graphs.compute.get(), cudaStreamCaptureModeThreadLocal));
  graphs.run();
  check(cudaStreamEndCapture(graphs.compute.get(), &graph));
  check(cudaGraphInstantiate(&instance, graph, 0));
  check(cudaGraphLaunch(instance, graphs.compute.get()));
  for (auto number = std::uint32_t{3}; number < 5; ++number) {
    graphs.prepare(number);
    check(cudaGraphLaunch(instance, graphs.compute.get()));
  }
  CHECK(graphs.final_weights() == plain.final_weights());
  CHECK(graphs.update.sync_steps() == 3);  // the last was skipped
  if constexpr (std::is_same_v<T, fp16>) { CHECK(graphs.scaler.sync_state().scale == 0x1p9F); }
  check(cudaGraphExecDestroy(instance));
  check(cudaGraphDestroy(graph));
}

}  // namespace

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "config.hpp"       // for read_config
#include "model.hpp"        // for model
#include "safetensors.hpp"  // for safetensors, write_safetensors
#include "weights.hpp"      // for load_weights, named_tensors

#include <gradlane/types.hpp>  // for bf16, fp16

#include <cstddef>      // for size_t
#include <cstdint>      // for int32_t, uint32_t
#include <exception>    // for exception
#include <filesystem>   // for path
#include <iostream>     // for cerr
#include <numeric>      // for iota
#include <span>         // for span
#include <string>       // for string
#include <string_view>  // for string_view
#include <type_traits>  // for type_identity
#include <vector>       // for vector

namespace bert {

/// The batch in `folder`/batch.safetensors: I32 vectors under the names of batch's members.
/// @throws file_system_error, damaged_file_error
[[nodiscard]] inline batch read_batch(std::filesystem::path const& folder) {
  auto const in   = safetensors{folder / "batch.safetensors"};
  auto const take = [&](std::string const& name) {
    auto values = std::vector<std::int32_t>(in.at(name).shape.at(0));
    in.read(name, "I32", {values.size()}, std::span{values});
    return values;
  };
  auto data      = batch{};
  data.tokens    = take("tokens");
  data.segments  = take("segments");
  data.starts    = take("starts");
  data.predicted = take("predicted");
  data.labels    = take("labels");
  data.next      = take("next");
  data.samples.resize(data.next.size());
  std::iota(data.samples.begin(), data.samples.end(), std::uint32_t{0});
  return data;
}

/// Runs one batch so that parity.py can compare the results with those of Hugging Face.
///
/// Reads config.json, model.safetensors and batch.safetensors in `folder`, runs forward and
/// backward without dropout, and writes result.safetensors there: "logits", "next_logits", "losses"
/// (the two sums) and the gradient of masked_lm / predictions + next_sentence / sequences under
/// each parameter's name, all in fp32.
/// @param copy  copy(to, from, bytes) copies between host and device memory, either way, after all
///              work of the device and before it returns.
/// @throws file_system_error, damaged_file_error, gradlane::contract_error
template <class Device, class Copy>
void run_parity(std::filesystem::path const& folder, Device& device, Copy copy) {
  using value       = typename Device::value;
  using memory      = typename Device::template buffer<float>;
  auto const config = read_config(folder / "config.json");
  auto const list   = parameter_list{config};
  auto const data   = read_batch(folder);
  auto host         = std::vector<float>(list.total());
  auto weights      = memory(list.total());
  auto gradients    = memory(list.total());
  auto spans        = std::vector<std::span<float>>{};
  load_weights(folder / "model.safetensors", list, host);
  copy(weights.data(), host.data(), host.size() * sizeof(float));
  for (auto const& p : list) { spans.emplace_back(gradients.data() + p.offset, p.size); }

  auto bert        = model<Device>{config, device, std::span<float const>{weights}};
  auto const sums  = bert.forward(data, dropout_sites{config, 0, 0, 0});
  auto const widen = [&](matrix_view<value const> m) {
    auto stored = std::vector<value>(m.rows * m.stride);
    auto result = std::vector<float>{};
    copy(stored.data(), m.data, stored.size() * sizeof(value));
    for (auto i = std::size_t{0}; i < m.rows; ++i) {
      for (auto j = std::size_t{0}; j < m.cols; ++j) {
        result.push_back(static_cast<float>(stored[i * m.stride + j]));
      }
    }
    return result;
  };
  auto const logits         = widen(bert.logits());
  auto const next_logits    = widen(bert.next_logits());
  auto const losses         = std::vector<float>{static_cast<float>(sums.masked_lm),
                                                 static_cast<float>(sums.next_sentence)};
  constexpr auto loss_scale = 0x1p10;  // fp16 needs one; for others it changes nothing
  bert.backward(loss_scale / static_cast<double>(sums.predictions),
                loss_scale / static_cast<double>(sums.sequences),
                spans,
                false,
                [](std::size_t) {});
  copy(host.data(), gradients.data(), host.size() * sizeof(float));
  for (auto& g : host) { g /= static_cast<float>(loss_scale); }

  auto out = named_tensors(list, host);
  out.push_back(float_tensor("logits", {data.predicted.size(), config.vocab_size}, logits));
  out.push_back(float_tensor("next_logits", {data.next.size(), 2}, next_logits));
  out.push_back(float_tensor("losses", {2}, losses));
  write_safetensors(folder / "result.safetensors", out);
}

template <class Value>
inline constexpr std::string_view precision_name = "fp32";
template <>
inline constexpr std::string_view precision_name<gradlane::bf16> = "bf16";
template <>
inline constexpr std::string_view precision_name<gradlane::fp16> = "fp16";

/// The program over a device for each of Values. run(std::type_identity<Value>, folder) calls
/// run_parity.
template <class... Values, class Run>
[[nodiscard]] int parity_main(int argc, char** argv, Run run) {
  try {
    auto const wanted = std::string_view{argc == 3 ? argv[2] : "fp32"};
    auto const try_it = [&]<class Value>(std::type_identity<Value> as) {
      if (wanted != precision_name<Value>) { return false; }
      run(as, argv[1]);
      return true;
    };
    if ((argc == 2 || argc == 3) && (try_it(std::type_identity<Values>{}) || ...)) { return 0; }
  } catch (std::exception const& problem) {
    std::cerr << argv[0] << ": " << problem.what() << '\n';
    return 1;
  }
  std::cerr << "usage: " << argv[0] << " FOLDER [PRECISION], of";
  ((std::cerr << ' ' << precision_name<Values>), ...);
  std::cerr << " (parity.py makes FOLDER and calls us)\n";
  return 2;
}

}  // namespace bert

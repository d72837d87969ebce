// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "config.hpp"       // for read_config
#include "cpu/device.hpp"   // for cpu::device
#include "model.hpp"        // for model
#include "safetensors.hpp"  // for safetensors, write_safetensors
#include "weights.hpp"      // for load_weights, named_tensors

#include <cstddef>     // for size_t
#include <cstdint>     // for int32_t, uint32_t
#include <filesystem>  // for path
#include <numeric>     // for iota
#include <span>        // for span
#include <string>      // for string
#include <vector>      // for vector

namespace bert {

/// Runs one batch so that parity.py can compare the results with those of Hugging Face.
///
/// Reads config.json, model.safetensors and batch.safetensors (I32 vectors under the names of
/// bert::batch's members) in `folder`, runs forward and backward in fp32 without dropout, and
/// writes result.safetensors there: "logits", "next_logits", "losses" (the two sums) and the
/// gradient of masked_lm / predictions + next_sentence / sequences under each parameter's name.
/// @throws file_system_error, damaged_file_error, gradlane::contract_error
inline void run_parity(std::filesystem::path const& folder) {
  auto const config = read_config(folder / "config.json");
  auto const list   = parameter_list{config};
  auto weights      = std::vector<float>(list.total());
  load_weights(folder / "model.safetensors", list, weights);

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

  auto device     = cpu::device<float>{};
  auto bert       = model<cpu::device<float>>{config, device, weights};
  auto const sums = bert.forward(data, dropout_sites{config, 0, 0, 0});
  auto const copy = [](matrix_view<float const> m) {
    return std::vector<float>(m.data, m.data + m.rows * m.cols);
  };
  auto const logits      = copy(bert.logits());
  auto const next_logits = copy(bert.next_logits());
  auto const losses      = std::vector<float>{static_cast<float>(sums.masked_lm),
                                              static_cast<float>(sums.next_sentence)};
  auto gradients         = std::vector<float>(list.total());
  auto spans             = std::vector<std::span<float>>{};
  for (auto i = std::size_t{0}; i < list.size(); ++i) {
    spans.push_back(list.slice(std::span<float>{gradients}, i));
  }
  bert.backward(1.0 / static_cast<double>(sums.predictions),
                1.0 / static_cast<double>(sums.sequences),
                spans,
                false,
                [](std::size_t) {});

  auto out = named_tensors(list, gradients);
  out.push_back(float_tensor("logits", {data.predicted.size(), config.vocab_size}, logits));
  out.push_back(float_tensor("next_logits", {data.next.size(), 2}, next_logits));
  out.push_back(float_tensor("losses", {2}, losses));
  write_safetensors(folder / "result.safetensors", out);
}

}  // namespace bert

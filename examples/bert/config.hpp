// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/error.hpp>  // for expects, contract_error

#include <nlohmann/json.hpp>

#include <cstddef>      // for size_t
#include <filesystem>   // for path
#include <fstream>      // for ifstream
#include <string>       // for string
#include <string_view>  // for string_view

namespace bert {

/// The sizes of a BERT, under the names that Hugging Face's config.json gives them.
struct model_config {
  std::size_t vocab_size              = 30522;
  std::size_t hidden_size             = 768;
  std::size_t num_hidden_layers       = 12;
  std::size_t num_attention_heads     = 12;
  std::size_t intermediate_size       = 3072;
  std::size_t max_position_embeddings = 512;
  std::size_t type_vocab_size         = 2;
  double layer_norm_eps               = 1e-12;
  double dropout                      = 0.1;  // of hidden states and of attention alike

  [[nodiscard]] std::size_t head_size() const { return hidden_size / num_attention_heads; }

  /// @throws gradlane::contract_error naming the field that no BERT can have.
  void check() const {
    using gradlane::expects;
    expects(vocab_size > 0, "model_config: vocab_size must be positive");
    expects(hidden_size > 0, "model_config: hidden_size must be positive");
    expects(num_attention_heads > 0 && hidden_size % num_attention_heads == 0,
            "model_config: num_attention_heads must divide hidden_size");
    expects(intermediate_size > 0, "model_config: intermediate_size must be positive");
    expects(max_position_embeddings > 0, "model_config: max_position_embeddings must be positive");
    expects(type_vocab_size > 0, "model_config: type_vocab_size must be positive");
    expects(layer_norm_eps > 0, "model_config: layer_norm_eps must be positive");
    expects(dropout >= 0 && dropout < 1, "model_config: dropout must lie in [0, 1)");
  }

  friend bool operator==(model_config const&, model_config const&) = default;
};

/// `mini` (the demo's), `base` and `large` (Devlin et al. 2018, arXiv:1810.04805).
/// @throws gradlane::contract_error for any other name.
[[nodiscard]] inline model_config preset(std::string_view name) {
  auto config = model_config{};
  if (name == "base") { return config; }
  if (name == "large") {
    config.hidden_size         = 1024;
    config.num_hidden_layers   = 24;
    config.num_attention_heads = 16;
    config.intermediate_size   = 4096;
    return config;
  }
  if (name == "mini") {
    config.vocab_size              = 8192;
    config.hidden_size             = 256;
    config.num_hidden_layers       = 4;
    config.num_attention_heads     = 4;
    config.intermediate_size       = 1024;
    config.max_position_embeddings = 128;
    config.dropout                 = 0;  // sees its text a few times only, too small to overfit
    return config;
  }
  throw gradlane::contract_error{"no model preset '" + std::string{name} +
                                 "': choose mini, base or large"};
}

/// Reads a config.json; a field that it lacks keeps BERT-base's value, others are ignored.
/// @throws gradlane::contract_error if the file cannot be read, is no JSON or names no BERT.
[[nodiscard]] inline model_config read_config(std::filesystem::path const& file) {
  auto stream = std::ifstream{file};
  gradlane::expects(stream.is_open(), "model config " + file.string() + ": cannot be opened");
  auto config = model_config{};
  try {
    auto const json   = nlohmann::json::parse(stream);
    auto const number = [&](char const* key, auto& field) { field = json.value(key, field); };
    number("vocab_size", config.vocab_size);
    number("hidden_size", config.hidden_size);
    number("num_hidden_layers", config.num_hidden_layers);
    number("num_attention_heads", config.num_attention_heads);
    number("intermediate_size", config.intermediate_size);
    number("max_position_embeddings", config.max_position_embeddings);
    number("type_vocab_size", config.type_vocab_size);
    number("layer_norm_eps", config.layer_norm_eps);
    number("hidden_dropout_prob", config.dropout);
  } catch (nlohmann::json::exception const& problem) {
    throw gradlane::contract_error{"model config " + file.string() + ": " + problem.what()};
  }
  config.check();
  return config;
}

/// The config.json that Hugging Face's BertForPreTraining reads back.
[[nodiscard]] inline std::string to_json(model_config const& config) {
  auto const json =
      nlohmann::ordered_json{{"model_type", "bert"},
                             {"architectures", {"BertForPreTraining"}},
                             {"vocab_size", config.vocab_size},
                             {"hidden_size", config.hidden_size},
                             {"num_hidden_layers", config.num_hidden_layers},
                             {"num_attention_heads", config.num_attention_heads},
                             {"intermediate_size", config.intermediate_size},
                             {"max_position_embeddings", config.max_position_embeddings},
                             {"type_vocab_size", config.type_vocab_size},
                             {"layer_norm_eps", config.layer_norm_eps},
                             {"hidden_dropout_prob", config.dropout},
                             {"attention_probs_dropout_prob", config.dropout},
                             {"hidden_act", "gelu"}};
  return json.dump(2) + "\n";
}

}  // namespace bert

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attention/philox.hpp"  // for philox
#include "config.hpp"            // for model_config

#include <cmath>        // for sqrt, log, cos, sin
#include <cstddef>      // for size_t
#include <cstdint>      // for uint32_t
#include <numbers>      // for pi
#include <span>         // for span
#include <string>       // for string, to_string
#include <string_view>  // for string_view
#include <utility>      // for move
#include <vector>       // for vector

namespace bert {

/// One tensor of the model. Matrices are row-major, linear weights (out, in).
struct parameter {
  std::string name;                // Hugging Face's
  std::vector<std::size_t> shape;  // 1 or 2 extents
  std::size_t offset;              // of the first element in the flat vector
  std::size_t size;
  bool decay;  // false for biases and LayerNorm, which weight decay leaves alone
};

/// All tensors in forward order; backward completes their gradients in exactly the reverse order.
///
/// They lie in one flat vector without gaps. In each layer the weights of query, key and value
/// come first and adjoin, then their biases: together they are one (3 H, H) matrix and one (3 H)
/// vector. The decoder of the masked-LM head is the word embedding itself, listed once.
class parameter_list {
 public:
  static constexpr std::size_t per_layer        = 16;
  static constexpr std::size_t word             = 0;
  static constexpr std::size_t position         = 1;
  static constexpr std::size_t token_type       = 2;
  static constexpr std::size_t embedding_weight = 3;  // of the LayerNorm
  static constexpr std::size_t embedding_bias   = 4;
  static constexpr std::size_t first_layer      = 5;

  /// Places inside a layer, to be added to layer(i).
  enum in_layer : std::size_t {
    query_weight,
    key_weight,
    value_weight,
    query_bias,
    key_bias,
    value_bias,
    attention_weight,
    attention_bias,
    attention_norm_weight,
    attention_norm_bias,
    intermediate_weight,
    intermediate_bias,
    output_weight,
    output_bias,
    output_norm_weight,
    output_norm_bias
  };
  /// Places inside the heads, to be added to heads().
  enum in_heads : std::size_t {
    transform_weight,
    transform_bias,
    transform_norm_weight,
    transform_norm_bias,
    decoder_bias,
    pooler_weight,
    pooler_bias,
    next_weight,
    next_bias
  };

  explicit parameter_list(model_config const& config) : layers_{config.num_hidden_layers} {
    config.check();
    auto const h = config.hidden_size;
    auto const i = config.intermediate_size;
    add("bert.embeddings.word_embeddings.weight", {config.vocab_size, h}, true);
    add("bert.embeddings.position_embeddings.weight", {config.max_position_embeddings, h}, true);
    add("bert.embeddings.token_type_embeddings.weight", {config.type_vocab_size, h}, true);
    add_norm("bert.embeddings.LayerNorm", h);
    for (auto layer = std::size_t{0}; layer < layers_; ++layer) {
      auto const prefix = "bert.encoder.layer." + std::to_string(layer) + ".";
      for (auto const* part : {"query", "key", "value"}) {
        add(prefix + "attention.self." + part + ".weight", {h, h}, true);
      }
      for (auto const* part : {"query", "key", "value"}) {
        add(prefix + "attention.self." + part + ".bias", {h}, false);
      }
      add_linear(prefix + "attention.output.dense", h, h);
      add_norm(prefix + "attention.output.LayerNorm", h);
      add_linear(prefix + "intermediate.dense", i, h);
      add_linear(prefix + "output.dense", h, i);
      add_norm(prefix + "output.LayerNorm", h);
    }
    add_linear("cls.predictions.transform.dense", h, h);
    add_norm("cls.predictions.transform.LayerNorm", h);
    add("cls.predictions.bias", {config.vocab_size}, false);
    add_linear("bert.pooler.dense", h, h);
    add_linear("cls.seq_relationship", 2, h);
  }

  [[nodiscard]] std::size_t layer(std::size_t index) const {
    return first_layer + index * per_layer;
  }
  [[nodiscard]] std::size_t heads() const { return layer(layers_); }

  [[nodiscard]] std::size_t size() const { return list_.size(); }
  [[nodiscard]] parameter const& operator[](std::size_t index) const { return list_[index]; }
  [[nodiscard]] auto begin() const { return list_.begin(); }
  [[nodiscard]] auto end() const { return list_.end(); }

  /// Elements of the flat vector: 110,106,428 for BERT-base.
  [[nodiscard]] std::size_t total() const { return total_; }

  /// The part of a flat vector, parameters or anything laid out like them, that belongs to one.
  template <class T>
  [[nodiscard]] std::span<T> slice(std::span<T> flat, std::size_t index) const {
    return flat.subspan(list_[index].offset, list_[index].size);
  }

 private:
  void add(std::string name, std::vector<std::size_t> shape, bool decay) {
    auto size = std::size_t{1};
    for (auto const extent : shape) { size *= extent; }
    list_.push_back({std::move(name), std::move(shape), total_, size, decay});
    total_ += size;
  }
  void add_linear(std::string const& prefix, std::size_t out, std::size_t in) {
    add(prefix + ".weight", {out, in}, true);
    add(prefix + ".bias", {out}, false);
  }
  void add_norm(std::string const& prefix, std::size_t size) {
    add(prefix + ".weight", {size}, false);
    add(prefix + ".bias", {size}, false);
  }

  std::size_t layers_;
  std::size_t total_ = 0;
  std::vector<parameter> list_;
};

namespace detail {

[[nodiscard]] inline bool is_norm_weight(parameter const& p) {
  return p.name.ends_with("LayerNorm.weight");
}

}  // namespace detail

/// BERT's initial values: Normal(0, 0.02) for matrices, 0 for biases, 1 and 0 for LayerNorm.
///
/// Row 0 of the word embedding (the padding token's) starts at 0, as Hugging Face has it. A pure
/// function of (seed, parameter, element): Philox with ten rounds, then Box and Muller.
inline void initialise(parameter_list const& list, std::span<float> flat, std::uint32_t seed) {
  for (auto index = std::size_t{0}; index < list.size(); ++index) {
    auto const& p     = list[index];
    auto const values = list.slice(flat, index);
    if (p.shape.size() == 1) {
      std::fill(values.begin(), values.end(), detail::is_norm_weight(p) ? 1.0F : 0.0F);
      continue;
    }
    for (auto i = std::size_t{0}; i < p.size; i += 2) {
      auto const pair   = static_cast<std::uint64_t>(i / 2);
      auto const words  = philox<10>({static_cast<std::uint32_t>(pair),
                                      static_cast<std::uint32_t>(pair >> 32U),
                                      static_cast<std::uint32_t>(index),
                                      0},
                                    seed,
                                    0);
      auto const radius = 0.02 * std::sqrt(-2 * std::log((words.x + 0.5) * 0x1p-32));
      auto const angle  = 2 * std::numbers::pi * (words.y + 0.5) * 0x1p-32;
      values[i]         = static_cast<float>(radius * std::cos(angle));
      if (i + 1 < p.size) { values[i + 1] = static_cast<float>(radius * std::sin(angle)); }
    }
  }
  auto const padding_row = list.slice(flat, parameter_list::word).first(list[0].shape[1]);
  std::fill(padding_row.begin(), padding_row.end(), 0.0F);
}

/// Weights by a formula that any language can follow exactly, for comparisons without a file.
///
/// Element j of parameter i: u = ((j * 2654435761 + (i + 1) * 40503 * 65536) mod 2^32) / 2^32 - 1/2
/// in double, times 0.1 for vectors and 0.2 for matrices, plus 1 for the weight of a LayerNorm,
/// then rounded to float.
inline void fill_by_formula(parameter_list const& list, std::span<float> flat) {
  for (auto index = std::size_t{0}; index < list.size(); ++index) {
    auto const& p      = list[index];
    auto const values  = list.slice(flat, index);
    auto const scale   = p.shape.size() == 1 ? 0.1 : 0.2;
    auto const centre  = detail::is_norm_weight(p) ? 1.0 : 0.0;
    auto const shifted = static_cast<std::uint32_t>(index + 1) * 40503U * 65536U;
    for (auto j = std::size_t{0}; j < p.size; ++j) {
      auto const bits = static_cast<std::uint32_t>(j) * 2654435761U + shifted;
      values[j]       = static_cast<float>(centre + scale * (bits * 0x1p-32 - 0.5));
    }
  }
}

}  // namespace bert

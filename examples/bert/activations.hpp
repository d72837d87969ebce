// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "batch.hpp"        // for batch_shape
#include "config.hpp"       // for model_config
#include "entropy.hpp"      // for entropy
#include "matrix_view.hpp"  // for matrix_view, norm_state

#include <algorithm>  // for max
#include <cstddef>    // for size_t
#include <span>       // for span
#include <vector>     // for vector

namespace bert {

/// The memory of one forward and backward on a device: grows to the largest batch seen, then stays.
///
/// T tokens, B sequences, P predictions of the current batch; H, I, A, V of the model.
template <class Device>
class activations {
 public:
  using value = typename Device::value;
  using real  = typename Device::real;

  /// A matrix with a fixed number of columns, whose rows follow the batch.
  class rows_buffer {
   public:
    explicit rows_buffer(std::size_t columns) : columns_{columns} {}
    void resize(std::size_t rows) {
      rows_           = rows;
      auto const size = Device::capacity(rows) * Device::stride(columns_);
      if (size > data_.size()) { data_ = typename Device::template buffer<value>(size); }
    }
    [[nodiscard]] std::size_t bytes() const { return data_.size() * sizeof(value); }
    [[nodiscard]] matrix_view<value> view() {
      auto result   = matrix_view<value>{data_.data(), rows_, columns_};
      result.stride = Device::stride(columns_);
      return result;
    }

   private:
    std::size_t columns_;
    std::size_t rows_ = 0;
    typename Device::template buffer<value> data_;
  };

  /// One real number to a row.
  class reals_buffer {
   public:
    void resize(std::size_t size) {
      size_ = size;
      if (size > data_.size()) { data_ = typename Device::template buffer<real>(size); }
    }
    [[nodiscard]] std::size_t bytes() const { return data_.size() * sizeof(real); }
    [[nodiscard]] std::span<real> view() { return std::span<real>{data_}.first(size_); }

   private:
    std::size_t size_ = 0;
    typename Device::template buffer<real> data_;
  };

  /// What a LayerNorm keeps.
  struct norm_buffer {
    rows_buffer normalised;  // (rows, H)
    reals_buffer inverse_deviation;

    explicit norm_buffer(std::size_t columns) : normalised{columns} {}
    void resize(std::size_t rows) {
      normalised.resize(rows);
      inverse_deviation.resize(rows);
    }
    [[nodiscard]] std::size_t bytes() const {
      return normalised.bytes() + inverse_deviation.bytes();
    }
    [[nodiscard]] norm_state<value, real> view() {
      return {normalised.view(), inverse_deviation.view().data()};
    }
  };

  struct layer {
    rows_buffer qkv;             // (T, 3 H)
    reals_buffer lse;            // (A, T)
    rows_buffer context;         // (T, H)
    norm_buffer attention_norm;  // (T, H)
    rows_buffer attention_out;   // (T, H)
    rows_buffer intermediate;    // (T, I) before bias and GELU
    rows_buffer activated;       // (T, I) after them
    norm_buffer output_norm;     // (T, H)
    rows_buffer out;             // (T, H)

    layer(std::size_t h, std::size_t i)
        : qkv{3 * h},
          context{h},
          attention_norm{h},
          attention_out{h},
          intermediate{i},
          activated{i},
          output_norm{h},
          out{h} {}
  };

  explicit activations(model_config const& config)
      : heads_{config.num_attention_heads},
        embedding_norm{config.hidden_size},
        embedded{config.hidden_size},
        branch{config.hidden_size},
        selected{config.hidden_size},
        transformed{config.hidden_size},
        transform_gelu{config.hidden_size},
        transform_norm{config.hidden_size},
        transform_out{config.hidden_size},
        logits{config.vocab_size},
        first{config.hidden_size},
        pooled{config.hidden_size},
        next_logits{2},
        gradient{config.hidden_size},
        gradient_more{config.hidden_size},
        gradient_context{config.hidden_size},
        gradient_qkv{3 * config.hidden_size},
        gradient_intermediate{config.intermediate_size},
        gradient_head{config.hidden_size},
        gradient_selected{config.hidden_size} {
    for (auto i = std::size_t{0}; i < config.num_hidden_layers; ++i) {
      layers.emplace_back(config.hidden_size, config.intermediate_size);
    }
  }

  /// Makes the buffers fit a batch.
  void resize(batch_shape const& shape) {
    visit([&](auto& buffer, rows_of kind) { buffer.resize(count(shape, kind)); });
  }

  /// Of the device's memory.
  [[nodiscard]] std::size_t bytes() {
    auto sum = entropies.size() * sizeof(entropy);
    visit([&](auto& buffer, rows_of) { sum += buffer.bytes(); });
    return sum;
  }

 private:
  /// What a buffer has one row for.
  enum class rows_of { tokens, heads_of_tokens, predictions, sequences, predictions_or_sequences };

  [[nodiscard]] std::size_t count(batch_shape const& shape, rows_of kind) const {
    switch (kind) {
      case rows_of::tokens:
        return shape.tokens;
      case rows_of::heads_of_tokens:
        return heads_ * shape.tokens;
      case rows_of::predictions:
        return shape.predictions;
      case rows_of::sequences:
        return shape.sequences;
      case rows_of::predictions_or_sequences:
        break;
    }
    return std::max(shape.predictions, shape.sequences);
  }

  /// Calls each(buffer, kind of its rows) for all buffers.
  template <class Each>
  void visit(Each&& each) {
    auto const all = [&](rows_of kind, auto&... buffers) { (each(buffers, kind), ...); };
    for (auto& l : layers) {
      all(rows_of::tokens, l.qkv, l.context, l.attention_norm, l.attention_out);
      all(rows_of::tokens, l.intermediate, l.activated, l.output_norm, l.out);
      all(rows_of::heads_of_tokens, l.lse);
    }
    all(rows_of::tokens, embedding_norm, embedded, branch);
    all(rows_of::tokens, gradient, gradient_more, gradient_context, gradient_qkv);
    all(rows_of::tokens, gradient_intermediate);
    all(rows_of::predictions, selected, transformed, transform_gelu, transform_norm);
    all(rows_of::predictions, transform_out, logits, lse);
    all(rows_of::sequences, first, pooled, next_logits, next_lse);
    all(rows_of::predictions_or_sequences, gradient_head, gradient_selected);
  }

  std::size_t heads_;

 public:
  norm_buffer embedding_norm;  // (T, H)
  rows_buffer embedded;        // (T, H)
  std::vector<layer> layers;
  rows_buffer branch;  // (T, H) a dense layer's result on its way into the next LayerNorm

  rows_buffer selected;        // (P, H) the masked rows of the last layer
  rows_buffer transformed;     // (P, H) before bias and GELU
  rows_buffer transform_gelu;  // (P, H)
  norm_buffer transform_norm;  // (P, H)
  rows_buffer transform_out;   // (P, H)
  rows_buffer logits;          // (P, V)
  reals_buffer lse;            // (P)

  rows_buffer first;        // (B, H) the [CLS] rows of the last layer
  rows_buffer pooled;       // (B, H)
  rows_buffer next_logits;  // (B, 2)
  reals_buffer next_lse;    // (B)

  // (2) of the masked-LM and of the next-sentence head
  typename Device::template buffer<entropy> entropies =
      typename Device::template buffer<entropy>(2);

  rows_buffer gradient;               // (T, H) of a layer's output, through the residual path
  rows_buffer gradient_more;          // (T, H) of the same, through the dense path
  rows_buffer gradient_context;       // (T, H)
  rows_buffer gradient_qkv;           // (T, 3 H)
  rows_buffer gradient_intermediate;  // (T, I)
  rows_buffer gradient_head;          // (P or B, H)
  rows_buffer gradient_selected;      // (P or B, H)
};

}  // namespace bert

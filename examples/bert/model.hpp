// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "activations.hpp"  // for activations
#include "batch.hpp"        // for batch, check
#include "config.hpp"       // for model_config
#include "dropout.hpp"      // for dropout_sites
#include "entropy.hpp"      // for entropy
#include "matrix_view.hpp"  // for matrix_view, weight_matrix
#include "parameters.hpp"   // for parameter_list
#include "step_value.hpp"   // for step_value

#include <gradlane/error.hpp>  // for expects, state_error

#include <concepts>  // for invocable
#include <cstddef>   // for size_t
#include <optional>  // for optional
#include <span>      // for span

namespace bert {

/// Sums over one batch; divide by counts, summed over ranks, for means.
struct losses {
  double masked_lm         = 0;
  std::size_t predictions  = 0;
  std::size_t correct      = 0;  // predictions whose label has the largest logit
  double next_sentence     = 0;
  std::size_t sequences    = 0;  // that had a next-sentence label
  std::size_t next_correct = 0;
};

/// Counts, with the sums that a device has found.
[[nodiscard]] inline losses with_sums(losses counts,
                                      entropy const& masked_lm,
                                      entropy const& next_sentence) {
  counts.masked_lm = masked_lm.loss;
  counts.correct   = masked_lm.correct;
  if (counts.sequences > 0) {
    counts.next_sentence = next_sentence.loss;
    counts.next_correct  = next_sentence.correct;
  }
  return counts;
}

inline losses& operator+=(losses& sum, losses const& more) {
  sum.masked_lm += more.masked_lm;
  sum.predictions += more.predictions;
  sum.correct += more.correct;
  sum.next_sentence += more.next_sentence;
  sum.sequences += more.sequences;
  sum.next_correct += more.next_correct;
  return sum;
}

/// BERT with both pretraining heads as Hugging Face's BertForPreTraining computes it: LayerNorm
/// after each residual sum, GELU by erf, decoder tied to the word embedding.
///
/// One exception is only apparent: token 0 ([PAD]) trains through the decoder but not through the
/// input look-up, as Hugging Face's padding_idx has it. No padding is ever computed here, so it
/// matters only to data whose text holds token 0.
///
/// A Device supplies the operations (reference.hpp says what they mean) and memory. Not
/// thread-safe; a forward may be followed by one backward, before the parameters change.
template <class Device>
class model {
 public:
  using value     = typename Device::value;
  using real      = typename Device::real;
  using gradients = std::span<std::span<real> const>;  // one for each parameter, in list order

  /// @param parameters  the flat vector of list(), which must outlive the model.
  /// @throws gradlane::contract_error if its size is not list().total().
  model(model_config const& config, Device& device, std::span<real const> parameters)
      : config_{config}, list_{config}, device_{device}, parameters_{parameters}, work_{config} {
    gradlane::expects(parameters.size() == list_.total(),
                      "model: the flat vector of parameters has the wrong size");
    refresh();
  }

  [[nodiscard]] model_config const& config() const { return config_; }
  [[nodiscard]] parameter_list const& list() const { return list_; }
  [[nodiscard]] Device& device() const { return device_; }

  /// To be called after every change of the parameters, before the next forward.
  void refresh() {
    device_.load(parameters_);
    forward_done_ = false;
  }
  /// The same where parameters [first, last) alone have changed.
  void refresh(std::size_t first, std::size_t last) {
    auto const begin = list_[first].offset;
    auto const end   = last < list_.size() ? list_[last].offset : list_.total();
    device_.load_part(parameters_, begin, end - begin);
    forward_done_ = false;
  }

  /// Makes room, so that batches up to this size allocate nothing.
  /// @returns the bytes of the device's memory that the model then has, without its parameters.
  std::size_t reserve(batch_shape const& largest) {
    work_.resize(largest);
    return work_.bytes() + device_.reserve(config_, largest, rows_);
  }

  /// Takes over a batch, which need not outlive the call.
  /// @throws gradlane::contract_error as check(batch) does.
  void take(batch const& data) {
    check(data, config_);
    device_.assign(data, rows_);
    work_.resize(data.shape());
    forward_done_ = false;
  }

  /// Runs the batch taken last, without waiting for a device that works on its own. Like backward,
  /// it enqueues nothing but work on the device, which may be captured.
  /// @param sites   the dropout of this step, with probability 0 for evaluation.
  /// @param before  called as before(first, last) when what is enqueued next is the first to read
  ///                parameters [first, last): for embeddings, each layer, and the heads.
  template <std::invocable<std::size_t, std::size_t> Before>
  void start_forward(dropout_sites const& sites, Before&& before) {
    sites_ = sites;
    before(0, list_.first_layer);
    forward_embeddings();
    for (auto i = std::size_t{0}; i < config_.num_hidden_layers; ++i) {
      before(list_.layer(i), list_.layer(i + 1));
      forward_layer(i);
    }
    before(list_.heads(), list_.size());
    forward_masked_lm();
    if (has_next()) { forward_next_sentence(); }
    forward_done_ = true;
  }
  void start_forward(dropout_sites const& sites) {
    start_forward(sites, [](std::size_t, std::size_t) {});
  }

  /// Waits for the losses of the latest forward; sums, so that any split of a batch gives the same
  /// total.
  [[nodiscard]] losses sync_losses() {
    auto const* const sums = work_.entropies.data();
    auto const next        = has_next() ? device_.sync_read(sums + 1) : entropy{};
    return with_sums(counts(), device_.sync_read(sums), next);
  }

  /// For who reads the losses later: the counts of the batch taken last,
  [[nodiscard]] losses counts() const {
    auto result        = losses{};
    result.predictions = rows_.data().counted_predictions();
    result.sequences   = rows_.data().counted_next();
    return result;
  }
  /// and the sums of its two heads in the device's memory, from its forward to the next; see
  /// with_sums.
  [[nodiscard]] std::span<entropy const> entropies() const {
    return {work_.entropies.data(), work_.entropies.size()};
  }

  /// All of this in one.
  losses forward(batch const& data, dropout_sites const& sites) {
    take(data);
    start_forward(sites);
    return sync_losses();
  }

  /// Gradients of masked_lm_scale * losses.masked_lm + next_scale * losses.next_sentence.
  ///
  /// @param target      written as a whole, or added to if `accumulate`.
  /// @param ready       called as ready(index) as soon as a parameter's gradient is complete: once
  ///                    for each, in exactly the reverse order of list().
  /// @throws gradlane::state_error without a forward before it.
  template <std::invocable<std::size_t> Ready>
  void backward(step_value<double> masked_lm_scale,
                step_value<double> next_scale,
                gradients target,
                bool accumulate,
                Ready&& ready) {
    if (!forward_done_) { throw gradlane::state_error{"model: backward needs a forward first"}; }
    check_target(target);
    forward_done_ = false;  // logits are about to be overwritten
    auto step     = backward_pass<Ready>{target, accumulate, ready};
    zero_rows(work_.gradient.view());
    backward_next_sentence(step, next_scale);
    backward_masked_lm(step, masked_lm_scale);
    auto more = matrix_view<value>{};  // nothing comes through a dense path yet
    for (auto i = config_.num_hidden_layers; i-- > 0;) {
      backward_layer(step, i, more);
      more = work_.gradient_more.view();
    }
    backward_embeddings(step, more);
  }

  /// (P, V) of the latest forward, until backward. In the device's memory.
  [[nodiscard]] matrix_view<value const> logits() { return work_.logits.view(); }
  /// (B, 2) of the latest forward, until backward; only where the batch had labels for them.
  [[nodiscard]] matrix_view<value const> next_logits() { return work_.next_logits.view(); }

 private:
  using layer_buffers = typename activations<Device>::layer;
  using in_layer      = parameter_list::in_layer;
  using in_heads      = parameter_list::in_heads;

  template <class Ready>
  struct backward_pass {
    gradients target;
    bool accumulate;
    Ready& ready;
  };

  [[nodiscard]] std::span<real const> tensor(std::size_t index) const {
    return list_.slice(parameters_, index);
  }
  /// `count` vectors that adjoin in the flat vector, as one.
  [[nodiscard]] std::span<real const> tensors(std::size_t index, std::size_t count) const {
    return parameters_.subspan(list_[index].offset, count * list_[index].size);
  }
  [[nodiscard]] weight_matrix weight(std::size_t index, std::size_t count = 1) const {
    auto const& p = list_[index];
    return {p.offset, count * p.shape[0], p.shape[1]};
  }
  [[nodiscard]] bool has_next() const { return !rows_.data().next.empty(); }

  void zero_rows(matrix_view<value> x) {
    device_.zero(std::span<value>{x.data, x.rows * x.stride});
  }

  void check_target(gradients target) const {
    gradlane::expects(target.size() == list_.size(), "model: needs one gradient per parameter");
    for (auto i = std::size_t{0}; i < target.size(); ++i) {
      if (target[i].size() != list_[i].size) {
        throw gradlane::contract_error{"model: the gradient of " + list_[i].name +
                                       " has the wrong size"};
      }
    }
  }

  void forward_embeddings() {
    device_.embed(rows_,
                  tensor(list_.word),
                  tensor(list_.position),
                  tensor(list_.token_type),
                  tensor(list_.embedding_weight),
                  tensor(list_.embedding_bias),
                  config_.layer_norm_eps,
                  sites_->embeddings(),
                  work_.embedding_norm.view(),
                  work_.embedded.view());
  }

  void forward_layer(std::size_t i) {
    auto const eps = config_.layer_norm_eps;
    auto const at  = list_.layer(i);
    auto const x   = input_of(i);
    auto& l        = work_.layers[i];
    device_.linear(x,
                   weight(at + in_layer::query_weight, 3),
                   tensors(at + in_layer::query_bias, 3),
                   l.qkv.view());
    device_.attention(rows_,
                      l.qkv.view(),
                      config_.num_attention_heads,
                      sites_->attention_heads(i),
                      l.context.view(),
                      l.lse.view());
    device_.linear(
        l.context.view(), weight(at + in_layer::attention_weight), {}, work_.branch.view());
    device_.add_norm(rows_,
                     work_.branch.view(),
                     tensor(at + in_layer::attention_bias),
                     x,
                     tensor(at + in_layer::attention_norm_weight),
                     tensor(at + in_layer::attention_norm_bias),
                     eps,
                     sites_->attention_output(i),
                     l.attention_norm.view(),
                     l.attention_out.view());
    device_.linear(l.attention_out.view(),
                   weight(at + in_layer::intermediate_weight),
                   {},
                   l.intermediate.view());
    device_.gelu(
        l.intermediate.view(), tensor(at + in_layer::intermediate_bias), l.activated.view());
    device_.linear(
        l.activated.view(), weight(at + in_layer::output_weight), {}, work_.branch.view());
    device_.add_norm(rows_,
                     work_.branch.view(),
                     tensor(at + in_layer::output_bias),
                     l.attention_out.view(),
                     tensor(at + in_layer::output_norm_weight),
                     tensor(at + in_layer::output_norm_bias),
                     eps,
                     sites_->feed_forward_output(i),
                     l.output_norm.view(),
                     l.out.view());
  }

  [[nodiscard]] matrix_view<value> input_of(std::size_t layer) {
    return layer == 0 ? work_.embedded.view() : work_.layers[layer - 1].out.view();
  }

  void forward_masked_lm() {
    auto const at = list_.heads();
    device_.gather(input_of(config_.num_hidden_layers), rows_.predicted(), work_.selected.view());
    device_.linear(work_.selected.view(),
                   weight(at + in_heads::transform_weight),
                   {},
                   work_.transformed.view());
    device_.gelu(work_.transformed.view(),
                 tensor(at + in_heads::transform_bias),
                 work_.transform_gelu.view());
    device_.norm(work_.transform_gelu.view(),
                 tensor(at + in_heads::transform_norm_weight),
                 tensor(at + in_heads::transform_norm_bias),
                 config_.layer_norm_eps,
                 work_.transform_norm.view(),
                 work_.transform_out.view());
    device_.linear(work_.transform_out.view(),
                   weight(list_.word),
                   tensor(at + in_heads::decoder_bias),
                   work_.logits.view());
    device_.cross_entropy(
        work_.logits.view(), rows_.labels(), work_.lse.view(), work_.entropies.data());
  }

  void forward_next_sentence() {
    auto const at = list_.heads();
    device_.gather(input_of(config_.num_hidden_layers), rows_.first_rows(), work_.first.view());
    device_.linear(
        work_.first.view(), weight(at + in_heads::pooler_weight), {}, work_.pooled.view());
    device_.tanh(work_.pooled.view(), tensor(at + in_heads::pooler_bias), work_.pooled.view());
    device_.linear(work_.pooled.view(),
                   weight(at + in_heads::next_weight),
                   tensor(at + in_heads::next_bias),
                   work_.next_logits.view());
    device_.cross_entropy(
        work_.next_logits.view(), rows_.next(), work_.next_lse.view(), work_.entropies.data() + 1);
  }

  template <class Step>
  void backward_next_sentence(Step& step, step_value<double> scale) {
    auto const at  = list_.heads();
    auto const acc = step.accumulate;
    if (!has_next()) {
      for (auto i = std::size_t{in_heads::next_bias} + 1; i-- > in_heads::pooler_weight;) {
        if (!acc) { device_.zero(step.target[at + i]); }
        step.ready(at + i);
      }
      return;
    }
    auto const logits = work_.next_logits.view();
    auto const pooled = rows_of(work_.gradient_head, logits.rows);
    auto const first  = rows_of(work_.gradient_selected, logits.rows);
    device_.cross_entropy_gradient(logits, rows_.next(), work_.next_lse.view(), scale);
    device_.column_sums(logits, step.target[at + in_heads::next_bias], acc);
    step.ready(at + in_heads::next_bias);
    weight_gradient(step, logits, work_.pooled.view(), at + in_heads::next_weight);
    device_.linear_input_gradient(logits, weight(at + in_heads::next_weight), pooled);
    device_.tanh_gradient(
        work_.pooled.view(), pooled, pooled, step.target[at + in_heads::pooler_bias], acc);
    step.ready(at + in_heads::pooler_bias);
    weight_gradient(step, pooled, work_.first.view(), at + in_heads::pooler_weight);
    device_.linear_input_gradient(pooled, weight(at + in_heads::pooler_weight), first);
    device_.scatter_add(first, rows_.first_rows(), work_.gradient.view());
  }

  /// Leaves the decoder's part of the word embedding's gradient, which is complete only at the end.
  template <class Step>
  void backward_masked_lm(Step& step, step_value<double> scale) {
    auto const at       = list_.heads();
    auto const acc      = step.accumulate;
    auto const logits   = work_.logits.view();
    auto const hidden   = rows_of(work_.gradient_head, logits.rows);
    auto const selected = rows_of(work_.gradient_selected, logits.rows);
    device_.cross_entropy_gradient(logits, rows_.labels(), work_.lse.view(), scale);
    device_.column_sums(logits, step.target[at + in_heads::decoder_bias], acc);
    step.ready(at + in_heads::decoder_bias);
    device_.linear_weight_gradient(
        logits, work_.transform_out.view(), step.target[list_.word], acc);
    device_.linear_input_gradient(logits, weight(list_.word), hidden);
    device_.norm_gradient(hidden,
                          tensor(at + in_heads::transform_norm_weight),
                          work_.transform_norm.view(),
                          hidden,
                          step.target[at + in_heads::transform_norm_weight],
                          step.target[at + in_heads::transform_norm_bias],
                          acc);
    step.ready(at + in_heads::transform_norm_bias);
    step.ready(at + in_heads::transform_norm_weight);
    device_.gelu_gradient(work_.transformed.view(),
                          tensor(at + in_heads::transform_bias),
                          hidden,
                          hidden,
                          step.target[at + in_heads::transform_bias],
                          acc);
    step.ready(at + in_heads::transform_bias);
    weight_gradient(step, hidden, work_.selected.view(), at + in_heads::transform_weight);
    device_.linear_input_gradient(hidden, weight(at + in_heads::transform_weight), selected);
    device_.scatter_add(selected, rows_.predicted(), work_.gradient.view());
  }

  /// Takes the gradient of the layer's output as work_.gradient + more, leaves that of its input
  /// as work_.gradient + work_.gradient_more.
  template <class Step>
  void backward_layer(Step& step, std::size_t i, matrix_view<value> more) {
    auto const at           = list_.layer(i);
    auto const acc          = step.accumulate;
    auto& l                 = work_.layers[i];
    auto const gradient     = work_.gradient.view();
    auto const branch       = work_.gradient_more.view();
    auto const intermediate = work_.gradient_intermediate.view();
    auto const qkv          = work_.gradient_qkv.view();
    device_.add_norm_gradient(rows_,
                              gradient,
                              more,
                              tensor(at + in_layer::output_norm_weight),
                              sites_->feed_forward_output(i),
                              l.output_norm.view(),
                              gradient,
                              branch,
                              step.target[at + in_layer::output_bias],
                              step.target[at + in_layer::output_norm_weight],
                              step.target[at + in_layer::output_norm_bias],
                              acc);
    step.ready(at + in_layer::output_norm_bias);
    step.ready(at + in_layer::output_norm_weight);
    step.ready(at + in_layer::output_bias);
    weight_gradient(step, branch, l.activated.view(), at + in_layer::output_weight);
    device_.linear_input_gradient(branch, weight(at + in_layer::output_weight), intermediate);
    device_.gelu_gradient(l.intermediate.view(),
                          tensor(at + in_layer::intermediate_bias),
                          intermediate,
                          intermediate,
                          step.target[at + in_layer::intermediate_bias],
                          acc);
    step.ready(at + in_layer::intermediate_bias);
    weight_gradient(step, intermediate, l.attention_out.view(), at + in_layer::intermediate_weight);
    device_.linear_input_gradient(intermediate, weight(at + in_layer::intermediate_weight), branch);
    device_.add_norm_gradient(rows_,
                              gradient,
                              branch,
                              tensor(at + in_layer::attention_norm_weight),
                              sites_->attention_output(i),
                              l.attention_norm.view(),
                              gradient,
                              branch,
                              step.target[at + in_layer::attention_bias],
                              step.target[at + in_layer::attention_norm_weight],
                              step.target[at + in_layer::attention_norm_bias],
                              acc);
    step.ready(at + in_layer::attention_norm_bias);
    step.ready(at + in_layer::attention_norm_weight);
    step.ready(at + in_layer::attention_bias);
    weight_gradient(step, branch, l.context.view(), at + in_layer::attention_weight);
    device_.linear_input_gradient(
        branch, weight(at + in_layer::attention_weight), work_.gradient_context.view());
    device_.attention_gradient(rows_,
                               l.qkv.view(),
                               config_.num_attention_heads,
                               sites_->attention_heads(i),
                               l.context.view(),
                               l.lse.view(),
                               work_.gradient_context.view(),
                               qkv);
    auto const h = config_.hidden_size;
    for (auto part = std::size_t{3}; part-- > 0;) {
      auto const index = at + in_layer::query_bias + part;
      device_.column_sums(qkv.columns(part * h, h), step.target[index], acc);
      step.ready(index);
    }
    for (auto part = std::size_t{3}; part-- > 0;) {
      weight_gradient(
          step, qkv.columns(part * h, h), input_of(i), at + in_layer::query_weight + part);
    }
    device_.linear_input_gradient(qkv, weight(at + in_layer::query_weight, 3), branch);
  }

  template <class Step>
  void backward_embeddings(Step& step, matrix_view<value> more) {
    device_.embed_gradient(rows_,
                           work_.gradient.view(),
                           more,
                           tensor(list_.embedding_weight),
                           sites_->embeddings(),
                           work_.embedding_norm.view(),
                           step.target[list_.word],
                           step.target[list_.position],
                           step.target[list_.token_type],
                           step.target[list_.embedding_weight],
                           step.target[list_.embedding_bias],
                           step.accumulate);
    for (auto i = list_.first_layer; i-- > 0;) { step.ready(i); }
  }

  template <class Step>
  void weight_gradient(Step& step,
                       matrix_view<value const> dy,
                       matrix_view<value const> x,
                       std::size_t index) {
    device_.linear_weight_gradient(dy, x, step.target[index], step.accumulate);
    step.ready(index);
  }

  [[nodiscard]] static matrix_view<value> rows_of(typename activations<Device>::rows_buffer& buffer,
                                                  std::size_t rows) {
    auto view = buffer.view();
    view.rows = rows;
    return view;
  }

  model_config config_;
  parameter_list list_;
  Device& device_;
  std::span<real const> parameters_;
  activations<Device> work_;
  typename Device::index rows_;
  std::optional<dropout_sites> sites_;  // of the latest forward
  bool forward_done_ = false;
};

}  // namespace bert

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../data/sample_source.hpp"  // for make_batch, sample_source
#include "../dropout.hpp"             // for dropout_sites
#include "../model.hpp"               // for losses, model
#include "../optimizer.hpp"           // for optimizer
#include "../parameters.hpp"          // for initialise, parameter_list
#include "balanced_batches.hpp"       // for balanced_batches, expect_dealable
#include "reducer.hpp"                // for make_reducer, plan_gradients, reducer
#include "settings.hpp"               // for training_settings
#include "stopwatch.hpp"              // for step_times, stopwatch
#include "totals.hpp"                 // for mean_losses, rank_totals

#include <gradlane/balance/deal.hpp>      // for deal, sample
#include <gradlane/clip/report.hpp>       // for step_report
#include <gradlane/gradient_buckets.hpp>  // for gradient_buckets
#include <gradlane/host/device.hpp>       // for device

#include <algorithm>  // for count_if, min
#include <array>      // for array
#include <cstddef>    // for size_t
#include <cstdint>    // for uint64_t
#include <memory>     // for unique_ptr
#include <optional>   // for optional
#include <span>       // for span
#include <string>     // for to_string
#include <vector>     // for vector

namespace bert {

/// What one optimizer step did, over all ranks.
struct step_result {
  std::uint64_t step = 0;
  mean_losses losses;
  double learning_rate    = 0;
  double gradient_norm    = 0;  // of this rank's gradient; of the reduced one with clip_mode::after
  double clipped_fraction = 0;  // of buckets, or steps, so far
  bool skipped            = false;
  double tokens           = 0;
  double largest_over_mean = 1;  // tokens of the rank that has most, over the mean
  step_times times;
};

/// Trains a model on the ranks of a communicator, each with a Device of its own.
///
/// What a run computes does not depend on how many ranks there are, on micro-steps, or on which
/// rank gets which sample, up to the order of sums: losses are sums divided by counts over all
/// ranks, dropout is keyed by sample, and each sample is used once. With clipping before the
/// reduction, which bounds what a rank contributes, this holds for the layout fixed.
template <class Device, class Comm>
class trainer {
 public:
  /// Collective. The communicator, lane and data must outlive the trainer.
  /// @throws input_error for a batch that cannot be dealt to so many ranks.
  trainer(training_settings const& settings,
          gradlane::host::device& lane,
          Comm& comm,
          sample_source const& data)
      : settings_{settings},
        list_{settings.model},
        data_{data},
        ranks_{static_cast<std::size_t>(comm.size())},
        rank_{static_cast<std::size_t>(comm.rank())},
        weights_(list_.total()),
        optimizer_{list_, settings.update},
        totals_{lane, comm.split(0, comm.rank()), settings.patience},
        batches_{settings_, data, lane, comm.split(0, comm.rank())},
        buckets_{lane, plan_gradients(list_, settings.bucket_bytes)},
        reducer_{make_reducer(buckets_, comm, settings)},
        compute_{lane.make_stream()} {
    settings.rate.check();
    expect_dealable(settings.batch_size, ranks_, settings.micro_steps);
    initialise(list_, weights_, settings.seed);
    model_.emplace(settings.model, device_, std::span<float const>{weights_});
    for (auto i = std::size_t{0}; i < list_.size(); ++i) {
      gradients_.push_back(buckets_.gradient<float>(i));
    }
  }

  /// One optimizer step over all ranks.
  step_result step() {
    auto watch           = stopwatch{};
    auto result          = step_result{};
    result.step          = step_;
    result.learning_rate = settings_.rate.at(step_);
    auto const left      = settings_.rate.steps > step_ ? settings_.rate.steps - step_ : 1;
    auto const work      = batches_.next(left, result.times);
    watch.skip();
    auto const scales = sync_scales(work);
    watch.lap(result.times.wait);

    reducer_->begin(compute_);
    auto const own = forward_backward(work, scales);
    watch.lap(result.times.compute);
    reducer_->finish(compute_, settings_.patience);
    watch.lap(result.times.wait);

    optimizer_.step(weights_, gradients_, result.learning_rate, *reducer_->status());
    model_->refresh();
    watch.lap(result.times.optimizer);
    report(work, own, result);
    ++step_;
    watch.lap(result.times.wait);
    result.times.total = watch.total();
    return result;
  }

  /// Mean losses over at most `limit` samples of `data`, dealt to the ranks; no dropout.
  [[nodiscard]] mean_losses evaluate(sample_source const& data, std::size_t limit) {
    auto samples = std::vector<gradlane::balance::sample>{};
    for (auto i = std::uint32_t{0}; i < std::min(limit, data.size()); ++i) {
      samples.push_back({.id = i, .length = static_cast<std::uint32_t>(data.length(i))});
    }
    auto const no_dropout = dropout_sites{settings_.model, 0.0, settings_.seed, 0};
    auto const pieces     = samples.size() / settings_.batch_size + 1;
    auto const work       = gradlane::balance::deal(samples, {.ranks = ranks_, .steps = pieces});
    auto sum              = losses{};
    for (auto piece = std::size_t{0}; piece < pieces; ++piece) {
      sum += model_->forward(make_batch(data, work.bin(piece, rank_), 0), no_dropout);
    }
    return totals_.sync_mean(sum);
  }

  /// Goes on where another run stood; its weights and optimizer must have been put in place.
  void resume(std::uint64_t step, data_place const& at) {
    batches_.restore(at);
    step_ = step;
    model_->refresh();
  }

  [[nodiscard]] std::uint64_t next_step() const { return step_; }
  [[nodiscard]] parameter_list const& list() const { return list_; }
  [[nodiscard]] std::span<float> weights() { return weights_; }
  [[nodiscard]] optimizer& update() { return optimizer_; }
  [[nodiscard]] data_place place() const { return batches_.place(); }
  [[nodiscard]] rank_totals<Comm>& totals() { return totals_; }
  [[nodiscard]] std::string describe() const { return batches_.describe() + reducer_->describe(); }

 private:
  struct loss_scales {
    double masked_lm;
    double next_sentence;
  };

  /// 1 / counts over all ranks and micro-steps, times the ranks that the reduction divides by.
  [[nodiscard]] loss_scales sync_scales(std::vector<batch> const& work) {
    auto counts = std::array{0.0, 0.0};
    for (auto const& b : work) {
      counts[0] += static_cast<double>(b.prediction_count());
      counts[1] += static_cast<double>(b.next.size());
    }
    totals_.sync_sum(counts);
    auto const share = [&](double count) {
      return count > 0 ? static_cast<double>(ranks_) / count : 0.0;
    };
    return {.masked_lm = share(counts[0]), .next_sentence = share(counts[1])};
  }

  /// The gradients of all micro-steps, added up where they are reduced; each is marked ready, and
  /// so may be on its way, when backward of the last micro-step has completed it.
  losses forward_backward(std::vector<batch> const& work, loss_scales const& scales) {
    auto const sites = dropout_sites{settings_.model,
                                     settings_.model.dropout,
                                     settings_.seed,
                                     static_cast<std::uint32_t>(step_)};
    auto sum         = losses{};
    for (auto m = std::size_t{0}; m < work.size(); ++m) {
      auto const last = m + 1 == work.size();
      sum += model_->forward(work[m], sites);
      model_->backward(
          scales.masked_lm, scales.next_sentence, gradients_, m > 0, [&](std::size_t parameter) {
            if (last) { reducer_->ready(parameter, compute_); }
          });
    }
    return sum;
  }

  [[nodiscard]] double clipped_fraction(gradlane::step_report const& numbers) const {
    if (settings_.clip != clip_mode::bucketwise) { return numbers.clipped ? 1.0 : 0.0; }
    auto const clipped = std::count_if(numbers.buckets.begin(),
                                       numbers.buckets.end(),
                                       [](auto const& bucket) { return bucket.clipped; });
    return static_cast<double>(clipped) / static_cast<double>(numbers.buckets.size());
  }

  void report(std::vector<batch> const& work, losses const& own, step_result& result) {
    auto const& numbers     = reducer_->sync_report();
    result.gradient_norm    = numbers.norm;
    result.clipped_fraction = clipped_fraction(numbers);
    result.skipped          = numbers.skipped;
    result.losses           = totals_.sync_mean(own);
    auto tokens             = std::array{0.0};
    for (auto const& b : work) { tokens[0] += static_cast<double>(b.token_count()); }
    auto largest = tokens;
    totals_.sync_sum(tokens);
    totals_.sync_max(largest);
    result.tokens            = tokens[0];
    result.largest_over_mean = largest[0] * static_cast<double>(ranks_) / tokens[0];
  }

  training_settings settings_;
  parameter_list list_;
  sample_source const& data_;
  std::size_t ranks_;
  std::size_t rank_;
  std::uint64_t step_{0};
  std::vector<float> weights_;  // flat, as list_ lays it out
  Device device_;
  std::optional<model<Device>> model_;
  optimizer optimizer_;
  rank_totals<Comm> totals_;
  balanced_batches<Comm> batches_;
  gradlane::gradient_buckets<gradlane::host::device> buckets_;
  std::vector<std::span<float>> gradients_;  // by parameter, in the buckets
  std::unique_ptr<reducer<Comm>> reducer_;
  gradlane::host::stream compute_;
};

}  // namespace bert

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../batch.hpp"               // for batch
#include "../data/place.hpp"          // for data_place
#include "../data/sample_source.hpp"  // for make_batch, sample_source
#include "../dropout.hpp"             // for dropout_sites
#include "../loss_scale.hpp"          // for after_step, expect_not_diverged, loss_scale_state
#include "../model.hpp"               // for losses, model
#include "../model_state.hpp"         // for model_state
#include "../pad.hpp"                 // for pad, rounded_up
#include "../parameters.hpp"          // for initialise, parameter_list
#include "../step_numbers.hpp"        // for step_numbers
#include "balanced_batches.hpp"       // for balanced_batches, expect_dealable
#include "make_weight_update.hpp"     // for make_weight_update
#include "settings.hpp"               // for by_own_batch, training_settings
#include "stopwatch.hpp"              // for step_times, stopwatch
#include "totals.hpp"                 // for mean_losses, rank_totals
#include "weight_update.hpp"          // for weight_update

#include <gradlane/balance/deal.hpp>  // for deal, sample
#include <gradlane/clip/report.hpp>   // for mean_orthogonality
#include <gradlane/error.hpp>         // for expects

#include <algorithm>  // for max, min
#include <array>      // for array
#include <cstddef>    // for size_t
#include <cstdint>    // for uint64_t
#include <deque>      // for deque
#include <limits>     // for numeric_limits
#include <memory>     // for unique_ptr
#include <optional>   // for optional
#include <span>       // for span
#include <string>     // for string
#include <utility>    // for exchange, move
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
  double largest_over_mean = 1;         // tokens of the rank that has most, over the mean
  std::optional<double> orthogonality;  // of what Adasum joined: the mean over parameters
  step_times times;
};

/// Trains a model on the ranks of a place.
///
/// What a run computes does not depend on how many ranks there are, on micro-steps, or on which
/// rank gets which sample, up to the order of sums: losses are sums divided by counts over all
/// ranks, dropout is keyed by sample, and each sample is used once. With clipping before the
/// reduction, which bounds what a rank contributes, this holds for the layout fixed; so it does
/// with Adasum, where each rank has a loss of its own.
template <class Place>
class trainer {
 public:
  /// Collective. What the place refers to and the data must outlive the trainer.
  /// @throws input_error for settings that do not go together, and for a batch that cannot be dealt
  ///   to so many ranks.
  trainer(training_settings const& settings, Place place, sample_source const& data)
      : settings_{checked(settings)},
        place_{std::move(place)},
        list_{settings.model},
        data_{data},
        ranks_{static_cast<std::size_t>(place_.host_ranks.size())},
        rank_{static_cast<std::size_t>(place_.host_ranks.rank())},
        totals_{place_.host, split_ranks(), settings.patience},
        batches_{settings_, data, place_.host, place_.make_samples()},
        compute_{place_.gradients.make_stream()},
        weights_{place_.make_floats(initial_weights(), compute_)},
        device_{place_.make_device(compute_)},
        model_{settings.model, device_, weights()},
        steps_{place_.make_steps(settings, compute_)},
        update_{make_weight_update(
            place_, list_, settings_, weights(), model_, steps_.loss_scale(), compute_)},
        outcomes_{place_.make_outcomes(settings)} {
    if (settings.loss_scale) { loss_scale_ = loss_scale_state{settings.loss_scale->initial, 0}; }
    expect_dealable(settings.batch_size, ranks_, settings.micro_steps);
  }

  /// One optimizer step over all ranks.
  step_result step() {
    start_step();
    return sync_result();
  }

  /// Puts a step under way; waits for no device that works on its own.
  void start_step() {
    auto watch      = stopwatch{};
    auto begun      = step_result{};
    begun.step      = step_;
    auto const left = settings_.rate.steps > step_ ? settings_.rate.steps - step_ : 1;
    auto work       = batches_.next(left, begun.times);
    watch.skip();
    auto const numbers  = sync_numbers(work);
    begun.learning_rate = numbers.learning_rate;
    for (auto const& b : work) { begun.tokens += static_cast<double>(b.token_count()); }
    fit(work);
    watch.lap(begun.times.wait);

    steps_.begin(numbers, compute_);
    auto const sites =
        steps_.sites({settings_.model, settings_.model.dropout, settings_.seed, numbers.step});
    for (auto m = std::size_t{0}; m < work.size(); ++m) {
      auto const first = m == 0;
      auto const last  = m + 1 == work.size();
      model_.take(work[m]);
      watch.lap(begun.times.compute);
      steps_.run(work[m].shape(), first, last, compute_, [&] {
        run_micro_step(sites, first, last, begun.times);
      });
      watch.skip();
      outcomes_.add(model_, compute_);
    }
    outcomes_.close(update_->record(), compute_);
    ++step_;
    begun.times.total = watch.total();
    under_way_.push_back(begun);
  }

  /// Steps that were started and not told.
  [[nodiscard]] std::size_t under_way() const { return under_way_.size(); }

  /// What the oldest of them did.
  step_result sync_result() {
    gradlane::expects(!under_way_.empty(), "trainer: no step is under way");
    auto watch  = stopwatch{};
    auto result = under_way_.front();
    under_way_.pop_front();
    report(result);
    result.times.total += watch.total();
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
    update_->wait(0, list_.size(), compute_);
    for (auto piece = std::size_t{0}; piece < pieces; ++piece) {
      auto own = std::array{make_batch(data, work.bin(piece, rank_), 0)};
      fit(own);
      sum += model_.forward(own.front(), no_dropout);
    }
    return totals_.sync_mean(sum);
  }

  /// Weights and optimizer as a checkpoint holds them. Collective; on rank 0, and good until the
  /// next step.
  [[nodiscard]] model_state sync_state() { return update_->sync_state(compute_); }

  /// Ranks whose moments a checkpoint keeps apart: 1 or all.
  [[nodiscard]] std::size_t ranks_with_moments() const { return update_->ranks_with_moments(); }
  /// Rank 0 takes those of another such rank; both call it, rank 0 for one after the other.
  [[nodiscard]] model_state sync_moments_of(std::size_t rank) {
    return update_->sync_moments_of(rank, compute_);
  }

  /// Goes on where another run stood.
  /// @param scale  of a run in fp16; else, and where there is none, training begins with its own.
  void resume(std::uint64_t step,
              data_place const& at,
              model_state const& state,
              std::optional<loss_scale_state> const& scale = {}) {
    batches_.restore(at);
    update_->restore(state, compute_);
    if (loss_scale_ && scale) {
      steps_.sync_restore(*scale);
      loss_scale_ = scale;
    }
    step_ = step;
  }

  /// In fp16: as of the steps that were told.
  [[nodiscard]] std::optional<loss_scale_state> const& loss_scale() const { return loss_scale_; }
  [[nodiscard]] std::uint64_t next_step() const { return step_; }
  [[nodiscard]] parameter_list const& list() const { return list_; }
  [[nodiscard]] data_place place() const { return batches_.place(); }
  [[nodiscard]] std::size_t state_bytes() const { return update_->state_bytes(); }
  [[nodiscard]] typename Place::steps const& steps() const { return steps_; }
  [[nodiscard]] std::string describe() { return batches_.describe() + update_->describe(); }

 private:
  [[nodiscard]] static training_settings const& checked(training_settings const& settings) {
    settings.check();
    return settings;
  }

  /// Scales are 1 / counts over all ranks and micro-steps, times the ranks that an average divides
  /// by; for Adasum, which joins the gradients of the ranks' own losses, 1 / counts of this rank.
  [[nodiscard]] step_numbers sync_numbers(std::vector<batch> const& work) {
    auto counts = std::array{0.0, 0.0};
    for (auto const& b : work) {
      counts[0] += static_cast<double>(b.prediction_count());
      counts[1] += static_cast<double>(b.next.size());
    }
    auto const own = by_own_batch(settings_.reduce);
    if (!own) { totals_.sync_sum(counts); }
    auto const divisor = own ? 1.0 : static_cast<double>(ranks_);
    auto const share   = [&](double count) { return count > 0 ? divisor / count : 0.0; };
    return {.masked_lm_scale     = share(counts[0]),
            .next_sentence_scale = share(counts[1]),
            .learning_rate       = settings_.rate.at(step_),
            .step                = static_cast<std::uint32_t>(step_)};
  }

  /// Pads batches to one shape on all ranks, where the place wants that, and makes room for it.
  void fit([[maybe_unused]] std::span<batch> work) {
    if constexpr (Place::steps::pads) {
      auto extents = std::array{-std::numeric_limits<double>::infinity(), 0.0, 0.0, 0.0};
      for (auto const& b : work) {
        auto const shape = b.shape();
        auto const own   = std::array{-static_cast<double>(shape.tokens),
                                    static_cast<double>(shape.tokens),
                                    static_cast<double>(shape.sequences),
                                    static_cast<double>(shape.predictions)};
        for (auto i = std::size_t{0}; i < own.size(); ++i) {
          extents[i] = std::max(extents[i], own[i]);
        }
      }
      totals_.sync_max(extents);
      auto const count   = [&](double extent) { return static_cast<std::size_t>(extent); };
      auto const longest = settings_.model.max_position_embeddings;
      auto const shape   = rounded_up(
          {count(extents[1]), count(extents[2]), count(extents[3])}, count(-extents[0]), longest);
      steps_.make_room(shape, model_, compute_);
      for (auto& b : work) { b = pad(std::move(b), shape, longest); }
    }
  }

  /// Forward and backward of the batch that the model has taken. Gradients of all micro-steps are
  /// added up where they are reduced; each is marked ready, and so may be on its way, when backward
  /// of the last micro-step has completed it.
  void run_micro_step(dropout_sites const& sites, bool first, bool last, step_times& times) {
    auto watch = stopwatch{};
    model_.start_forward(sites, [&](std::size_t begin, std::size_t end) {
      if (first) { update_->wait(begin, end, compute_); }
    });
    if (last) { update_->begin(compute_, steps_.learning_rate()); }
    model_.backward(steps_.masked_lm_scale(),
                    steps_.next_sentence_scale(),
                    update_->gradients(),
                    !first,
                    [&](std::size_t parameter) {
                      if (last) { update_->ready(parameter, compute_); }
                    });
    watch.lap(times.compute);
    if (!last) { return; }
    update_->finish(compute_);
    watch.lap(times.wait);
    update_->apply(compute_);
    steps_.follow(&update_->record()->status);
    watch.lap(times.optimizer);
  }

  void report(step_result& result) {
    auto watch          = stopwatch{};
    auto const outcome  = outcomes_.sync_take(settings_.patience);
    auto const& numbers = outcome.numbers;
    auto const units    = settings_.clip == clip_mode::bucketwise ? update_->bucket_count() : 1;
    auto const clipped =
        numbers.clipped_units - std::exchange(clipped_units_, numbers.clipped_units);
    result.gradient_norm = numbers.norm;
    result.skipped       = numbers.status.skip != 0;
    follow_loss_scale(result);
    result.clipped_fraction = static_cast<double>(clipped) / static_cast<double>(units);
    if (by_own_batch(settings_.reduce)) {
      result.orthogonality = gradlane::mean_orthogonality(numbers);
    }
    watch.lap(result.times.compute);  // where the place works on its own
    result.losses = totals_.sync_mean(outcome.sums);
    auto tokens   = std::array{result.tokens};
    auto largest  = tokens;
    totals_.sync_sum(tokens);
    totals_.sync_max(largest);
    result.tokens            = tokens[0];
    result.largest_over_mean = largest[0] * static_cast<double>(ranks_) / tokens[0];
    watch.lap(result.times.wait);
  }

  /// The host's own account of the scale, which follows from the skips of steps: all ranks stop
  /// after the same step.
  void follow_loss_scale(step_result const& result) {
    if (!loss_scale_) { return; }
    loss_scale_ = after_step(*settings_.loss_scale, *loss_scale_, result.skipped);
    expect_not_diverged(*settings_.loss_scale, *loss_scale_, result.step + 1);
  }

  [[nodiscard]] typename Place::host_communicator split_ranks() {
    return place_.host_ranks.split(0, place_.host_ranks.rank());
  }

  [[nodiscard]] std::vector<float> initial_weights() const {
    auto result = std::vector<float>(list_.total());
    initialise(list_, result, settings_.seed);
    return result;
  }

  [[nodiscard]] std::span<float> weights() { return {weights_.data(), weights_.size()}; }

  training_settings settings_;
  Place place_;
  parameter_list list_;
  sample_source const& data_;
  std::size_t ranks_;
  std::size_t rank_;
  std::uint64_t step_{0};
  rank_totals<typename Place::host_communicator> totals_;
  balanced_batches<typename Place::samples> batches_;
  typename Place::stream compute_;
  typename Place::floats weights_;  // flat, as list_ lays it out
  typename Place::model_device device_;
  model<typename Place::model_device> model_;
  typename Place::steps steps_;
  std::unique_ptr<weight_update<Place>> update_;
  typename Place::outcomes outcomes_;
  std::uint64_t clipped_units_{0};  // up to the step that was told last
  std::optional<loss_scale_state> loss_scale_;
  std::deque<step_result> under_way_;
};

}  // namespace bert

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../checkpoint.hpp"       // for checkpoint_store, load_checkpoint, trainer_state
#include "../data/entropy.hpp"     // for unigram_entropy
#include "../errors.hpp"           // for diverged_error, input_error
#include "../files.hpp"            // for pending_file
#include "../report/log.hpp"       // for evaluation_entry, log_writer, read_log, step_entry
#include "../report/plot.hpp"      // for plot_svg
#include "../report/progress.hpp"  // for evaluation_line, progress_line, step_pace
#include "command_line.hpp"        // for command_line
#include "corpus.hpp"              // for corpus
#include "stopwatch.hpp"           // for step_times, stopwatch
#include "trainer.hpp"             // for step_result, trainer

#include <gradlane/error.hpp>  // for error

#include <cmath>     // for log
#include <cstddef>   // for size_t
#include <cstdint>   // for uint64_t
#include <iostream>  // for cout
#include <map>       // for map
#include <optional>  // for optional
#include <string>    // for string

namespace bert {

/// A whole run as a person sees it: progress, evaluation, checkpoints, log and curve.
template <class Place>
class training_run {
 public:
  training_run(command_line const& wanted, Place const& place, corpus const& text)
      : wanted_{wanted},
        text_{text},
        rank_{static_cast<std::size_t>(place.host_ranks.rank())},
        speaks_{rank_ == 0},
        trainer_{wanted.training, place, *text.training},
        checkpoints_{wanted.output / "checkpoints"},
        entropy_{unigram_entropy(text.training->count_tokens())} {
    if (wanted.resume) { resume(); }
    if (!speaks_) { return; }
    log_.emplace(wanted.output / "log.jsonl", trainer_.next_step());
    introduce(place);
  }

  void train() {
    auto const steps = wanted_.training.rate.steps;
    running_         = stopwatch{};
    while (trainer_.next_step() < steps) {
      trainer_.start_step();
      auto const done     = trainer_.next_step();
      auto const due      = [&](std::uint64_t every) { return every > 0 && done % every == 0; };
      auto const measures = due(wanted_.evaluate_every) && done < steps;
      auto const keeps    = due(wanted_.checkpoint_every) || done == steps;
      tell_steps(measures || keeps ? 0 : Place::results_behind);
      if (measures) { evaluate(); }
      if (keeps) { save(); }
    }
    evaluate();
    if (speaks_) { conclude(); }
  }

 private:
  void introduce(Place const& place) {
    auto const& t = wanted_.training;
    std::cout << place.ranks.describe() << '\n'
              << trainer_.describe() << "data: " << text_.summary
              << "; samples: " << text_.training->size() << " to train on, "
              << text_.held_out->size() << " held out\n"
              << "model: " << trainer_.list().total() << " parameters, " << name_of(wanted_.compute)
              << "; " << t.rate.steps << " steps of " << t.batch_size << " sequences\n"
              << "a model that knows nothing has the masked-LM loss ln(" << t.model.vocab_size
              << ") = " << std::log(static_cast<double>(t.model.vocab_size))
              << ", one that knows how often tokens occur " << entropy_ << '\n'
              << std::flush;
  }

  [[nodiscard]] trainer_state state() {
    return {.step       = trainer_.next_step(),
            .place      = trainer_.place(),
            .seed       = wanted_.training.seed,
            .batch_size = wanted_.training.batch_size,
            .deal       = wanted_.training.deal,
            .window     = wanted_.training.window,
            .data       = text_.training->fingerprint(),
            .model      = wanted_.training.model,
            .update     = wanted_.training.update,
            .scale      = trainer_.loss_scale()};
  }

  void resume() {
    auto const newest = checkpoints_.newest();
    if (!newest) {
      throw input_error{"--resume: there is no checkpoint in " +
                        (wanted_.output / "checkpoints").string()};
    }
    auto const wanted = trainer_.ranks_with_moments();
    auto const found  = load_checkpoint(*newest, state(), trainer_.list(), rank_, wanted);
    trainer_.resume(found.state.step, found.state.place, found.model(), found.state.scale);
    if (!speaks_) { return; }
    std::cout << "goes on from " << newest->string() << '\n';
    if (found.ranks_with_moments != wanted) {
      std::cout << "its moments are of " << found.ranks_with_moments << " ranks apart, wanted are "
                << wanted << ": those of rank 0 serve for all\n";
    }
  }

  void save() {
    auto const model = trainer_.sync_state();
    auto const ranks = trainer_.ranks_with_moments();
    if (speaks_) {
      auto const of = [&](std::size_t rank) { return trainer_.sync_moments_of(rank); };
      checkpoints_.save(state(), trainer_.list(), model, extra_files(), {ranks, of});
    } else if (ranks > 1) {
      static_cast<void>(trainer_.sync_moments_of(rank_));
    }
  }

  [[nodiscard]] std::map<std::string, std::string> extra_files() const {
    if (text_.vocabulary.empty()) { return {}; }
    return {{"vocab.txt", text_.vocabulary}};
  }

  /// Tells what steps did, until no more than `rest` are under way.
  void tell_steps(std::size_t rest) {
    while (trainer_.under_way() > rest) {
      auto const result = trainer_.sync_result();
      count(result);
      tell(result, running_.total());
    }
  }

  void count(step_result const& result) {
    skips_in_a_row_ = result.skipped ? skips_in_a_row_ + 1 : 0;
    // a loss scale that begins too high takes more, and has a floor of its own
    if (skips_in_a_row_ == 10 && !trainer_.loss_scale()) {
      throw diverged_error{
          "training has diverged: gradients of 10 steps in a row were not "
          "finite; lower --learning-rate, or go on from an older checkpoint"};
    }
    times_ += result.times;
  }

  void tell(step_result const& result, double seconds) {
    if (!speaks_) { return; }
    pace_.add(result.times.total);
    auto entry              = step_entry{};
    entry.step              = result.step + 1;
    entry.loss              = result.losses.masked_lm + result.losses.next_sentence;
    entry.masked_lm         = result.losses.masked_lm;
    entry.next_sentence     = result.losses.next_sentence;
    entry.accuracy          = result.losses.masked_lm_accuracy;
    entry.learning_rate     = result.learning_rate;
    entry.gradient_norm     = result.gradient_norm;
    entry.clipped           = result.clipped_fraction;
    entry.tokens_per_second = result.tokens / result.times.total;
    entry.seconds           = seconds;
    entry.skipped           = result.skipped;
    entry.largest_over_mean = result.largest_over_mean;
    entry.balancing         = result.times.balance / result.times.total;
    entry.orthogonality     = result.orthogonality;
    log_->write(entry);
    tell_memory();
    if (entry.step % wanted_.report_every == 0 || entry.step == wanted_.training.rate.steps) {
      std::cout << progress_line(entry, wanted_.training.rate.steps, pace_) << std::endl;
    }
  }

  /// Once there is something to tell, and again where it has changed.
  void tell_memory() {
    auto const text = trainer_.steps().describe();
    if (text != memory_) { std::cout << text << std::endl; }
    memory_ = text;
  }

  void evaluate() {
    auto const found = trainer_.evaluate(*text_.held_out, wanted_.evaluation_samples);
    if (!speaks_) { return; }
    auto const entry = evaluation_entry{.step                   = trainer_.next_step(),
                                        .masked_lm              = found.masked_lm,
                                        .accuracy               = found.masked_lm_accuracy,
                                        .next_sentence_accuracy = found.next_sentence_accuracy};
    log_->write(entry);
    std::cout << evaluation_line(entry) << std::endl;
  }

  void conclude() const {
    auto const share = [&](double seconds) {
      return std::to_string(100 * seconds / std::max(times_.total, 1e-9)).substr(0, 4) + " %";
    };
    std::cout << "time of rank 0: forward and backward " << share(times_.compute)
              << ", waiting for other ranks " << share(times_.wait) << ", optimizer "
              << share(times_.optimizer) << ", balancing " << share(times_.balance) << ", data "
              << share(times_.data) << '\n'
              << "unigram entropy of the text: " << entropy_ << '\n';
    auto const curve = wanted_.output / "curve.svg";
    auto drawing     = pending_file{curve};
    drawing.file().write(
        plot_svg(read_log(wanted_.output / "log.jsonl"), "BERT pretraining", entropy_));
    drawing.publish();
    std::cout << "curve: " << std::filesystem::absolute(curve).string() << std::endl;
  }

  command_line const& wanted_;
  corpus const& text_;
  std::size_t rank_;
  bool speaks_;
  trainer<Place> trainer_;
  checkpoint_store checkpoints_;
  double entropy_;
  std::optional<log_writer> log_;  // of rank 0
  step_pace pace_;
  step_times times_;
  stopwatch running_;
  std::string memory_;
  int skips_in_a_row_{0};
};

}  // namespace bert

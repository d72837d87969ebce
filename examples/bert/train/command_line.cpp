// SPDX-License-Identifier: Apache-2.0
#include "command_line.hpp"

#include "../optimizer.hpp"  // for lamb_settings, optimizer_settings
#include "../schedule.hpp"   // for schedule_power

#include <CLI/CLI.hpp>

#include <iostream>  // for cerr, cout
#include <map>       // for map
#include <sstream>   // for ostringstream
#include <string>    // for string

namespace bert {

namespace {

constexpr auto description =
    R"(Pretrains BERT (masked language model and next sentence) on plain text with MPI ranks, one
process each: mpiexec -n 2 bert_train. Without options it trains the preset `mini` on the English
text of Debian's package postgresql-doc, with a vocabulary that it learns from that text.

bert_train_cuda does the same on NVIDIA GPUs, one a rank. Either program goes on from the other's
checkpoints.

Sequences are never padded. Gradients are clipped and all-reduced by gradlane, bucket by bucket,
while backward goes on. The losses do not depend on the number of ranks or micro-steps (with
--clip none or after; the other two bound what each rank contributes) if they are averaged; Adasum
joins the gradients of the ranks' own losses.)";

/// Options whose meaning depends on another: applied once all are known.
struct raw_options {
  bool lamb            = false;
  std::string schedule = "linear";
  double warm_up       = 0.1;
  double bucket_mib    = 4;
  long patience        = 120;
};

void add_data(CLI::App& app, command_line& out) {
  app.add_option("--text", out.text, "Text files (.txt, .html) or directories of them")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->group("Data");
  auto* const text = app.get_option("--text");
  app.add_option("--hdf5", out.hdf5, "Instead of text: MLPerf's HDF5 files, or directories of them")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->excludes(text)
      ->group("Data");
  app.add_option("--hdf5-held-out", out.hdf5_held_out, "The same, to evaluate on")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->excludes(text)
      ->group("Data");
  app.add_option("--vocabulary", out.vocabulary, "A vocab.txt; else one is learned and kept")
      ->group("Data");
  app.add_option("--vocabulary-size", out.vocabulary_size, "Pieces of a learned vocabulary")
      ->capture_default_str()
      ->group("Data");
  app.add_option("--max-length", out.max_length, "Longest sequence, in tokens")
      ->capture_default_str()
      ->group("Data");
}

void add_model(CLI::App& app, program const& which, command_line& out) {
  app.add_option("--model", out.model, "mini, base, large, or a config.json")
      ->capture_default_str()
      ->group("Model");
  auto choices =
      std::map<std::string, precision>{{"fp32", precision::fp32}, {"bf16", precision::bf16}};
  if (which.on_gpus) { choices.emplace("fp16", precision::fp16); }
  auto const* const about =
      which.on_gpus ? "fp32, or bf16, or fp16 with a loss scale; weights and sums in fp32"
                    : "fp32, or bf16 with fp32 weights and sums";
  app.add_option("--precision", out.compute, about)
      ->transform(CLI::CheckedTransformer(choices))
      ->default_str(std::string{name_of(out.compute)})
      ->option_text((which.on_gpus ? "fp32|bf16|fp16=" : "fp32|bf16=") +
                    std::string{name_of(out.compute)})
      ->group("Model");
  if (which.on_gpus) {
    app.add_flag("--graphs", out.graphs, "Replays steps from CUDA graphs, one for each shape")
        ->group("Model");
    return;
  }
  app.add_option(
         "--threads", out.threads, "Of each rank; 0: OMP_NUM_THREADS, or a share of the cores")
      ->capture_default_str()
      ->group("Model");
}

void add_training(CLI::App& app, command_line& out, raw_options& raw) {
  auto& t = out.training;
  app.add_option("--steps", t.rate.steps, "Optimizer steps")
      ->capture_default_str()
      ->group("Training");
  app.add_option("--batch", t.batch_size, "Sequences of a step, over all ranks")
      ->capture_default_str()
      ->group("Training");
  app.add_option("--micro-steps", t.micro_steps, "Parts of a step that a rank computes in turn")
      ->capture_default_str()
      ->group("Training");
  using gradlane::balance::dealing;
  app.add_option("--balance", t.deal, "How samples are dealt to ranks: none, snake or lpt")
      ->transform(CLI::CheckedTransformer(std::map<std::string, dealing>{
          {"none", dealing::none}, {"snake", dealing::snake}, {"lpt", dealing::lpt}}))
      ->default_str("lpt")
      ->option_text("METHOD=lpt")
      ->group("Training");
  app.add_option(
         "--window", t.window, "Steps whose samples are dealt at once; at most half an epoch")
      ->capture_default_str()
      ->check(CLI::PositiveNumber)
      ->group("Training");
  app.add_flag("--lamb", raw.lamb, "LAMB instead of AdamW")->group("Training");
  app.add_option("--learning-rate", t.rate.peak, "After the warm-up")
      ->capture_default_str()
      ->group("Training");
  app.add_option("--schedule", raw.schedule, "constant, linear or polynomial (square root)")
      ->capture_default_str()
      ->group("Training");
  app.add_option("--warm-up", raw.warm_up, "Part of the steps in which the rate rises")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 1.0))
      ->group("Training");
  app.add_option("--weight-decay", t.update.weight_decay, "Decoupled; none on biases, LayerNorm")
      ->capture_default_str()
      ->group("Training");
  app.add_option("--dropout", out.dropout, "Of hidden states, attention; else mini 0, others 0.1")
      ->group("Training");
  app.add_option("--seed", t.seed, "Of weights, order, masks and dropout")
      ->capture_default_str()
      ->group("Training");
}

void add_reduction(CLI::App& app, command_line& out, raw_options& raw) {
  auto& t = out.training;
  app.add_option("--reduce",
                 t.reduce,
                 "How ranks join: average; adasum of gradients; adasum-delta, of the steps each "
                 "rank would make; sharded, an average of which each rank steps its part")
      ->transform(CLI::CheckedTransformer(
          std::map<std::string, reduce_mode>{{"average", reduce_mode::average},
                                             {"adasum", reduce_mode::adasum},
                                             {"adasum-delta", reduce_mode::adasum_delta},
                                             {"sharded", reduce_mode::sharded}}))
      ->default_str("average")
      ->option_text("MODE=average")
      ->group("Gradients");
  app.add_option("--clip", t.clip, "none, after, before or bucketwise (gradlane's README)")
      ->transform(CLI::CheckedTransformer(
          std::map<std::string, clip_mode>{{"none", clip_mode::none},
                                           {"after", clip_mode::after},
                                           {"before", clip_mode::before},
                                           {"bucketwise", clip_mode::bucketwise}}))
      ->default_str("bucketwise")
      ->option_text("MODE=bucketwise")
      ->group("Gradients");
  app.add_option("--clip-norm", t.clip_norm, "Bound c of the gradient's L2 norm")
      ->capture_default_str()
      ->group("Gradients");
  app.add_option("--bucket-mib", raw.bucket_mib, "Size of a gradient bucket")
      ->capture_default_str()
      ->check(CLI::PositiveNumber)
      ->group("Gradients");
  app.add_option("--patience", raw.patience, "Seconds to wait for other ranks before giving up")
      ->capture_default_str()
      ->check(CLI::PositiveNumber)
      ->group("Gradients");
}

void add_output(CLI::App& app, command_line& out) {
  app.add_option("--output", out.output, "Directory of vocabulary, cache, log, checkpoints, curve")
      ->capture_default_str()
      ->group("Output");
  app.add_flag("--resume", out.resume, "Go on from the newest checkpoint in --output")
      ->group("Output");
  app.add_option("--checkpoint-every", out.checkpoint_every, "Steps; 0: at the end only")
      ->capture_default_str()
      ->group("Output");
  app.add_option("--evaluate-every", out.evaluate_every, "Steps; 0: at the end only")
      ->capture_default_str()
      ->group("Output");
  app.add_option("--evaluation-samples", out.evaluation_samples, "Of the held-out text")
      ->capture_default_str()
      ->group("Output");
  app.add_option("--report-every", out.report_every, "Steps between lines of progress")
      ->capture_default_str()
      ->check(CLI::PositiveNumber)
      ->group("Output");
}

void apply(raw_options const& raw, command_line& out) {
  auto& t = out.training;
  if (raw.lamb) {
    auto const decay      = t.update.weight_decay;
    t.update              = lamb_settings();
    t.update.weight_decay = decay;
  }
  t.rate.power   = schedule_power(raw.schedule);
  t.rate.warm_up = static_cast<std::uint64_t>(raw.warm_up * static_cast<double>(t.rate.steps));
  t.bucket_bytes = static_cast<std::size_t>(raw.bucket_mib * 1048576.0);
  t.patience     = std::chrono::seconds{raw.patience};
  t.check();
}

}  // namespace

command_line parse_command_line(
    program const& which, int argc, char const* const* argv, bool speaks, int& exit_code) {
  auto result                = command_line{};
  result.training.rate.steps = 1200;
  result.training.rate.peak  = 1e-3;
  auto raw                   = raw_options{};
  auto app                   = CLI::App{description, which.name};
  exit_code                  = -1;
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  add_data(app, result);
  if (which.on_gpus) { result.compute = precision::bf16; }
  add_model(app, which, result);
  add_training(app, result, raw);
  add_reduction(app, result, raw);
  add_output(app, result);
  try {
    app.parse(argc, argv);
    apply(raw, result);
    if (result.compute == precision::fp16) { result.training.loss_scale.emplace(); }
  } catch (CLI::ParseError const& problem) {
    auto silent = std::ostringstream{};
    exit_code   = app.exit(problem, speaks ? std::cout : silent, speaks ? std::cerr : silent);
  }
  return result;
}

}  // namespace bert

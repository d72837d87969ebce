// SPDX-License-Identifier: Apache-2.0
#include "step_options.hpp"

#include <CLI/CLI.hpp>

#include <cstddef>   // for size_t
#include <optional>  // for nullopt, optional
#include <string>    // for string
#include <vector>    // for vector

namespace bert::bench {

namespace {

constexpr auto description =
    "Times a training step of BERT: forward, backward, gradlane's clipping and reduction, "
    "optimizer.\n"
    "\n"
    "  tokens/s      of text (padding does not count), of all ranks; median of the steps\n"
    "  MFU           model-FLOPs utilisation: operations that products must do for the text, over\n"
    "                what the device could do in that time at its peak\n"
    "  attention %   and so on: shares of a step by marks between its operations, of the step of\n"
    "                median length among as many further steps; exposed is what is left of "
    "clipping\n"
    "                and reduction after backward\n"
    "  alone ms      a step without clipping and reduction\n";

void add_gpu(CLI::App& app, step_options& out, std::vector<double>& link) {
  app.add_flag("--nccl", out.nccl, "Reduce over the ranks of mpiexec by NCCL, one GPU a rank");
  app.add_option("--link", link, "Without --nccl: model a wire, latency in microseconds and GB/s")
      ->expected(2)
      ->excludes("--nccl")
      ->check(CLI::NonNegativeNumber);
}

}  // namespace

std::optional<step_options> parse_step_options(int argc, char** argv, bool gpu, int& exit_code) {
  auto out  = step_options{};
  auto link = std::vector<double>{};
  auto peak = 0.0;
  auto app  = CLI::App{description, gpu ? "bert_step" : "bert_cpu_step"};
  if (!gpu) { out.precisions = {"fp32"}; }
  app.option_defaults()->always_capture_default();
  app.add_option("--model", out.models, "mini, base, large or the path of a config.json");
  app.add_option("--precision", out.precisions, "Of activations and products")
      ->check(CLI::IsMember(gpu ? std::vector<std::string>{"fp32", "bf16", "fp16"}
                                : std::vector<std::string>{"fp32", "bf16"}));
  app.add_option("--workload",
                 out.workloads,
                 "full: every sequence as long as the model takes; natural: lengths as they are "
                 "distributed, without padding; padded: these, padded to the longest")
      ->check(CLI::IsMember({"full", "natural", "padded"}));
  app.add_option("--sequences", out.sequences, "Sequences a step and rank")
      ->check(CLI::PositiveNumber);
  app.add_option("--lengths",
                 out.lengths,
                 "File of lines \"length,count\" for natural and padded; without it, Wikipedia's "
                 "lengths by a formula")
      ->check(CLI::ExistingFile);
  app.add_option("--longest", out.longest, "No sequence is longer; 0: as the model takes them");
  app.add_option("--steps", out.steps, "Steps that are timed")->check(CLI::PositiveNumber);
  app.add_option("--warm-up", out.warm_up, "Steps before them");
  app.add_option("--bucket-mib", out.bucket_mib, "Size of the buckets")->check(CLI::PositiveNumber);
  app.add_flag("--lamb", out.lamb, "LAMB in the place of AdamW");
  if (gpu) { add_gpu(app, out, link); }
  app.option_defaults()->always_capture_default(false);
  auto* const given =
      app.add_option(
             "--peak-tflops",
             peak,
             "Of the device in this precision, for MFU; without it, what is known of some GPUs")
          ->check(CLI::PositiveNumber);
  try {
    app.parse(argc, argv);
  } catch (CLI::ParseError const& problem) {
    exit_code = app.exit(problem);
    return std::nullopt;
  }
  if (given->count() > 0) { out.peak_tflops = peak; }
  if (!link.empty()) {
    out.link_latency_us = link[0];
    out.link_gigabytes  = link[1];
  }
  return out;
}

}  // namespace bert::bench

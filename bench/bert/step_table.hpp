// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "parts.hpp"         // for part
#include "step_options.hpp"  // for step_options
#include "step_rig.hpp"      // for reduction_calls, step_case, step_times
#include "workload.hpp"      // for make_batch, make_workload, model_flops

#include <gradlane/balance/histogram.hpp>  // for length_histogram
#include <gradlane/buckets/parameter.hpp>  // for parameter
#include <gradlane/buckets/plan.hpp>       // for bucket_plan
#include <gradlane/clip/policy.hpp>        // for average, bucketwise, non_finite
#include <gradlane/clip/threshold.hpp>     // for equal
#include <gradlane/clip_allreduce.hpp>     // for clip_allreduce
#include <gradlane/error.hpp>              // for expects
#include <gradlane/gradient_buckets.hpp>   // for gradient_buckets

#include <balance/lengths.hpp>  // for paper_model, read_histogram
#include <bert/config.hpp>
#include <bert/parameters.hpp>

#include <algorithm>   // for min
#include <cstddef>     // for size_t
#include <cstdint>     // for uint32_t
#include <cstdio>      // for fflush, printf
#include <filesystem>  // for exists, path
#include <numeric>     // for accumulate
#include <optional>    // for optional
#include <span>        // for span
#include <string>      // for string
#include <utility>     // for move
#include <vector>      // for vector

namespace bert::bench {

/// A row of the table, by the names that the options have.
struct step_row {
  std::string model;
  std::string precision;
  std::string workload;
  std::size_t sequences;
};

/// @throws gradlane::contract_error for what is neither a preset nor a config.json.
[[nodiscard]] inline model_config config_of(std::string const& model) {
  auto const is_preset = model == "mini" || model == "base" || model == "large";
  gradlane::expects(is_preset || std::filesystem::exists(model),
                    "--model " + model + ": neither mini, base or large nor a config.json");
  auto config    = is_preset ? preset(model) : read_config(model);
  config.dropout = 0.1;  // as the peer's
  return config;
}

inline void print_heading() {
  std::printf(
      "| model | precision | workload | sequences a rank | tokens a rank | GiB | ms | tokens/s | "
      "TFLOP/s a rank | MFU %% | attention %% | products %% | optimizer %% | exposed %% | other %% "
      "| "
      "alone ms |\n"
      "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n");
}

inline void print(step_row const& row,
                  std::size_t tokens,
                  double flops,
                  step_times const& times,
                  int ranks,
                  std::optional<double> peak) {
  auto const sum   = std::accumulate(times.parts.begin(), times.parts.end(), 0.0);
  auto const share = [&](part p) { return 100 * times.parts[static_cast<std::size_t>(p)] / sum; };
  auto const rate  = flops / times.seconds * 1e-12;
  std::printf("| %s | %s | %s | %zu | %zu | %.2f | %.3f | %.0f | %.2f | ",
              std::filesystem::path{row.model}.stem().c_str(),
              row.precision.c_str(),
              row.workload.c_str(),
              row.sequences,
              tokens,
              static_cast<double>(times.bytes) * 0x1p-30,
              1e3 * times.seconds,
              static_cast<double>(tokens) * ranks / times.seconds,
              rate);
  if (peak) {
    std::printf("%.1f", 100 * rate / *peak);
  } else {
    std::printf("?");
  }
  std::printf(" | %.1f | %.1f | %.1f | %.1f | %.1f | %.3f |\n",
              share(part::attention),
              share(part::products),
              share(part::optimizer),
              share(part::reduction),
              share(part::other),
              1e3 * times.alone);
  std::fflush(stdout);
}

/// One row: buckets on a gradlane device, reduced over comm beside backward, bucketwise clipped.
/// @param time  time(case, precision, options, stream, calls) gives step_times.
/// @param peak  peak(precision) gives an optional number of TFLOP/s.
template <class Lane, class Comm, class Time, class Peak>
void measure(Lane& lane,
             Comm& comm,
             step_options const& wanted,
             step_row const& row,
             gradlane::balance::length_histogram const& lengths,
             Time const& time,
             Peak const& peak) {
  namespace clip    = gradlane::clip;
  using pipeline    = gradlane::clip_allreduce<Lane,
                                               Comm,
                                               clip::bucketwise<gradlane::threshold::equal>,
                                               gradlane::average::ranks,
                                               gradlane::non_finite::skip>;
  auto const config = config_of(row.model);
  auto const most   = config.max_position_embeddings;
  auto const work   = make_workload(row.workload,
                                  lengths,
                                  row.sequences,
                                  wanted.longest > 0 ? std::min(wanted.longest, most) : most);
  auto data         = make_batch(config, work, static_cast<std::uint32_t>(comm.rank()) << 20U);
  auto const flops  = model_flops(config, work.text, data.prediction_count());

  auto parameters = std::vector<gradlane::parameter>{};
  for (auto const& p : parameter_list{config}) {
    parameters.push_back({.name = p.name, .count = p.size});
  }
  auto compute = lane.make_stream();
  auto buckets = gradlane::gradient_buckets<Lane>{
      lane, gradlane::bucket_plan{std::move(parameters), {.cap_bytes = wanted.bucket_mib << 20U}}};
  auto reducer   = pipeline{buckets, comm, clip::bucketwise{gradlane::threshold::equal{1.0}}};
  auto gradients = std::vector<std::span<float>>{};
  for (auto i = std::size_t{0}; i < buckets.plan().parameters().size(); ++i) {
    gradients.push_back(buckets.template gradient<float>(i));
  }
  auto const times =
      time(step_case{config, std::move(data), gradients},
           row.precision,
           wanted,
           compute,
           reduction_calls{.begin = [&] { reducer.begin(compute); },
                           .ready = [&](std::size_t i) { reducer.ready(i, compute); },
                           .finish =
                               [&] {
                                 reducer.finish(compute);
                                 return reducer.status();
                               }});
  if (comm.rank() != 0) { return; }
  print(row,
        work.tokens(),
        flops,
        times,
        comm.size(),
        wanted.peak_tflops ? wanted.peak_tflops : peak(row.precision));
}

/// Measures everything that is wanted; rank 0 prints a table.
/// @param where  names the device, and what it reduces over.
template <class Lane, class Comm, class Time, class Peak>
void measure_all(Lane& lane,
                 Comm& comm,
                 step_options const& wanted,
                 std::string const& where,
                 Time const& time,
                 Peak const& peak) {
  auto const lengths = wanted.lengths.empty() ? simulation::paper_model()
                                              : simulation::read_histogram(wanted.lengths);
  if (comm.rank() == 0) {
    std::printf("%s, %d rank(s); lengths of mean %.1f; medians of %zu steps\n\n",
                where.c_str(),
                comm.size(),
                lengths.mean_length(),
                wanted.steps);
    print_heading();
  }
  for (auto const& model : wanted.models) {
    for (auto const& precision : wanted.precisions) {
      for (auto const& workload : wanted.workloads) {
        for (auto const sequences : wanted.sequences) {
          measure(lane, comm, wanted, {model, precision, workload, sequences}, lengths, time, peak);
        }
      }
    }
  }
}

}  // namespace bert::bench

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "draws.hpp"       // for random_bits
#include "population.hpp"  // for load, of_length, population, source

#include <gradlane/balance/deal.hpp>       // for assignment, deal, dealing, sample
#include <gradlane/balance/histogram.hpp>  // for length_histogram
#include <gradlane/error.hpp>              // for expects

#include <algorithm>  // for max, min
#include <atomic>     // for atomic
#include <bit>        // for bit_width, has_single_bit
#include <cmath>      // for sqrt
#include <cstddef>    // for size_t
#include <cstdint>    // for uint8_t, uint64_t
#include <limits>     // for numeric_limits
#include <span>       // for span
#include <string>     // for string, to_string
#include <thread>     // for thread
#include <vector>     // for vector

/// How evenly methods of balancing spread tokens over GPUs: Figure 6 of Kim et al. 2024, arXiv
/// 2402.02447, and its ablation, with the library's own deals.
namespace simulation {

struct settings {
  std::size_t batch{16};         ///< sequences a GPU and step
  std::size_t gpus_per_node{8};  ///< within which local methods deal
  std::size_t most_gpus{4096};   ///< gpus_per_node times a power of two
  std::size_t repetitions{10'000};
  std::size_t window{8};  ///< steps
  double n0{2304};        ///< of the cost that is reported; deals balance by it too
  std::uint64_t seed{1};
  std::size_t threads{1};  ///< results do not depend on it
};

/// Whose sequences a method deals together.
enum class reach : std::uint8_t { gpu, node, all };

struct method {
  std::string name;
  bool in_figure{};  ///< of those that the paper's Figure 6 compares, or ours beside them
  source from{source::any};
  reach within{reach::gpu};
  balance::dealing dealt{balance::dealing::none};
  std::size_t steps{1};
};

/// What was found for one method and number of GPUs; tokens a GPU and step.
struct finding {
  std::size_t gpus{};
  std::uint64_t repetitions{};
  double most{};   ///< mean over repetitions of the largest
  double least{};  ///< … of the smallest
  double mean{};
  double max_over_mean{};
  double standard_error{};      ///< of max_over_mean
  double cost_max_over_mean{};  ///< of n·(1 + n/n0) instead of tokens
};

[[nodiscard]] inline std::vector<method> methods(std::size_t window) {
  using balance::dealing;
  auto const steps = std::to_string(window);
  return {
      {"no balancing", true},
      {"packing, up to 3", true, source::packs_of_3},
      {"packing, up to 12", true, source::packs_of_12},
      {"global raster", true, source::any, reach::all, dealing::raster},
      {"global snake", false, source::any, reach::all, dealing::snake},
      {"strata", false, source::strata},
      {"local raster", false, source::any, reach::node, dealing::raster},
      {"local snake", false, source::any, reach::node, dealing::snake},
      {"strata + local raster", false, source::strata, reach::node, dealing::raster},
      {"strata + local snake", true, source::strata, reach::node, dealing::snake},
      {"strata + LPT", false, source::strata, reach::node, dealing::lpt},
      {"LPT, window " + steps, false, source::any, reach::node, dealing::lpt, window},
      {"strata + LPT, window " + steps, true, source::strata, reach::node, dealing::lpt, window},
      {"spread strata + LPT, window " + steps,
       false,
       source::spread,
       reach::node,
       dealing::lpt,
       window},
      {"16 spread strata + LPT, window " + steps,
       true,
       source::spread_finely,
       reach::node,
       dealing::lpt,
       window},
  };
}

/// The extremes and the sum over some GPUs in one step.
struct extent {
  std::uint64_t most{};
  std::uint64_t least{std::numeric_limits<std::uint64_t>::max()};
  double dearest{};
  load sum{};

  void add(load const& gpu, double n0) {
    most    = std::max(most, gpu.tokens);
    least   = std::min(least, gpu.tokens);
    dearest = std::max(dearest, gpu.cost(n0));
    sum += gpu;
  }
  void add(extent const& other) {
    most    = std::max(most, other.most);
    least   = std::min(least, other.least);
    dearest = std::max(dearest, other.dearest);
    sum += other.sum;
  }
};

/// Sums over repetitions.
struct statistics {
  std::uint64_t repetitions{};
  double most{};
  double least{};
  double mean{};
  double ratio{};
  double ratio_squared{};
  double cost_ratio{};

  void add(extent const& step, std::size_t gpus, double n0) {
    auto const count = static_cast<double>(gpus);
    auto const r = static_cast<double>(step.most) * count / static_cast<double>(step.sum.tokens);
    ++repetitions;
    most += static_cast<double>(step.most);
    least += static_cast<double>(step.least);
    mean += static_cast<double>(step.sum.tokens) / count;
    ratio += r;
    ratio_squared += r * r;
    cost_ratio += step.dearest * count / step.sum.cost(n0);
  }
  void add(statistics const& other) {
    repetitions += other.repetitions;
    most += other.most;
    least += other.least;
    mean += other.mean;
    ratio += other.ratio;
    ratio_squared += other.ratio_squared;
    cost_ratio += other.cost_ratio;
  }
  /// @param window  steps that are dealt together, and so are taken for one in the error.
  [[nodiscard]] finding over(std::size_t gpus, std::size_t window) const {
    auto const n        = static_cast<double>(repetitions);
    auto const variance = std::max(0.0, ratio_squared / n - ratio / n * (ratio / n));
    return {.gpus               = gpus,
            .repetitions        = repetitions,
            .most               = most / n,
            .least              = least / n,
            .mean               = mean / n,
            .max_over_mean      = ratio / n,
            .standard_error     = std::sqrt(variance * static_cast<double>(window) / n),
            .cost_max_over_mean = cost_ratio / n};
  }
};

/// Repeats steps of many GPUs.
///
/// A group of `window` steps is the unit of work: all methods see the same draws, and since nodes
/// draw independently, those of the largest system serve the smaller ones too, some at a time.
class simulator {
 public:
  /// @throws gradlane::contract_error for settings that make no sense, and for no lengths.
  simulator(settings const& options, balance::length_histogram const& lengths)
      : options_{checked(options)},
        methods_{simulation::methods(options.window)},
        data_{lengths, options.batch},
        nodes_{options.most_gpus / options.gpus_per_node},
        levels_{static_cast<std::size_t>(std::bit_width(nodes_))},
        node_samples_{options.batch * options.gpus_per_node} {}

  [[nodiscard]] std::vector<method> const& methods() const { return methods_; }

  /// For each of methods(), by rising number of GPUs.
  [[nodiscard]] std::vector<std::vector<finding>> run() const {
    auto const groups = (options_.repetitions + options_.window - 1) / options_.window;
    auto results      = std::vector<table>(groups);
    auto next         = std::atomic<std::size_t>{0};
    auto const work   = [&] {
      auto room = workspace{*this};
      for (auto g = next++; g < groups; g = next++) { results[g] = group(g, room); }
    };
    auto helpers = std::vector<std::thread>{};
    for (std::size_t t = 1; t < options_.threads; ++t) { helpers.emplace_back(work); }
    work();
    for (auto& helper : helpers) { helper.join(); }

    auto total = table(methods_.size() * levels_);
    for (auto const& result : results) {  // in order, so that sums do not depend on threads
      for (std::size_t i = 0; i < total.size(); ++i) { total[i].add(result[i]); }
    }
    auto findings = std::vector<std::vector<finding>>(methods_.size());
    for (std::size_t m = 0; m < methods_.size(); ++m) {
      for (std::size_t l = 0; l < levels_; ++l) {
        findings[m].push_back(total[m * levels_ + l].over(gpus_at(l), methods_[m].steps));
      }
    }
    return findings;
  }

 private:
  using table = std::vector<statistics>;  // (methods, levels)

  struct workspace {
    explicit workspace(simulator const& s)
        : of_node(sample_sources * s.options_.window * s.node_samples_),
          of_all(s.options_.window * s.nodes_ * s.node_samples_),
          extents(s.methods_.size() * s.options_.window * s.nodes_) {
      for (auto* list : {&of_node, &of_all}) {
        auto id = std::uint64_t{0};
        for (auto& sample : *list) { sample.id = id++; }
      }
    }

    std::vector<balance::sample> of_node;  // (sample_sources, window, node_samples)
    std::vector<balance::sample> of_all;   // (window, nodes, node_samples), drawn from source::any
    std::vector<extent> extents;           // (methods, window, nodes)
  };

  [[nodiscard]] static settings checked(settings const& options) {
    gradlane::expects(options.batch > 0 && options.gpus_per_node > 0 && options.window > 0 &&
                          options.repetitions > 0 && options.threads > 0 && options.n0 > 0,
                      "simulation: all settings must be positive");
    gradlane::expects(options.most_gpus % options.gpus_per_node == 0 &&
                          std::has_single_bit(options.most_gpus / options.gpus_per_node),
                      "simulation: GPUs must be those of a node times a power of two");
    return options;
  }

  [[nodiscard]] std::size_t gpus_at(std::size_t level) const {
    return options_.gpus_per_node << level;
  }

  [[nodiscard]] table group(std::size_t number, workspace& room) const {
    auto random      = random_bits{options_.seed, number};
    auto const place = random();  // where in the epoch the group begins
    for (std::size_t node = 0; node < nodes_; ++node) {
      draw(random, place, node, room);
      for (std::size_t m = 0; m < methods_.size(); ++m) {
        if (methods_[m].within != reach::all) { deal_in_node(m, node, random, room); }
      }
    }
    auto result = table(methods_.size() * levels_);
    for (std::size_t m = 0; m < methods_.size(); ++m) {
      auto const of_method = std::span{result}.subspan(m * levels_, levels_);
      if (methods_[m].within == reach::all) {
        deal_over_all(m, room, of_method);
      } else {
        combine_nodes(m, room, of_method);
      }
    }
    return result;
  }

  /// The sequences of a node in all steps of the window, from every source that has sequences.
  void draw(random_bits& random, std::uint64_t place, std::size_t node, workspace& room) const {
    for (std::size_t from = 0; from < sample_sources; ++from) {
      for (std::size_t step = 0; step < options_.window; ++step) {
        auto const out = samples(room, from).subspan(step * node_samples_, node_samples_);
        auto const at  = (step * nodes_ + node) * node_samples_;  // in the group
        data_.fill(static_cast<source>(from), random, place + at, out);
        if (static_cast<source>(from) != source::any) { continue; }
        for (std::size_t i = 0; i < out.size(); ++i) { room.of_all[at + i].length = out[i].length; }
      }
    }
  }

  [[nodiscard]] std::span<balance::sample> samples(workspace& room, std::size_t from) const {
    auto const size = options_.window * node_samples_;
    return std::span{room.of_node}.subspan(from * size, size);
  }

  [[nodiscard]] extent& extent_of(workspace& room,
                                  std::size_t method,
                                  std::size_t step,
                                  std::size_t node) const {
    return room.extents[(method * options_.window + step) * nodes_ + node];
  }

  void deal_in_node(std::size_t m, std::size_t node, random_bits& random, workspace& room) const {
    auto const& method = methods_[m];
    auto const packs   = static_cast<std::size_t>(method.from) >= sample_sources;
    for (std::size_t step = 0; step < options_.window; step += method.steps) {
      if (packs) {
        auto& found = extent_of(room, m, step, node) = extent{};
        for (std::size_t g = 0; g < options_.gpus_per_node; ++g) {
          found.add(data_.of_packs(method.from, random), options_.n0);
        }
        continue;
      }
      auto const given = samples(room, static_cast<std::size_t>(method.from))
                             .subspan(step * node_samples_, method.steps * node_samples_);
      auto const dealt = dealt_out(given, method, options_.gpus_per_node);
      for (std::size_t s = 0; s < method.steps; ++s) {
        extent_of(room, m, step + s, node) = extent_in(given, dealt, s);
      }
    }
  }

  [[nodiscard]] balance::assignment dealt_out(std::span<balance::sample const> given,
                                              method const& how,
                                              std::size_t ranks) const {
    return balance::deal(
        given, {.method = how.dealt, .ranks = ranks, .steps = how.steps, .cost = {options_.n0}});
  }

  [[nodiscard]] extent extent_in(std::span<balance::sample const> given,
                                 balance::assignment const& dealt,
                                 std::size_t step) const {
    auto result = extent{};
    for (std::size_t r = 0; r < dealt.ranks(); ++r) {
      auto gpu = load{};
      for (auto const i : dealt.bin(step, r)) { gpu += of_length(given[i].length); }
      result.add(gpu, options_.n0);
    }
    return result;
  }

  /// Of 8 GPUs every node is a repetition, of 16 every two, and so on.
  void combine_nodes(std::size_t m, workspace& room, std::span<statistics> result) const {
    for (std::size_t step = 0; step < options_.window; ++step) {
      for (std::size_t level = 0; level < levels_; ++level) {
        auto const group = std::size_t{1} << level;
        for (std::size_t node = 0; node < nodes_; node += group) {
          auto& first = extent_of(room, m, step, node);
          if (level > 0) { first.add(extent_of(room, m, step, node + group / 2)); }
          result[level].add(first, gpus_at(level), options_.n0);
        }
      }
    }
  }

  /// For every number of GPUs over the first of each step's nodes.
  void deal_over_all(std::size_t m, workspace const& room, std::span<statistics> result) const {
    for (std::size_t step = 0; step < options_.window; ++step) {
      for (std::size_t level = 0; level < levels_; ++level) {
        auto const given = std::span{room.of_all}.subspan(step * nodes_ * node_samples_,
                                                          gpus_at(level) * options_.batch);
        auto const dealt = dealt_out(given, methods_[m], gpus_at(level));
        result[level].add(extent_in(given, dealt, 0), gpus_at(level), options_.n0);
      }
    }
  }

  settings options_;
  std::vector<method> methods_;
  population data_;
  std::size_t nodes_;
  std::size_t levels_;
  std::size_t node_samples_;
};

}  // namespace simulation

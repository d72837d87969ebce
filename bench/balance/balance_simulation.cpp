// SPDX-License-Identifier: Apache-2.0
#include "figure.hpp"      // for figure_svg, fixed
#include "lengths.hpp"     // for length_histogram, paper_model, read_histogram
#include "simulation.hpp"  // for finding, method, settings, simulator

#include <gradlane/balance/pack.hpp>    // for fitting, pack
#include <gradlane/balance/strata.hpp>  // for bias_of, largest_remainder, strata, totals_of
#include <gradlane/error.hpp>           // for error

#include <CLI/CLI.hpp>

#include <algorithm>   // for max
#include <chrono>      // for steady_clock
#include <exception>   // for exception
#include <filesystem>  // for exists
#include <fstream>     // for ofstream
#include <iostream>    // for cerr, cout
#include <stdexcept>   // for runtime_error
#include <string>      // for string, to_string
#include <thread>      // for hardware_concurrency
#include <utility>     // for move
#include <vector>      // for vector

namespace {

using namespace simulation;

using findings = std::vector<std::vector<finding>>;

constexpr auto description =
    R"(How evenly methods of balancing spread tokens over GPUs, and at what number of GPUs: the
simulation of Figure 6 in "Breaking MLPerf Training: A Case Study on Optimizing BERT" (Kim et al.
2024, arXiv 2402.02447) and its ablation, with gradlane's own deals.

Every repetition draws one step's sequences for all GPUs, lets each method deal them, and notes the
largest and the smallest number of tokens on any GPU. "strata" are the paper's four, by quotas of
largest remainder; "spread strata" come in the order of gradlane's sampler, which takes any number
of them: the same four, or sixteen of equal probability. "local" methods deal within a node, as LPT
does, "global" ones over all GPUs. Packs hold 512 tokens, half as many of them as there are
sequences a GPU otherwise.)";

struct command_line {
  settings options{};
  std::string histogram{GRADLANE_LENGTH_HISTOGRAM};
  std::string csv{};
  std::string svg{};
};

void add_options(CLI::App& app, command_line& out) {
  auto& o = out.options;
  app.add_option(
         "--histogram",
         out.histogram,
         "File of lines \"length,count\"; without one that exists: the paper's percentages, "
         "flat within strata, and 23.4 % at 512")
      ->capture_default_str();
  app.add_option(
         "--gpus",
         o.most_gpus,
         "Largest number of GPUs: a node's times a power of two; all smaller such numbers come too")
      ->capture_default_str();
  app.add_option("--gpus-per-node", o.gpus_per_node, "GPUs of a node")->capture_default_str();
  app.add_option("--batch", o.batch, "Sequences a GPU and step")->capture_default_str();
  app.add_option("--window", o.window, "Steps that are dealt together where a window is named")
      ->capture_default_str();
  app.add_option("--n0", o.n0, "Cost of n tokens is n * (1 + n / n0); LPT balances it")
      ->capture_default_str();
  app.add_option("--repetitions", o.repetitions, "At least so many at every number of GPUs")
      ->capture_default_str();
  app.add_option("--seed", o.seed, "Of all draws")->capture_default_str();
  app.add_option("--threads", o.threads, "Results do not depend on it")->capture_default_str();
  app.add_option("--csv", out.csv, "Write all findings to this file");
  app.add_option("--svg", out.svg, "Draw them like the paper's figure into this file");
}

[[nodiscard]] length_histogram lengths_of(command_line const& given, bool named) {
  if (named || std::filesystem::exists(given.histogram)) {
    auto lengths = read_histogram(given.histogram);
    std::cout << "lengths: " << std::filesystem::path{given.histogram}.filename().string() << "\n";
    return lengths;
  }
  std::cout << "lengths: the paper's percentages, flat within strata\n";
  return paper_model();
}

void print_data(length_histogram const& lengths, settings const& options) {
  auto const longest = std::max(512U, lengths.entries().back().length);
  auto const totals  = totals_of(balance::strata{{128, 256, 384, longest}}, lengths);
  auto weights       = std::vector<double>{};
  for (auto const& total : totals) { weights.push_back(static_cast<double>(total.samples)); }
  auto const quotas = balance::largest_remainder(weights, options.batch);
  auto const bias   = balance::bias_of(quotas, totals);
  std::cout << lengths.samples() << " sequences, mean length " << fixed(lengths.mean_length(), 2)
            << ", padding to 512 " << fixed(100 - lengths.mean_length() / 5.12, 1) << " %\n";
  std::cout << "padded: " << options.batch * longest << " places on every GPU, "
            << fixed(static_cast<double>(longest) / lengths.mean_length(), 3)
            << " of the mean tokens\nquotas";
  for (auto const quota : quotas) { std::cout << " " << quota; }
  std::cout << ": mean length " << fixed(bias.mean_length, 2) << ", would drop "
            << fixed(100.0 * static_cast<double>(bias.left_over) /
                         static_cast<double>(lengths.samples()),
                     1)
            << " % an epoch\n";
  for (auto const most : {3U, 12U}) {
    for (auto const how : {balance::fitting::shortest_pack_first, balance::fitting::best_fit}) {
      auto const packed =
          balance::pack(lengths, {.capacity = longest, .most = most, .method = how});
      std::cout << "packs of up to " << most << ", "
                << (how == balance::fitting::best_fit ? "best fit" : "shortest pack first") << ": "
                << fixed(100 * packed.fullness(), 2) << " % full\n";
    }
  }
}

template <class Cell>
void print_table(std::string const& title,
                 std::vector<method> const& methods,
                 findings const& found,
                 Cell cell) {
  std::cout << "\n" << title << "\n| |";
  for (auto const& f : found.front()) { std::cout << " " << f.gpus << " |"; }
  std::cout << "\n| --- |";
  for (std::size_t i = 0; i < found.front().size(); ++i) { std::cout << " --- |"; }
  std::cout << "\n";
  for (std::size_t m = 0; m < methods.size(); ++m) {
    std::cout << "| " << methods[m].name << " |";
    for (auto const& f : found[m]) { std::cout << " " << cell(f) << " |"; }
    std::cout << "\n";
  }
}

void print(std::vector<method> const& methods, findings const& found) {
  print_table(
      "largest / mean tokens on a GPU, by number of GPUs", methods, found, [](finding const& f) {
        return fixed(f.max_over_mean, 4);
      });
  print_table("largest / mean cost on a GPU", methods, found, [](finding const& f) {
    return fixed(f.cost_max_over_mean, 4);
  });
  print_table(
      "mean largest / mean smallest number of tokens", methods, found, [](finding const& f) {
        return fixed(f.most, 0) + "/" + fixed(f.least, 0);
      });
}

[[nodiscard]] std::string csv_of(std::vector<method> const& methods, findings const& found) {
  auto csv = std::string{
      "method,gpus,repetitions,mean_largest,mean_smallest,mean,max_over_mean,standard_error,cost_"
      "max_over_mean\n"};
  for (std::size_t m = 0; m < methods.size(); ++m) {
    for (auto const& f : found[m]) {
      csv += "\"" + methods[m].name + "\"," + std::to_string(f.gpus) + "," +
             std::to_string(f.repetitions) + "," + fixed(f.most, 3) + "," + fixed(f.least, 3) +
             "," + fixed(f.mean, 3) + "," + fixed(f.max_over_mean, 6) + "," +
             fixed(f.standard_error, 6) + "," + fixed(f.cost_max_over_mean, 6) + "\n";
    }
  }
  return csv;
}

/// A file to write at the end; opened at the beginning, so that its fault costs no time.
class output {
 public:
  explicit output(std::string path) : path_{std::move(path)} {
    if (!path_.empty()) { file_.open(path_, std::ios::binary); }
    check();
  }

  void write(std::string const& content) {
    if (path_.empty()) { return; }
    file_ << content;
    file_.close();
    check();
  }

 private:
  void check() const {
    if (!file_) { throw std::runtime_error{path_ + ": cannot be written"}; }
  }

  std::string path_;
  std::ofstream file_;
};

void run(command_line const& given, bool named) {
  auto csv           = output{given.csv};
  auto svg           = output{given.svg};
  auto const begin   = std::chrono::steady_clock::now();
  auto const lengths = lengths_of(given, named);
  print_data(lengths, given.options);
  auto const s     = simulator{given.options, lengths};
  auto const found = s.run();
  print(s.methods(), found);
  csv.write(csv_of(s.methods(), found));
  svg.write(figure_svg(s.methods(), found));
  auto const seconds = std::chrono::duration<double>{std::chrono::steady_clock::now() - begin};
  std::cout << "\n" << fixed(seconds.count(), 1) << " s\n";
}

}  // namespace

int main(int argc, char** argv) {
  auto given            = command_line{};
  given.options.threads = std::max(1U, std::thread::hardware_concurrency());
  auto app              = CLI::App{description, "balance_simulation"};
  add_options(app, given);
  CLI11_PARSE(app, argc, argv);
  try {
    run(given, app.count("--histogram") > 0);
  } catch (gradlane::error const& e) {
    std::cerr << "balance_simulation: " << e.message() << "\n";
    return 1;
  } catch (std::exception const& e) {
    std::cerr << "balance_simulation: " << e.what() << "\n";
    return 1;
  }
  return 0;
}

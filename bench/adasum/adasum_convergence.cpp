// SPDX-License-Identifier: Apache-2.0
// How much is learned from the same samples as ranks are added, with one learning-rate schedule: by
// the average of the ranks' gradients, their sum (the learning rate scaled by the ranks), and
// Adasum.
//
//   ./bench/adasum_adasum_convergence [seeds] [plot.svg] [peak learning rate]
//
// After Maleki et al. 2020, arXiv 2006.02924, LeNet-5 on MNIST: few epochs, a schedule that is
// aggressive for one rank (linear warm-up to a high peak, linear decay to 0), momentum, 32 samples
// a rank and step; not retuned for more ranks. Here: a small network, digits drawn by a formula,
// ranks as threads of gradlane's pipeline, the optimizer behind the reduction.
#include "convergence_plot.hpp"
#include "glyphs.hpp"
#include "network.hpp"

#include <gradlane/gradlane.hpp>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace {

using namespace gradlane;
using bench::glyph_set;
using bench::network;
using local::communicator;

constexpr auto batch     = std::size_t{32};
constexpr auto epochs    = std::size_t{2};
constexpr auto samples   = std::size_t{32768};
constexpr auto test_size = std::size_t{4096};
constexpr auto warm_up   = 0.1;  // of all steps
constexpr auto momentum  = 0.9F;

/// The learning rate when a fraction `done` of the samples has been used.
[[nodiscard]] double rate_at(double done, double peak) {
  return peak * (done < warm_up ? done / warm_up : (1.0 - done) / (1.0 - warm_up));
}

/// The samples of all epochs in the order of use.
[[nodiscard]] std::vector<std::size_t> sample_order(std::uint64_t seed) {
  auto draw   = bench::uniform{seed};
  auto result = std::vector<std::size_t>{};
  for (auto e = std::size_t{0}; e < epochs; ++e) {
    auto one = std::vector<std::size_t>(samples);
    std::iota(one.begin(), one.end(), std::size_t{0});
    for (auto i = samples; i > 1; --i) { std::swap(one[i - 1], one[draw.below(i)]); }
    result.insert(result.end(), one.begin(), one.end());
  }
  return result;
}

struct outcome {
  double accuracy{};
  double early_orthogonality{};  // mean over the first and last tenth of the steps
  double late_orthogonality{};
};

/// One training on `ranks` threads; the same samples in the same order on any number of ranks.
template <class Reduction>
[[nodiscard]] outcome train(int ranks,
                            std::uint64_t seed,
                            glyph_set const& training,
                            glyph_set const& test,
                            Reduction reduction,
                            double peak_rate) {
  auto result      = outcome{};
  auto const order = sample_order(seed);
  local::run(ranks, [&](communicator& comm, host::device& device) {
    auto model = network{seed};
    auto list  = std::vector<parameter>{};
    for (auto const size : network::sizes()) {
      list.push_back({.name = std::string{"p"}.append(std::to_string(list.size())), .count = size});
    }
    auto buckets   = gradient_buckets{device, bucket_plan{list}};
    auto pipeline  = clip_allreduce{buckets, comm, clip::none{}, reduction};
    auto compute   = device.make_stream();
    auto gradients = std::vector<std::span<float>>{};
    auto velocity  = std::vector<std::vector<float>>{};
    for (auto p = std::size_t{0}; p < list.size(); ++p) {
      gradients.push_back(buckets.template gradient<float>(p));
      velocity.emplace_back(list[p].count);
    }
    auto const together = batch * static_cast<std::size_t>(ranks);
    auto const steps    = order.size() / together;
    auto const own      = static_cast<std::size_t>(comm.rank()) * batch;
    for (auto step = std::size_t{0}; step < steps; ++step) {
      pipeline.begin(compute);
      model.backward(training, std::span{order}.subspan(step * together + own, batch), gradients);
      for (auto p = list.size(); p-- > 0;) { pipeline.ready(p, compute); }
      pipeline.finish(compute);
      device.sync(compute);
      auto const done = (static_cast<double>(step) + 0.5) / static_cast<double>(steps);
      auto const rate = static_cast<float>(rate_at(done, peak_rate));
      for (auto p = std::size_t{0}; p < list.size(); ++p) {
        for (auto i = std::size_t{0}; i < list[p].count; ++i) {
          velocity[p][i] = momentum * velocity[p][i] + gradients[p][i];
          model.parameters[p][i] -= rate * velocity[p][i];
        }
      }
      if (comm.rank() == 0 && (10 * step < steps || 10 * (step + 1) > 9 * steps)) {
        auto& sum = 10 * step < steps ? result.early_orthogonality : result.late_orthogonality;
        sum += pipeline.sync_report().orthogonality * 10 / static_cast<double>(steps);
      }
    }
    if (comm.rank() == 0) { result.accuracy = model.accuracy(test); }
  });
  return result;
}

struct statistics {
  double mean;
  double deviation;
};

[[nodiscard]] statistics over(std::span<outcome const> runs, double outcome::* value) {
  auto const n = static_cast<double>(runs.size());
  auto sum     = 0.0;
  auto squares = 0.0;
  for (auto const& run : runs) { sum += run.*value; }
  for (auto const& run : runs) { squares += (run.*value - sum / n) * (run.*value - sum / n); }
  return {sum / n, n > 1 ? std::sqrt(squares / (n - 1)) : 0.0};
}

}  // namespace

int main(int argc, char** argv) {
  auto const seeds =
      argc > 1 ? static_cast<std::uint64_t>(std::strtoull(argv[1], nullptr, 10)) : 5U;
  auto const peak = argc > 3 ? std::strtod(argv[3], nullptr) : 0.1;
  auto const test = bench::make_glyphs(test_size, 999);
  auto training   = std::vector<glyph_set>{};
  for (auto seed = std::uint64_t{1}; seed <= seeds; ++seed) {
    training.push_back(bench::make_glyphs(samples, seed));
  }
  auto curves = std::vector<bench::curve>{{"average", "#1f77b4", {}},
                                          {"sum", "#d62728", {}},
                                          {"best rate", "#888", {}},
                                          {"Adasum", "#2ca02c", {}}};
  for (auto const ranks : {1, 2, 4, 8, 16, 32}) {
    auto const of_seeds = [&](auto reduction, double factor) {
      auto result = std::vector<outcome>{};
      for (auto seed = std::uint64_t{1}; seed <= seeds; ++seed) {
        result.push_back(train(ranks, seed, training[seed - 1], test, reduction, factor * peak));
      }
      return result;
    };
    auto by_factor = std::vector<statistics>{};  // the average at peaks 1, 2, 4, ... ranks times
    auto best      = std::size_t{0};
    for (auto factor = 1; factor <= ranks; factor *= 2) {
      by_factor.push_back(over(of_seeds(average::ranks{}, factor), &outcome::accuracy));
      if (by_factor.back().mean > by_factor[best].mean) { best = by_factor.size() - 1; }
    }
    auto const adasum   = of_seeds(reduce::adasum{}, 1.0);
    auto const measured = std::array{
        by_factor.front(), by_factor.back(), by_factor[best], over(adasum, &outcome::accuracy)};
    std::printf("%2d ranks:", ranks);
    for (auto m = std::size_t{0}; m < curves.size(); ++m) {
      auto const& [mean, deviation] = measured[m];
      curves[m].points.push_back({static_cast<double>(ranks), mean, deviation});
      std::printf("  %s %5.2f (%.2f)", curves[m].name.c_str(), 100 * mean, 100 * deviation);
    }
    std::printf("  best at %d times the rate; orthogonality %.2f, later %.2f\n",
                1 << best,
                over(adasum, &outcome::early_orthogonality).mean,
                over(adasum, &outcome::late_orthogonality).mean);
    std::fflush(stdout);
  }
  if (argc > 2) {
    std::ofstream{argv[2]} << bench::plot_svg(
        "Accuracy after the same samples, one schedule", curves, 0.0);
  }
}

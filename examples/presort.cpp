// SPDX-License-Identifier: Apache-2.0
// Samples of unequal lengths, dealt so that four ranks have the same work in every step.
//
// Each rank (a thread here) reads samples of its own. Those of the next eight steps are submitted
// while the eight before are trained on; only samples that change owner move, without padding.
#include <gradlane/gradlane.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iomanip>
#include <iostream>
#include <span>
#include <vector>

namespace {

constexpr auto ranks   = std::size_t{4};
constexpr auto steps   = std::size_t{8};   // of a window
constexpr auto batch   = std::size_t{16};  // samples of a rank and step
constexpr auto windows = std::size_t{3};

/// What a rank reads for a window.
struct samples {
  std::vector<std::uint64_t> ids;
  std::vector<std::uint32_t> lengths;
  std::vector<std::int32_t> tokens;  // sample after sample

  samples(std::size_t window, std::size_t rank) {
    for (auto i = std::size_t{0}; i < steps * batch; ++i) {
      auto const id = (window * ranks + rank) * steps * batch + i;
      ids.push_back(id);
      auto const mixed = (id * 2654435761U >> 8U) % 1000;
      lengths.push_back(static_cast<std::uint32_t>(mixed < 234 ? 512 : 5 + mixed % 380));
      tokens.insert(tokens.end(), lengths.back(), static_cast<std::int32_t>(50000 + id % 1000));
    }
  }

  [[nodiscard]] gradlane::sample_window window() const {
    return {.steps   = steps,
            .ids     = ids,
            .lengths = lengths,
            .arrays  = {std::as_bytes(std::span{tokens})}};
  }
};

/// Tokens of the fullest rank over the mean, of all ranks and steps.
struct imbalance {
  std::vector<std::vector<std::size_t>> tokens{windows * steps, std::vector<std::size_t>(ranks)};

  [[nodiscard]] double mean() const {
    auto sum = 0.0;
    for (auto const& step : tokens) {
      auto all = std::size_t{0};
      for (auto const n : step) { all += n; }
      auto const most = *std::max_element(step.begin(), step.end());
      sum += static_cast<double>(most * ranks) / static_cast<double>(all);
    }
    return sum / static_cast<double>(tokens.size());
  }
};

}  // namespace

int main() {
  auto before = imbalance{};
  auto after  = imbalance{};
  auto moved  = std::size_t{0};
  gradlane::local::run(ranks, [&](auto& comm, auto& device) {
    auto const rank = static_cast<std::size_t>(comm.rank());
    auto node       = comm.node_group();  // whose ranks samples may move between
    auto sort       = gradlane::presort{device, node, {gradlane::array_of<std::int32_t>("tokens")}};
    auto compute    = device.make_stream();

    auto own = std::vector<samples>{};
    for (auto w = std::size_t{0}; w < windows; ++w) { own.emplace_back(w, rank); }
    sort.submit(compute, own[0].window());
    for (auto w = std::size_t{0}; w < windows; ++w) {
      auto const& dealt = sort.sync_take(compute);  // normally there by now: does not wait
      if (w + 1 < windows) { sort.submit(compute, own[w + 1].window()); }
      device.sync(compute);
      for (auto s = std::size_t{0}; s < steps; ++s) {
        auto const b      = dealt.batch(s);
        auto const tokens = b.template array<std::int32_t>(0);  // b.starts(): where each begins
        after.tokens[w * steps + s][rank] = tokens.size();      // … train on them …
        auto const lengths                = std::span{own[w].lengths}.subspan(s * batch, batch);
        for (auto const n : lengths) { before.tokens[w * steps + s][rank] += n; }
        sort.advance();  // deals the next window once its lengths are there; never waits
      }
      if (rank == 0) { moved += dealt.traffic().moved_samples; }
      sort.release(compute);
    }
  });
  std::cout << std::fixed << std::setprecision(3)
            << "tokens of the fullest rank over the mean, as read: " << before.mean()
            << ", dealt: " << after.mean() << "; samples moved: " << moved << " of "
            << windows * ranks * steps * batch << '\n';
}

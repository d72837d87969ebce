// SPDX-License-Identifier: Apache-2.0
// A window of samples brought to where it is trained on: by the presort, and by the paper's way,
// where every step gathers the padded samples of all ranks on every rank and each picks its own.
// Both over communicators of one kind, in turns, in one run, so that ratios hold.
//
//   mpiexec -n 8 ./bench/balance_presort_bench [histogram] [turns] [window] [batch]
//
// Lengths are drawn from the histogram, or from the paper's percentages where there is none. The
// presort moves what a BERT sample consists of: ids of 32 bits, segments, masked positions and
// their labels. What is gathered is as in MLPerf's entries: 4 · 512 + 1 values of 16 bits a sample.
#include "../turns.hpp"  // for measure, row
#include "draws.hpp"     // for draws, random_bits
#include "lengths.hpp"   // for length_histogram, paper_model, read_histogram

#include <gradlane/gradlane.hpp>
#include <gradlane/mpi/communicator.hpp>
#include <gradlane/mpi/environment.hpp>

#include <mpi.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

namespace {

using namespace gradlane;
using host::device;
using mpi::communicator;

constexpr auto longest      = std::size_t{512};
constexpr auto padded_words = 4 * longest + 1;  // ids, mask, segments, labels; next sentence

struct settings {
  std::size_t turns{50};
  std::size_t window{8};
  std::size_t batch{16};  // samples of a rank and step
};

/// This rank's samples of a window.
struct local_samples {
  std::vector<std::uint64_t> ids;
  std::vector<std::uint32_t> lengths;
  std::vector<std::uint32_t> counts;  // of masked positions
  std::vector<std::int32_t> tokens;
  std::vector<std::uint8_t> segments;
  std::vector<std::uint16_t> positions;
  std::vector<std::int32_t> labels;
  std::vector<std::uint8_t> next;

  [[nodiscard]] sample_window window(std::size_t steps) const {
    return {.steps   = steps,
            .ids     = ids,
            .lengths = lengths,
            .counts  = {counts, counts},
            .arrays  = {std::as_bytes(std::span{tokens}),
                        std::as_bytes(std::span{segments}),
                        std::as_bytes(std::span{positions}),
                        std::as_bytes(std::span{labels}),
                        std::as_bytes(std::span{next})}};
  }
};

[[nodiscard]] std::vector<sample_array> arrays() {
  return {array_of<std::int32_t>("tokens"),
          array_of<std::uint8_t>("segments"),
          array_of<std::uint16_t>("positions", array_rows::counted),
          array_of<std::int32_t>("labels", array_rows::counted),
          array_of<std::uint8_t>("next", array_rows::per_sample)};
}

[[nodiscard]] local_samples draw_samples(simulation::draws<std::uint32_t> const& length_of,
                                         settings const& wanted,
                                         std::size_t number) {
  auto result = local_samples{};
  auto random = simulation::random_bits{1, number};
  for (auto i = std::size_t{0}; i < wanted.window * wanted.batch; ++i) {
    auto const length = length_of(random);
    auto const masked = std::max(length * 15 / 100, 1U);
    result.ids.push_back(number * wanted.window * wanted.batch + i);
    result.lengths.push_back(length);
    result.counts.push_back(masked);
    for (auto t = std::uint32_t{0}; t < length; ++t) {
      result.tokens.push_back(static_cast<std::int32_t>(random.below(50000)));
      result.segments.push_back(t < length / 2 ? 0 : 1);
    }
    for (auto p = std::uint32_t{0}; p < masked; ++p) {
      result.positions.push_back(static_cast<std::uint16_t>(p * 6));
      result.labels.push_back(static_cast<std::int32_t>(random.below(50000)));
    }
    result.next.push_back(static_cast<std::uint8_t>(i % 2));
  }
  return result;
}

/// What a way of balancing moves, and leaves.
struct account {
  double received{};             // bytes, all ranks and windows
  std::vector<double> tokens{};  // of this rank, by step

  /// max/mean over ranks, mean over steps. Collective.
  [[nodiscard]] double imbalance() const {
    auto most    = tokens;
    auto sum     = tokens;
    auto ranks   = 0;
    auto const n = static_cast<int>(tokens.size());
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    MPI_Allreduce(MPI_IN_PLACE, most.data(), n, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    MPI_Allreduce(MPI_IN_PLACE, sum.data(), n, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    auto result = 0.0;
    for (auto s = std::size_t{0}; s < most.size(); ++s) { result += most[s] * ranks / sum[s]; }
    return result / n;
  }
};

/// The presort; lengths, ids and counts are gathered.
class presort_way {
 public:
  presort_way(device& d, communicator& comm, presort_options options)
      : device_{d}, sort_{d, comm, arrays(), options} {}

  void run(local_samples const& own, settings const& wanted, account& out) {
    sort_.submit(stream_, own.window(wanted.window));
    auto const& taken = sort_.sync_take(stream_);
    device_.sync(stream_);
    out.received += static_cast<double>(taken.traffic().moved + taken.traffic().described);
    for (auto s = std::size_t{0}; s < taken.steps(); ++s) {
      out.tokens.push_back(static_cast<double>(taken.batch(s).tokens()));
    }
    sort_.release(stream_);
  }

  /// The same for a host that is busy with steps of 20 ms: how long calls take it.
  [[nodiscard]] double run_ahead(local_samples const& own, settings const& wanted) {
    auto spent       = 0.0;
    auto const timed = [&](auto call) {
      auto const begin = std::chrono::steady_clock::now();
      call();
      auto const end = std::chrono::steady_clock::now();
      spent += std::chrono::duration<double>{end - begin}.count();
    };
    auto const window = own.window(wanted.window);
    MPI_Barrier(MPI_COMM_WORLD);
    timed([&] { sort_.submit(stream_, window); });
    for (auto s = std::size_t{0}; s < wanted.window; ++s) {
      std::this_thread::sleep_for(std::chrono::milliseconds{20});
      timed([&] { static_cast<void>(sort_.advance()); });
    }
    timed([&] {
      static_cast<void>(sort_.sync_take(stream_));
      device_.sync(stream_);
    });
    sort_.release(stream_);
    return spent;
  }

 private:
  device& device_;
  host::stream stream_{device_.make_stream()};
  presort<device, communicator> sort_;
};

/// Every step: gathers all padded samples on every rank, deals them and picks this rank's.
class gather_way {
 public:
  gather_way(device& d, communicator& comm, settings const& wanted)
      : device_{d},
        comm_{comm},
        padded_(wanted.batch * padded_words),
        all_(padded_.size() * static_cast<std::size_t>(comm.size())) {}

  void run(local_samples const& own, settings const& wanted, account& out) {
    auto at = place{};
    for (auto s = std::size_t{0}; s < wanted.window; ++s) {
      pad(own, wanted, s, at);
      comm_.all_gather(stream_, view_of(padded_), view_of(all_));
      device_.sync(stream_);
      out.tokens.push_back(static_cast<double>(pick()));
    }
    auto const pairs = static_cast<double>(comm_.size()) * (comm_.size() - 1);
    auto const bytes = wanted.window * padded_.size() * sizeof(std::int16_t);
    out.received += pairs * static_cast<double>(bytes);
  }

 private:
  struct place {
    std::size_t token{};
    std::size_t label{};
  };

  [[nodiscard]] static buffer_view view_of(std::vector<std::int16_t>& x) {
    auto const bytes = std::as_writable_bytes(std::span{x});
    return {bytes.data(), bytes.size(), dtype::uint8};
  }

  /// Ids wrap around: what 16 bits do to a vocabulary of 50,000.
  void pad(local_samples const& own, settings const& wanted, std::size_t step, place& at) {
    std::fill(padded_.begin(), padded_.end(), std::int16_t{0});
    for (auto k = std::size_t{0}; k < wanted.batch; ++k) {
      auto const i    = step * wanted.batch + k;
      auto* const row = padded_.data() + k * padded_words;
      for (auto t = std::size_t{0}; t < own.lengths[i]; ++t, ++at.token) {
        row[t]               = static_cast<std::int16_t>(own.tokens[at.token]);
        row[longest + t]     = 1;
        row[2 * longest + t] = own.segments[at.token];
      }
      for (auto p = std::size_t{0}; p < own.counts[i]; ++p, ++at.label) {
        auto const position         = own.positions[at.label];
        row[3 * longest + position] = static_cast<std::int16_t>(own.labels[at.label]);
      }
      row[4 * longest] = own.next[i];
    }
  }

  /// This rank's samples, without padding; gives their tokens.
  [[nodiscard]] std::size_t pick() {
    auto const row_of = [&](std::size_t i) { return all_.data() + i * padded_words; };
    auto samples      = std::vector<balance::sample>{};
    for (auto i = std::size_t{0}; i < all_.size() / padded_words; ++i) {
      auto const* const mask = row_of(i) + longest;
      auto const length      = std::find(mask, mask + longest, 0) - mask;
      samples.push_back({.id = i, .length = static_cast<std::uint32_t>(length)});
    }
    auto const dealt = balance::deal(
        samples,
        {.method = balance::dealing::raster, .ranks = static_cast<std::size_t>(comm_.size())});
    auto tokens = std::size_t{0};
    picked_.clear();
    for (auto const i : dealt.bin(0, static_cast<std::size_t>(comm_.rank()))) {
      for (auto part = std::size_t{0}; part < 4; ++part) {
        auto const* const values = row_of(i) + part * longest;
        picked_.insert(picked_.end(), values, values + samples[i].length);
      }
      tokens += samples[i].length;
    }
    return tokens;
  }

  device& device_;
  communicator& comm_;
  std::vector<std::int16_t> padded_;
  std::vector<std::int16_t> all_;
  std::vector<std::int16_t> picked_;
  host::stream stream_{device_.make_stream()};
};

[[nodiscard]] simulation::length_histogram histogram_of(int argc, char** argv) {
  if (argc > 1) { return simulation::read_histogram(argv[1]); }
  auto const usual = std::string{GRADLANE_LENGTH_HISTOGRAM};
  if (std::filesystem::exists(usual)) { return simulation::read_histogram(usual); }
  return simulation::paper_model();
}

[[nodiscard]] simulation::draws<std::uint32_t> draws_of(simulation::length_histogram const& from) {
  auto lengths = std::vector<std::uint32_t>{};
  auto weights = std::vector<double>{};
  for (auto const& [length, count] : from.entries()) {
    lengths.push_back(length);
    weights.push_back(static_cast<double>(count));
  }
  return {std::move(lengths), weights};
}

void compare(int argc, char** argv) {
  auto wanted       = settings{};
  auto const number = [&](int i, std::size_t usual) {
    return argc > i ? static_cast<std::size_t>(std::strtoull(argv[i], nullptr, 10)) : usual;
  };
  wanted.turns         = number(2, wanted.turns);
  wanted.window        = number(3, wanted.window);
  wanted.batch         = number(4, wanted.batch);
  auto const histogram = histogram_of(argc, argv);
  auto const length_of = draws_of(histogram);

  auto d           = device{};
  auto for_lpt     = mpi::from_mpi(d, MPI_COMM_WORLD);
  auto for_snake   = mpi::from_mpi(d, MPI_COMM_WORLD);
  auto for_gather  = mpi::from_mpi(d, MPI_COMM_WORLD);
  auto const rank  = static_cast<std::size_t>(for_lpt.rank());
  auto const ranks = static_cast<std::size_t>(for_lpt.size());
  auto own         = std::vector<local_samples>{};
  for (auto turn = std::size_t{0}; turn <= wanted.turns; ++turn) {
    own.push_back(draw_samples(length_of, wanted, turn * ranks + rank));
  }
  auto lpt      = presort_way{d, for_lpt, {.method = balance::dealing::lpt}};
  auto snake    = presort_way{d, for_snake, {.method = balance::dealing::snake}};
  auto gather   = gather_way{d, for_gather, wanted};
  auto accounts = std::array<account, 3>{};
  auto turn     = std::array<std::size_t, 3>{};
  auto rows     = std::vector<bench::row>{
      {"gathering padded samples, raster",
           [&] { gather.run(own[turn[0]++], wanted, accounts[0]); }},
      {"presort, snake", [&] { snake.run(own[turn[1]++], wanted, accounts[1]); }},
      {"presort, lpt", [&] { lpt.run(own[turn[2]++], wanted, accounts[2]); }}};
  bench::measure(rows, static_cast<int>(wanted.turns));

  auto ahead = bench::row{};
  for (auto const& samples : own) { ahead.seconds.push_back(lpt.run_ahead(samples, wanted)); }
  auto host = ahead.median();
  MPI_Allreduce(MPI_IN_PLACE, &host, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);

  if (rank == 0) {
    std::printf(
        "%zu ranks, %zu samples of a rank and step, windows of %zu steps, mean length %.1f; "
        "medians of %zu turns\n",
        ranks,
        wanted.batch,
        wanted.window,
        histogram.mean_length(),
        wanted.turns);
  }
  for (auto i = std::size_t{0}; i < rows.size(); ++i) {
    auto const imbalance = accounts[i].imbalance();
    auto const windows   = static_cast<double>(own.size());
    if (rank != 0) { continue; }
    std::printf("  %-34s %8.2f ms a window, %8.3f MB received (%.3f), max/mean tokens %.4f\n",
                rows[i].name.c_str(),
                rows[i].median() * 1e3,
                accounts[i].received / windows * 1e-6,
                accounts[i].received / accounts[0].received,
                imbalance);
  }
  if (rank == 0) {
    std::printf("  %-34s %8.3f ms a window, of the slowest rank's host\n",
                "presort, lpt, a window ahead",
                host * 1e3);
  }
}

}  // namespace

int main(int argc, char** argv) {
  auto const environment = mpi::environment{};
  try {
    compare(argc, argv);
  } catch (std::exception const& problem) {
    std::fprintf(stderr, "presort_bench: %s\n", problem.what());
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
}

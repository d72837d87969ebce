// SPDX-License-Identifier: Apache-2.0
// The presort over MPI: any number of ranks, nodes and thread levels, messages in many pieces.
#include <gradlane/gradlane.hpp>
#include <gradlane/mpi/communicator.hpp>

#include <doctest/doctest.h>

#include <mpi.h>

#include <support/samples.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

namespace {

using namespace gradlane;
using balance::sample;
using namespace std::chrono_literals;

/// The samples of every rank of a group in a window: ragged, rank 0 has none in every third.
[[nodiscard]] std::vector<std::vector<sample>> samples_by_rank(int ranks, std::uint64_t window) {
  auto random = std::mt19937_64{window};
  auto result = std::vector<std::vector<sample>>(static_cast<std::size_t>(ranks));
  auto id     = window << 33U;
  for (auto r = std::size_t{0}; r < result.size(); ++r) {
    for (auto n = r == 0 && window % 3 == 0 ? 0 : random() % 30; n > 0; --n) {
      result[r].push_back(
          {id++, static_cast<std::uint32_t>(random() % 5 == 0 ? 300 : random() % 40)});
    }
  }
  return result;
}

void check_windows(mpi::communicator& comm, host::device& device, presort_options options) {
  auto const rank        = static_cast<std::size_t>(comm.rank());
  auto const ranks       = static_cast<std::size_t>(comm.size());
  auto sort              = presort{device, comm, test::sample_arrays(), options};
  auto producer          = device.make_stream();
  auto reader            = device.make_stream();
  auto sets              = std::vector<test::sample_set>{};
  constexpr auto windows = std::uint64_t{6};
  for (auto w = std::uint64_t{0}; w < windows; ++w) {
    sets.emplace_back(samples_by_rank(comm.size(), w)[rank]);
  }
  auto const submit = [&](std::uint64_t w) {
    auto const by_rank = samples_by_rank(comm.size(), w);
    auto all           = std::vector<sample>{};
    auto per_rank      = std::vector<std::size_t>{};
    for (auto const& own : by_rank) {
      all.insert(all.end(), own.begin(), own.end());
      per_rank.push_back(own.size());
    }
    device.enqueue(producer, [&set = sets[w]] { set.fill(); });
    auto window       = sets[w].window(1 + w % 4);
    auto const shared = test::sample_set{all};
    if (w % 2 == 1) {  // a shared index
      window.ids      = shared.ids;
      window.lengths  = shared.lengths;
      window.counts   = {shared.counts[0], shared.counts[1]};
      window.per_rank = per_rank;
    }
    sort.submit(producer, window);  // which copies the index
  };
  submit(0);
  for (auto w = std::uint64_t{0}; w < windows; ++w) {
    static_cast<void>(sort.advance());
    auto const& window = sort.sync_take(reader, 30s);
    if (w + 1 < windows) { submit(w + 1); }
    auto all = std::vector<sample>{};
    for (auto const& own : samples_by_rank(comm.size(), w)) {
      all.insert(all.end(), own.begin(), own.end());
    }
    auto const rules = balance::deal_rules{.method = options.method,
                                           .ranks  = ranks * options.micro_steps,
                                           .steps  = 1 + w % 4,
                                           .cost   = options.cost};
    CHECK(test::ids_by_batch(window) == test::expected_ids(all, rules, ranks, rank));
    device.sync(reader);
    auto wrong = std::size_t{0};
    for (auto s = std::size_t{0}; s < window.steps(); ++s) {
      for (auto m = std::size_t{0}; m < window.micro_steps(); ++m) {
        wrong += test::mistakes_in(window.batch(s, m));
      }
    }
    CHECK(wrong == 0);
    test::poison(window);
    sort.release(reader);
  }
}

}  // namespace

TEST_CASE("presort over MPI gives every sample to one rank, with its contents") {
  auto device = host::device{};
  auto comm   = mpi::from_mpi(device, MPI_COMM_WORLD);
  check_windows(comm, device, {});
  check_windows(comm, device, {.method = balance::dealing::snake, .micro_steps = 2});
}

TEST_CASE("presort over MPI works in node groups, however uneven they are") {
  auto device = host::device{};
  auto comm   = mpi::from_mpi(device, MPI_COMM_WORLD);
  auto node   = comm.node_group();
  check_windows(node, device, {});
  auto const alone = comm.rank() == comm.size() - 1;  // 3 + 1 of 4 ranks
  auto uneven      = comm.split(alone ? 1 : 0, comm.rank());
  check_windows(uneven, device, {});
}

TEST_CASE("presort over MPI cuts what is longer than a message may be") {
  auto device = host::device{};
  auto comm   = mpi::from_mpi(device, MPI_COMM_WORLD, {.max_chunk = 5});
  check_windows(comm, device, {});
}

TEST_CASE("presort over MPI refuses on every rank what does not fit together on one") {
  auto device = host::device{};
  auto comm   = mpi::from_mpi(device, MPI_COMM_WORLD);
  auto sort   = presort{device, comm, test::sample_arrays()};
  auto stream = device.make_stream();
  auto own    = test::sample_set{{{static_cast<std::uint64_t>(comm.rank()), 3}}};
  own.fill();
  auto window = own.window(1);
  if (comm.rank() == comm.size() - 1) { window.arrays.pop_back(); }
  sort.submit(stream, window);
  CHECK_THROWS_WITH_AS(static_cast<void>(sort.sync_take(stream, 30s)),
                       doctest::Contains("does not fit together"),
                       contract_error);
  window       = own.window(1);
  window.steps = comm.rank() == 0 ? 1 : 2;
  sort.submit(stream, window);
  auto const take = [&] { static_cast<void>(sort.sync_take(stream, 30s)); };
  if (comm.size() > 1) {
    CHECK_THROWS_WITH_AS(take(), doctest::Contains("the number of steps"), plan_mismatch_error);
  } else {
    take();
  }
  device.sync(stream);
}

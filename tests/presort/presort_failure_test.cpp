// SPDX-License-Identifier: Apache-2.0
// Ranks that disagree, windows that do not fit together, calls out of turn, peers that do not come:
// the same error on all ranks, and never a hang.
#include <gradlane/gradlane.hpp>

#include <doctest/doctest.h>

#include <support/samples.hpp>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace {

using namespace gradlane;
using balance::sample;
using local::communicator;
using namespace std::chrono_literals;

[[nodiscard]] std::vector<sample> samples_of(int rank, std::uint64_t first = 0) {
  auto const r = static_cast<std::uint64_t>(rank);
  return {{first + r, 7}, {first + 10 + r, 3}};
}

/// Three ranks submit a window that `spoil(rank, window)` may have changed; all must get E with the
/// text, and then a window that is right.
template <class E, class Spoil>
void refuses(Spoil spoil, std::string const& text) {
  CAPTURE(text);
  local::run(3, [&](communicator& comm, host::device& device) {
    auto sort   = presort{device, comm, test::sample_arrays()};
    auto stream = device.make_stream();
    auto own    = test::sample_set{samples_of(comm.rank())};
    own.fill();
    auto window = own.window(2);
    spoil(comm.rank(), window);
    sort.submit(stream, window);
    CHECK_THROWS_WITH_AS(
        static_cast<void>(sort.sync_take(stream)), doctest::Contains(text.c_str()), E);
    sort.submit(stream, own.window(2));
    auto const& taken = sort.sync_take(stream);
    device.sync(stream);
    CHECK(test::mistakes_in(taken.batch(0)) + test::mistakes_in(taken.batch(1)) == 0);
  });
}

/// Options or arrays that only the last rank has are refused on all.
void refuses_to_be_made(std::vector<sample_array> const& arrays,
                        presort_options options,
                        std::string const& text) {
  local::run(3, [&](communicator& comm, host::device& device) {
    auto const last = comm.rank() == 2;
    CHECK_THROWS_WITH_AS((presort{device,
                                  comm,
                                  last ? arrays : test::sample_arrays(),
                                  last ? options : presort_options{}}),
                         doctest::Contains(text.c_str()),
                         plan_mismatch_error);
  });
}

}  // namespace

TEST_CASE("presort refuses ranks that were made with different arrays or options") {
  auto arrays             = test::sample_arrays();
  arrays[1].row_bytes     = 2;
  auto const small_arrays = arrays;
  refuses_to_be_made(small_arrays, {}, "array 'segments': per token, rows of 1 B");
  refuses_to_be_made(test::sample_arrays(), {.method = balance::dealing::snake}, "rank 2 has");
  refuses_to_be_made(test::sample_arrays(), {.cost = {100}}, "cost n * (1 + n / 100)");
  refuses_to_be_made(test::sample_arrays(), {.micro_steps = 2}, "micro-steps 2");
}

TEST_CASE("presort refuses options and arrays that make no sense") {
  local::run(1, [](communicator& comm, host::device& device) {
    CHECK_THROWS_WITH_AS((presort{device, comm, {{.name = "x", .row_bytes = 0}}}),
                         doctest::Contains("no bytes"),
                         contract_error);
    CHECK_THROWS_AS((presort{device, comm, {}, {.micro_steps = 0}}), contract_error);
    CHECK_THROWS_AS((presort{device, comm, {}, {.cost = {-1}}}), contract_error);
  });
}

TEST_CASE("presort tells all ranks of a window that does not fit together on one") {
  auto const of_rank_1 = [](auto change) {
    return [change](int rank, sample_window& w) {
      if (rank == 1) { change(w); }
    };
  };
  auto const text = std::string{"the window of rank 1 does not fit together"};
  refuses<contract_error>(of_rank_1([](auto& w) { w.lengths = w.lengths.first(1); }), text);
  refuses<contract_error>(of_rank_1([](auto& w) { w.steps = 0; }), text);
  refuses<contract_error>(of_rank_1([](auto& w) { w.counts.pop_back(); }), text);
  refuses<contract_error>(of_rank_1([](auto& w) { w.counts[1] = w.counts[1].first(1); }), text);
  refuses<contract_error>(of_rank_1([](auto& w) { w.arrays.pop_back(); }), text);
  refuses<contract_error>(of_rank_1([](auto& w) { w.arrays[0] = w.arrays[0].first(4); }), text);
  auto const two = std::vector<std::size_t>{1, 1};
  refuses<contract_error>(of_rank_1([&](auto& w) { w.per_rank = two; }), text);
}

TEST_CASE("presort tells each rank of its own window where several do not fit together") {
  local::run(3, [&](communicator& comm, host::device& device) {
    auto sort   = presort{device, comm, test::sample_arrays()};
    auto stream = device.make_stream();
    auto own    = test::sample_set{samples_of(comm.rank())};
    auto window = own.window(1);
    if (comm.rank() == 1) { window.arrays.pop_back(); }
    if (comm.rank() == 2) { window.lengths = {}; }
    auto const says = std::array{"rank 1 does not fit together, its own error says how",
                                 "rank 1 does not fit together: there are 5 arrays",
                                 "rank 2 does not fit together: there are 2 ids and 0 lengths"};
    sort.submit(stream, window);
    CHECK_THROWS_WITH_AS(static_cast<void>(sort.sync_take(stream)),
                         doctest::Contains(says[static_cast<std::size_t>(comm.rank())]),
                         contract_error);
  });
}

TEST_CASE("presort says on the rank itself what does not fit") {
  local::run(1, [](communicator& comm, host::device& device) {
    auto sort   = presort{device, comm, test::sample_arrays()};
    auto stream = device.make_stream();
    auto own    = test::sample_set{samples_of(0)};
    own.fill();
    auto const says = [&](auto change, char const* text) {
      auto window = own.window(1);
      change(window);
      sort.submit(stream, window);
      CHECK_THROWS_WITH_AS(
          static_cast<void>(sort.sync_take(stream)), doctest::Contains(text), contract_error);
    };
    says([](auto& w) { w.lengths = w.lengths.first(1); }, "2 ids and 1 lengths");
    says([](auto& w) { w.arrays.pop_back(); }, "5 arrays, the presort was made for 6");
    says([](auto& w) { w.arrays[0] = w.arrays[0].first(4); },
         "array 'tokens' has 4 bytes, 10 rows of 4");
    says([](auto& w) { w.counts.pop_back(); }, "counts for 1 arrays, 2 are counted");
    auto const one = std::vector<std::size_t>{1};
    says([&](auto& w) { w.per_rank = one; }, "per_rank sums up to 1, there are 2 ids");
    auto const wrapped = std::vector<std::size_t>{~std::size_t{0}};
    says([&](auto& w) { w.per_rank = wrapped; },
         "per_rank gives a rank 18446744073709551615 samples");
    says([](auto& w) { w.steps = std::size_t{1} << 33U; }, "2^32");
  });
}

TEST_CASE("presort refuses windows that differ in steps, or in the shared length index") {
  refuses<plan_mismatch_error>([](int rank, sample_window& w) { w.steps = rank == 2 ? 3 : 2; },
                               "the number of steps is 2 on rank 0, 3 on rank 2");
  auto whole = std::vector<test::sample_set>{};
  for (auto r = 0; r < 3; ++r) {
    auto all = std::vector<sample>{};
    for (auto k = 0; k < 3; ++k) {
      for (auto const& s : samples_of(k)) { all.push_back(s); }
    }
    if (r == 1) { std::swap(all[0], all[4]); }  // of ranks 0 and 2
    whole.emplace_back(all);
  }
  auto const per_rank = std::vector<std::size_t>{2, 2, 2};
  auto const share    = [&](int rank, sample_window& w) {
    auto const& all = whole[static_cast<std::size_t>(rank)];
    w.ids           = all.ids;
    w.lengths       = all.lengths;
    w.counts        = {all.counts[0], all.counts[1]};
    w.per_rank      = per_rank;
  };
  refuses<plan_mismatch_error>(share, "the hash of the shared length index");
  refuses<plan_mismatch_error>(
      [&](int rank, sample_window& w) {
        if (rank != 2) { share(0, w); }
      },
      "0 on rank 2");
}

TEST_CASE("presort refuses a sample that was submitted twice") {
  auto const zero = std::vector<std::uint64_t>{0, 12};
  refuses<contract_error>(
      [&](int rank, sample_window& w) {
        if (rank == 2) { w.ids = zero; }
      },
      "sample 0 was submitted twice, by rank 0 and by rank 2");
}

TEST_CASE("presort says which call comes out of turn") {
  local::run(1, [](communicator& comm, host::device& device) {
    auto sort   = presort{device, comm, test::sample_arrays()};
    auto stream = device.make_stream();
    CHECK_THROWS_WITH_AS(static_cast<void>(sort.sync_take(stream)),
                         doctest::Contains("no window was submitted"),
                         state_error);
    CHECK_THROWS_WITH_AS(sort.release(stream), doctest::Contains("no window is held"), state_error);
    CHECK_FALSE(sort.advance());
    auto sets = std::vector<test::sample_set>{};
    for (auto w = std::uint64_t{0}; w < 3; ++w) {
      sets.emplace_back(samples_of(0, 100 * w)).fill();
    }
    sort.submit(stream, sets[0].window(1));
    CHECK_THROWS_WITH_AS(sort.submit(stream, sets[1].window(1)),
                         doctest::Contains("has not been taken"),
                         state_error);
    static_cast<void>(sort.sync_take(stream));
    sort.submit(stream, sets[1].window(1));
    static_cast<void>(sort.sync_take(stream));
    CHECK_THROWS_WITH_AS(sort.submit(stream, sets[2].window(1)),
                         doctest::Contains("two windows are held"),
                         state_error);
    sort.release(stream);
    sort.submit(stream, sets[2].window(1));
    static_cast<void>(sort.sync_take(stream));
    device.sync(stream);
  });
}

TEST_CASE("presort gives up where a rank does not submit, and says so from then on") {
  auto given_up = std::atomic<bool>{false};
  local::run(2, [&](communicator& comm, host::device& device) {
    auto sort   = presort{device, comm, test::sample_arrays()};
    auto stream = device.make_stream();
    auto own    = test::sample_set{samples_of(comm.rank())};
    if (comm.rank() == 1) {
      while (!given_up) { std::this_thread::yield(); }
      CHECK_THROWS_AS(static_cast<void>(sort.advance()), communication_error);
      return;
    }
    sort.submit(stream, own.window(1));
    CHECK_THROWS_WITH_AS(static_cast<void>(sort.sync_take(stream, 50ms)),
                         doctest::Contains("presort: rank 0: window 0 is late"),
                         timeout_error);
    given_up = true;
    CHECK_THROWS_WITH_AS(
        sort.submit(stream, own.window(1)), doctest::Contains("failed"), state_error);
  });
}

TEST_CASE("presort that is destroyed with a window on its way does not leave peers waiting") {
  local::run(2, [](communicator& comm, host::device& device) {
    auto sort   = std::optional<presort<host::device, communicator>>{};
    auto stream = device.make_stream();
    auto own    = test::sample_set{samples_of(comm.rank())};
    sort.emplace(device, comm, test::sample_arrays());
    sort->submit(stream, own.window(1));
    if (comm.rank() == 0) {
      sort.reset();
    } else {
      auto const take = [&] {
        static_cast<void>(sort->sync_take(stream));
        device.sync(stream);
      };
      CHECK_THROWS_AS(take(), communication_error);
    }
  });
}

TEST_CASE("presort that is destroyed after its samples could not be read tells its peers") {
  auto told = std::atomic<bool>{false};
  local::run(2, [&](communicator& comm, host::device& device) {
    auto sort     = std::optional<presort<host::device, communicator>>{};
    auto producer = device.make_stream();
    auto reader   = device.make_stream();
    auto const r  = static_cast<std::uint64_t>(comm.rank());
    auto own      = test::sample_set{{{2 * r, comm.rank() == 0 ? 1U : 9U}, {2 * r + 1, 8}}};
    sort.emplace(device, comm, test::sample_arrays());
    if (comm.rank() == 0) {
      device.enqueue(producer, [] { throw std::runtime_error{"the disk is gone"}; });
    }
    sort->submit(producer, own.window(1));
    auto const& taken = sort->sync_take(reader);
    REQUIRE(taken.traffic().moved_samples > 0);
    if (comm.rank() == 0) {
      CHECK_THROWS_WITH(device.sync(reader), "the disk is gone");
      sort.reset();
      while (!told) { std::this_thread::yield(); }
    } else {
      CHECK_THROWS_AS(device.sync(reader, 20s), aborted_error);
      told = true;
    }
  });
}

TEST_CASE("an error of the stream that writes the samples comes to the readers") {
  local::run(1, [](communicator& comm, host::device& device) {
    auto sort     = presort{device, comm, test::sample_arrays()};
    auto producer = device.make_stream();
    auto reader   = device.make_stream();
    auto own      = test::sample_set{samples_of(0)};
    device.enqueue(producer, [] { throw std::runtime_error{"the disk is gone"}; });
    sort.submit(producer, own.window(1));
    static_cast<void>(sort.sync_take(reader));
    CHECK_THROWS_WITH(device.sync(reader), "the disk is gone");
  });
}

// SPDX-License-Identifier: Apache-2.0
// The presort on ranks that are threads: the right samples with the right contents, whatever the
// schedule. Every buffer is poisoned, so that what is read too early, or written too late, shows.
#include <gradlane/gradlane.hpp>

#include <doctest/doctest.h>

#include <support/dice.hpp>
#include <support/samples.hpp>
#include <support/watchdog.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

namespace {

using namespace gradlane;
using balance::dealing;
using balance::sample;
using local::communicator;
using test::dice;
using namespace std::chrono_literals;

#ifdef __SANITIZE_THREAD__
constexpr auto seeds            = std::uint64_t{60};
constexpr auto thread_sanitizer = true;  // it finds planted races by itself, and fails the test
#else
constexpr auto seeds            = std::uint64_t{300};
constexpr auto thread_sanitizer = false;
#endif

[[nodiscard]] std::chrono::microseconds delay(dice& random) {
  return std::chrono::microseconds{random.below(4) == 0 ? random.below(300) : 0};
}

/// What a seed stands for: the same on all ranks.
struct scenario {
  explicit scenario(std::uint64_t seed) : random{seed} {
    ranks       = std::array{1, 2, 3, 4, 7}.at(random.below(5));
    micro_steps = 1 + random.below(3);
    method =
        std::array{dealing::none, dealing::raster, dealing::snake, dealing::lpt, dealing::lpt_free}
            .at(random.below(5));
    n0               = random.below(2) == 0 ? 64.0 : 1e9;
    faults.seed      = seed;
    faults.reorder   = random.below(2) == 0;
    faults.max_delay = std::array{0us, 50us, 300us}.at(random.below(3));
    auto const count = 1 + random.below(5);
    auto id          = std::uint64_t{random.below(2)} << 40U;
    for (auto w = std::size_t{0}; w < count; ++w) {
      steps.push_back(1 + random.below(6));
      shared.push_back(random.below(2) == 0);
      auto& window       = windows.emplace_back();
      auto const kind    = random.below(5);
      auto const at_most = std::array<std::size_t, 3>{0, 5, 40}.at(random.below(3));
      for (auto r = 0; r < ranks; ++r) {
        auto& own = window.emplace_back();
        for (auto n = random.below(at_most + 1); n > 0; --n) {
          id += 1 + random.below(3);
          own.push_back({id, length(kind)});
        }
        for (auto k = own.size(); k > 1; --k) { std::swap(own[k - 1], own[random.below(k)]); }
      }
    }
  }

  [[nodiscard]] std::uint32_t length(std::size_t kind) {
    switch (kind) {
      case 0:
        return 17;  // all equal
      case 1:
        return 0;  // nothing in them
      case 2:
        return random.below(20) == 0 ? 3000 : 1;  // a few giants
      case 3:
        return static_cast<std::uint32_t>(random.below(3));
      default:
        return static_cast<std::uint32_t>(random.below(200));
    }
  }

  [[nodiscard]] std::vector<sample> all(std::size_t window) const {
    auto result = std::vector<sample>{};
    for (auto const& own : windows[window]) { result.insert(result.end(), own.begin(), own.end()); }
    return result;
  }

  [[nodiscard]] presort_options options() const {
    return {.method = method, .cost = {n0}, .micro_steps = micro_steps};
  }
  [[nodiscard]] balance::deal_rules rules(std::size_t window) const {
    return {.method = method,
            .ranks  = static_cast<std::size_t>(ranks) * micro_steps,
            .steps  = steps[window],
            .cost   = {n0}};
  }

  dice random;
  int ranks{};
  std::size_t micro_steps{};
  dealing method{};
  double n0{};
  local::script faults;
  std::vector<std::size_t> steps;                         // by window
  std::vector<bool> shared;                               // by window
  std::vector<std::vector<std::vector<sample>>> windows;  // by window, by rank
};

/// A window as its rank submits it, with a shared index where the scenario has one.
struct submission {
  submission(scenario const& world, std::size_t number, std::size_t rank)
      : own{world.windows[number][rank]}, whole{world.all(number)} {
    for (auto const& part : world.windows[number]) { per_rank.push_back(part.size()); }
    window = own.window(world.steps[number]);
    if (world.shared[number]) {
      window.ids      = whole.ids;
      window.lengths  = whole.lengths;
      window.counts   = {whole.counts[0], whole.counts[1]};
      window.per_rank = per_rank;
    }
  }

  test::sample_set own;
  test::sample_set whole;
  std::vector<std::size_t> per_rank;
  sample_window window;
};

void run_schedule(std::uint64_t seed) {
  auto const world = scenario{seed};
  CAPTURE(seed);
  CAPTURE(world.ranks);
  auto seen       = std::map<std::uint64_t, int>{};
  auto seen_mutex = std::mutex{};
  local::run(world.ranks, {.faults = world.faults}, [&](communicator& comm, host::device& device) {
    auto const rank = static_cast<std::size_t>(comm.rank());
    auto random     = dice{seed * 1000 + rank};
    auto sort       = presort{device, comm, test::sample_arrays(), world.options()};
    auto producer   = device.make_stream();
    auto readers    = std::vector<host::stream>{};
    for (auto i = 0; i < 2; ++i) { readers.push_back(device.make_stream()); }
    auto submissions  = std::vector<submission>{};
    auto wrong        = std::vector<std::size_t>(world.windows.size());
    auto const submit = [&](std::size_t number) {
      auto& mine = submissions[number];
      device.enqueue(producer, [&mine, pause = delay(random)] {
        std::this_thread::sleep_for(pause);
        mine.own.fill();
      });
      sort.submit(producer, mine.window);
    };
    for (auto w = std::size_t{0}; w < world.windows.size(); ++w) {
      submissions.emplace_back(world, w, rank);
    }
    auto taken = std::vector<presorted_window>(world.windows.size());  // whose tasks outlive them
    submit(0);
    for (auto w = std::size_t{0}; w < world.windows.size(); ++w) {
      auto& reader = readers[random.below(2)];
      for (auto n = random.below(4); n > 0; --n) {
        std::this_thread::sleep_for(delay(random));
        static_cast<void>(sort.advance());
      }
      taken[w]           = sort.sync_take(reader);
      auto const& window = taken[w];
      CHECK(test::ids_by_batch(window) ==
            test::expected_ids(
                world.all(w), world.rules(w), static_cast<std::size_t>(comm.size()), rank));
      {
        auto const lock = std::scoped_lock{seen_mutex};
        for (auto const& batch : test::ids_by_batch(window)) {
          for (auto const id : batch) { ++seen[id]; }
        }
      }
      auto const early = random.below(2) == 0;
      if (early && w + 1 < world.windows.size()) { submit(w + 1); }
      device.enqueue(
          reader, [&window, &mistakes = wrong[w], pause = delay(random), mine = &submissions[w]] {
            mine->own.poison();  // the presort has read it
            std::this_thread::sleep_for(pause);
            for (auto s = std::size_t{0}; s < window.steps(); ++s) {
              for (auto m = std::size_t{0}; m < window.micro_steps(); ++m) {
                mistakes += test::mistakes_in(window.batch(s, m));
              }
            }
            test::poison(window);
          });
      sort.release(reader);
      if (random.below(3) == 0) { device.sync(reader); }
      if (!early && w + 1 < world.windows.size()) { submit(w + 1); }
    }
    for (auto& s : readers) { device.sync(s); }
    for (auto const mistakes : wrong) { CHECK(mistakes == 0); }
  });
  auto expected = std::map<std::uint64_t, int>{};
  for (auto w = std::size_t{0}; w < world.windows.size(); ++w) {
    for (auto const& s : world.all(w)) { ++expected[s.id]; }
  }
  CHECK(seen == expected);
}

/// One window of given samples by rank; calls use(window, comm) on every rank.
template <class Use>
void take_one(std::vector<std::vector<sample>> const& by_rank,
              std::size_t steps,
              presort_options options,
              Use use) {
  local::run(static_cast<int>(by_rank.size()), [&](communicator& comm, host::device& device) {
    auto sort   = presort{device, comm, test::sample_arrays(), options};
    auto stream = device.make_stream();
    auto own    = test::sample_set{by_rank[static_cast<std::size_t>(comm.rank())]};
    own.fill();
    sort.submit(stream, own.window(steps));
    auto const& window = sort.sync_take(stream);
    device.sync(stream);
    use(window, comm);
    sort.release(stream);
  });
}

}  // namespace

TEST_CASE("presort gives every sample to one rank with its contents, under random schedules") {
  for (auto seed = std::uint64_t{0}; seed < seeds; ++seed) { run_schedule(seed); }
}

TEST_CASE("a planted read that does not wait for the presort is found by the same method" *
          doctest::skip(thread_sanitizer)) {
  auto found = std::atomic<int>{0};
  local::run(
      2, {.faults = {.seed = 3, .max_delay = 2ms}}, [&](communicator& comm, host::device& device) {
        auto sort   = presort{device, comm, test::sample_arrays()};
        auto stream = device.make_stream();
        auto other  = device.make_stream();
        auto own    = test::sample_set{{{static_cast<std::uint64_t>(comm.rank()), 100}}};
        device.enqueue(stream, [&] {
          std::this_thread::sleep_for(20ms);
          own.fill();
        });
        sort.submit(stream, own.window(1));
        auto const& window = sort.sync_take(stream);
        auto mistakes      = std::size_t{0};
        device.enqueue(other, [&] { mistakes = test::mistakes_in(window.batch(0)); });
        device.sync(other);
        device.sync(stream);
        if (mistakes > 0) { ++found; }
      });
  CHECK(found > 0);
}

TEST_CASE("presort returns from submit and advance while other ranks are elsewhere") {
  auto there = std::atomic<bool>{false};
  local::run(2, [&](communicator& comm, host::device& device) {
    auto sort   = presort{device, comm, test::sample_arrays()};
    auto stream = device.make_stream();
    auto own    = test::sample_set{{{static_cast<std::uint64_t>(comm.rank()), 9}}};
    own.fill();
    if (comm.rank() == 1) {
      while (!there) { std::this_thread::yield(); }
    }
    sort.submit(stream, own.window(1));
    if (comm.rank() == 0) {
      for (auto i = 0; i < 100; ++i) { CHECK_FALSE(sort.advance()); }
      there = true;
    }
    while (!sort.advance()) { std::this_thread::yield(); }
    CHECK(sort.sync_take(stream).batch(0).size() == 1);
    device.sync(stream);
  });
}

TEST_CASE("presort prepares a window while the reader of the one before is busy") {
  // Rank 0's reader of window 0 goes on until window 1 has come to rank 1.
  auto arrived = std::atomic<bool>{false};
  local::run(2, [&](communicator& comm, host::device& device) {
    auto const rank = static_cast<std::uint64_t>(comm.rank());
    auto sort       = presort{device, comm, test::sample_arrays()};
    auto producer   = device.make_stream();
    auto reader     = device.make_stream();
    auto first      = test::sample_set{{{rank, 9}, {rank + 10, 4}}};
    auto second     = test::sample_set{{{rank + 100, 9}, {rank + 110, 4}}};
    first.fill();
    second.fill();
    sort.submit(producer, first.window(1));
    static_cast<void>(sort.sync_take(reader));
    device.enqueue(reader, [&] {
      while (!arrived) { std::this_thread::yield(); }
    });
    sort.release(reader);  // which holds back the window after the next, not the next
    sort.submit(producer, second.window(1));
    auto later         = device.make_stream();
    auto const& window = sort.sync_take(later);
    device.sync(later);
    CHECK(test::mistakes_in(window.batch(0)) == 0);
    if (rank == 1) { arrived = true; }
    device.sync(reader);
  });
}

TEST_CASE("presort uses its memory again, and only once the reader has released it") {
  local::run(2, [](communicator& comm, host::device& device) {
    auto const rank = static_cast<std::uint64_t>(comm.rank());
    auto sort       = presort{device, comm, test::sample_arrays()};
    auto stream     = device.make_stream();
    auto memory     = std::vector<std::uint32_t const*>{};
    for (auto w = std::uint64_t{0}; w < 6; ++w) {
      auto own = test::sample_set{{{100 * w + rank, 50}, {100 * w + 10 + rank, 3}}};
      own.fill();
      sort.submit(stream, own.window(1));
      auto const& window = sort.sync_take(stream);
      memory.push_back(window.batch(0).array<std::uint32_t>(test::tokens).data());
      device.sync(stream);
      CHECK(test::mistakes_in(window.batch(0)) == 0);
      sort.release(stream);
    }
    CHECK(memory[0] != memory[1]);
    for (auto w = std::size_t{2}; w < 6; ++w) { CHECK(memory[w] == memory[w - 2]); }
  });
}

TEST_CASE("presort evens out one long sample among many short ones: J5") {
  auto by_rank = std::vector<std::vector<sample>>(8);
  for (auto r = std::uint64_t{0}; r < 8; ++r) {  // all of the long ones on one rank
    for (auto i = std::uint64_t{0}; i < 2; ++i) {
      by_rank[r].push_back({r * 2 + i, r == 3 ? 512U : 16U});
    }
  }
  for (auto const micro_steps : {std::size_t{1}, std::size_t{2}}) {
    auto tokens = std::array<std::atomic<std::size_t>, 8>{};
    take_one(by_rank, 1, {.micro_steps = micro_steps}, [&](auto const& window, auto& comm) {
      auto samples = std::size_t{0};
      for (auto m = std::size_t{0}; m < micro_steps; ++m) {
        CHECK(window.batch(0, m).size() == 2 / micro_steps);  // equal counts on all ranks
        samples += window.batch(0, m).size();
        tokens.at(static_cast<std::size_t>(comm.rank())) += window.batch(0, m).tokens();
      }
      CHECK(samples == 2);
    });
    auto sum  = std::size_t{0};
    auto most = std::size_t{0};
    for (auto const& t : tokens) {
      sum += t;
      most = std::max(most, t.load());
    }
    CHECK(sum == 2 * 512 + 14 * 16);
    CHECK(most == 512 + 16);  // the least that is possible; unsorted it would be 1024
  }
}

TEST_CASE("presort of 200 equal lengths gives every sample once, ties by id: J6") {
  auto by_rank = std::vector<std::vector<sample>>(4);
  for (auto id = std::uint64_t{0}; id < 200; ++id) {  // ragged: 80, 60, 40, 20
    auto const rank = id < 80 ? 0U : id < 140 ? 1U : id < 180 ? 2U : 3U;
    by_rank[rank].push_back({199 - id, 25});
  }
  auto seen   = std::vector<int>(200);
  auto mutex  = std::mutex{};
  auto moved  = std::atomic<std::uint64_t>{0};
  auto sent   = std::atomic<std::uint64_t>{0};
  auto movers = std::atomic<std::size_t>{0};
  take_one(by_rank, 2, {}, [&](auto const& window, auto&) {
    auto const lock = std::scoped_lock{mutex};
    for (auto s = std::size_t{0}; s < 2; ++s) {
      CHECK(window.batch(s).size() == 25);
      CHECK(test::mistakes_in(window.batch(s)) == 0);
      auto const ids = window.batch(s).ids();
      CHECK(std::is_sorted(ids.begin(), ids.end()));
      for (auto const id : ids) { ++seen[id]; }
    }
    moved  = window.traffic().moved;
    movers = window.traffic().moved_samples;
    sent += window.traffic().sent;
  });
  CHECK(std::all_of(seen.begin(), seen.end(), [](int n) { return n == 1; }));
  CHECK(sent == moved);
  // Real tokens and no more: 25 · (4 + 1) bytes, 4 + 16 a sample, at most 4 · 2 + 4 · 8 counted.
  CHECK(moved >= movers * (125 + 20));
  CHECK(moved <= movers * (125 + 20 + 40));
}

TEST_CASE("presort moves nothing where every rank has what it gets, or is alone") {
  take_one({{{3, 10}, {1, 5}, {2, 5}}}, 2, {}, [](auto const& window, auto&) {
    CHECK(window.traffic().moved == 0);
    CHECK(window.traffic().described == 0);
    CHECK(window.batch(0).size() + window.batch(1).size() == 3);
  });
  take_one({{{0, 10}, {1, 9}}, {{2, 8}, {3, 7}}},
           1,
           {.method = dealing::none},
           [](auto const& window, auto& comm) {
             CHECK(window.traffic().moved_samples == 0);
             CHECK(test::mistakes_in(window.batch(0)) == 0);
             CHECK(window.batch(0).ids()[0] == (comm.rank() == 0 ? 0 : 2));
           });
  take_one({{}, {}, {}}, 3, {}, [](auto const& window, auto&) {
    CHECK(window.steps() == 3);
    CHECK(window.batch(2).empty());
    CHECK(window.batch(2).starts().size() == 1);
  });
}

TEST_CASE("presort works in node groups of 3 and 1, made by a collective decision: C10") {
  local::run(4, {.ranks_per_node = 3}, [](communicator& comm, host::device& device) {
    auto node       = comm.node_group();
    auto const rank = static_cast<std::uint64_t>(comm.rank());
    CHECK(node.size() == (rank < 3 ? 3 : 1));
    auto sort   = presort{device, node, test::sample_arrays()};
    auto stream = device.make_stream();
    auto own    = test::sample_set{{{rank, 100}, {rank + 10, 1}, {rank + 20, 50}}};
    own.fill();
    sort.submit(stream, own.window(3));
    auto const& window = sort.sync_take(stream);
    device.sync(stream);
    for (auto s = std::size_t{0}; s < 3; ++s) {
      CHECK(window.batch(s).size() == 1);
      CHECK(test::mistakes_in(window.batch(s)) == 0);
      for (auto const id : window.batch(s).ids()) { CHECK((id % 10 < 3) == (rank < 3)); }
    }
  });
}

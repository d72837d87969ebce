// SPDX-License-Identifier: Apache-2.0
#include <gradlane/adasum.hpp>
#include <gradlane/host/device.hpp>
#include <gradlane/local/communicator.hpp>
#include <gradlane/local/error.hpp>
#include <gradlane/local/run.hpp>

#include <doctest/doctest.h>

#include <support/adasum.hpp>
#include <support/watchdog.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <mutex>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace {

using namespace gradlane;
using namespace std::chrono_literals;
using local::communicator;
using bytes = std::vector<std::byte>;

constexpr auto rank_counts = {1, 2, 3, 4, 5, 6, 7, 8, 9, 16};

/// Assertions of several ranks, counted, since doctest's own would be run from many threads.
class tally {
 public:
  auto counter() {
    return [this](bool holds) {
      ++all_;
      if (!holds) { ++wrong_; }
    };
  }
  ~tally() {
    CHECK(all_ > 0);
    CHECK(wrong_ == 0);
  }

 private:
  std::atomic<int> all_{0};
  std::atomic<int> wrong_{0};
};

/// What every rank has in the end.
[[nodiscard]] std::vector<bytes> run(int ranks,
                                     local::world_options options,
                                     test::adasum_case const& input) {
  auto const busy = test::activity{std::to_string(ranks) + " ranks"};
  auto checks     = tally{};
  auto results    = std::vector<bytes>(static_cast<std::size_t>(ranks));
  local::run(ranks, std::move(options), [&](communicator& comm, host::device& device) {
    results[static_cast<std::size_t>(comm.rank())] =
        test::run_adasum(comm, device, input, checks.counter());
  });
  return results;
}

/// One segment of fp32 values by rank; what rank 0 has in the end, while all have the same.
[[nodiscard]] std::vector<float> adasum_of(std::vector<std::vector<float>> const& gradients) {
  auto const count = gradients[0].size();
  auto results     = gradients;
  local::run(static_cast<int>(gradients.size()), [&](communicator& comm, host::device& device) {
    auto& own      = results[static_cast<std::size_t>(comm.rank())];
    auto s         = device.make_stream();
    auto reduction = adasum_all_reduce{device, comm, {{std::span{own}, {{0, count}}}}};
    reduction.reduce(s);
    device.sync(s);
  });
  auto const same = [&](auto const& other) {
    return std::equal(other.begin(), other.end(), results[0].begin(), [](float a, float b) {
      return a == b || (std::isnan(a) && std::isnan(b));
    });
  };
  CHECK(std::all_of(results.begin(), results.end(), same));
  return results[0];
}

}  // namespace

TEST_CASE("adasum_all_reduce agrees with the tree on any number of ranks, with equal bits on all") {
  for (auto const ranks : rank_counts) {
    for (auto const type : {dtype::fp32, dtype::fp64, dtype::bf16, dtype::fp16}) {
      CAPTURE(ranks);
      CAPTURE(name_of(type));
      auto const results = run(ranks, {}, test::mixed_case(type, 5));
      auto const same    = [&](bytes const& other) { return other == results[0]; };
      CHECK(std::all_of(results.begin(), results.end(), same));
    }
  }
}

TEST_CASE("adasum_all_reduce repeats bit for bit under every schedule and on every node layout") {
  for (auto const ranks : {2, 3, 4, 6, 7}) {
    auto const input    = test::mixed_case(dtype::fp32, 8);
    auto const expected = run(ranks, {}, input)[0];
    for (auto seed = std::uint64_t{1}; seed <= 12; ++seed) {
      CAPTURE(seed);
      auto const results = run(ranks,
                               {.ranks_per_node = static_cast<int>(seed % 4),
                                .faults = {.seed = seed, .max_delay = 200us, .reorder = true}},
                               input);
      for (auto const& result : results) { REQUIRE(result == expected); }
    }
  }
}

TEST_CASE("adasum_all_reduce meets a rank of 0, equal, opposite and orthogonal gradients") {
  CHECK(adasum_of({{1, 2, 3}, {1, 2, 3}}) == std::vector<float>{1, 2, 3});
  CHECK(adasum_of({{1, 0, 2}, {0, 5, 0}}) == std::vector<float>{1, 5, 2});
  CHECK(adasum_of({{1, 2, 3}, {0, 0, 0}}) == std::vector<float>{1, 2, 3});
  CHECK(adasum_of({{0, 0, 0}, {1, 2, 3}}) == std::vector<float>{1, 2, 3});
  CHECK(adasum_of({{0, 0, 0}, {0, 0, 0}}) == std::vector<float>{0, 0, 0});
  CHECK(adasum_of({{1, 2, 3}, {-1, -2, -3}}) == std::vector<float>{0, 0, 0});
  auto const many  = std::vector<std::vector<float>>(7, {1.5F, -2.0F, 0.0F, 8.0F});
  auto const basis = std::vector<std::vector<float>>{
      {1, 0, 0, 0, 0}, {0, 2, 0, 0, 0}, {0, 0, 3, 0, 0}, {0, 0, 0, 4, 0}, {0, 0, 0, 0, 5}};
  CHECK(adasum_of(many) == many[0]);
  CHECK(adasum_of(basis) == std::vector<float>{1, 2, 3, 4, 5});
}

TEST_CASE("adasum_all_reduce sums products over shards, wherever these are cut") {
  // ranks of a vector, and where its shards begin: inside of segments, between them, of no elements
  auto const cuts = std::vector<std::vector<std::size_t>>{
      {0}, {0, 2000}, {0, 64, 65}, {0, 130, 130, 3776}, {0, 0, 4102}};
  for (auto const nodes : {1, 2, 3, 5, 6, 7}) {
    for (auto const& begins : cuts) {
      for (auto const type : {dtype::fp32, dtype::bf16}) {
        CAPTURE(nodes);
        auto const input = test::mixed_case(type, 21);
        auto const width = static_cast<int>(begins.size());
        auto checks      = tally{};
        auto measured    = std::vector<std::vector<double>>(begins.size() * 7);
        auto const script =
            local::script{.seed = begins.size(), .max_delay = 20us, .reorder = true};
        local::run(
            nodes * width, {.faults = script}, [&](communicator& comm, host::device& device) {
              auto check       = checks.counter();
              auto const place = static_cast<std::size_t>(comm.rank() % width);
              auto across      = comm.split(comm.rank() % width, comm.rank());
              auto shards      = comm.split(comm.rank() / width, comm.rank());
              auto memory      = test::host_copy{{nullptr, input.count, type}};
              auto const end   = place + 1 < begins.size() ? begins[place + 1] : input.count;
              auto const shard = element_range{begins[place], end};
              input.fill(memory.view(), across.rank());
              auto segments = std::vector<element_range>{};
              for (auto const& segment : input.segments) {
                auto const part = intersection(segment, shard);
                segments.push_back({part.begin - shard.begin, part.end - shard.begin});
              }
              auto const own = memory.view().subview(shard.begin, shard.count());
              auto reduction = adasum_all_reduce{device, across, shards, {{own, segments}}};
              auto s         = device.make_stream();
              reduction.reduce(s);
              reduction.download(s);
              device.sync(s);
              auto const bound = nodes == 1 ? 0.0 : 4 * std::log2(nodes);
              for (auto t = std::size_t{0}; t < segments.size(); ++t) {
                check(input.error_within(memory.view(), nodes, t, shard) <= bound);
                auto const found = reduction.orthogonality(0, t);
                auto const right = static_cast<double>(input.expected(nodes, t).orthogonality);
                auto const near  = std::abs(found - right) <= 100 * test::epsilon_of(type) * right;
                check(nodes == 1 || input.segments[t].count() == 0 || near);
                measured[static_cast<std::size_t>(comm.rank())].push_back(
                    std::isnan(found) ? -1.0 : found);
              }
            });
        for (auto r = 1; r < nodes * width; ++r) {
          CHECK(measured[static_cast<std::size_t>(r)] == measured[0]);
        }
      }
    }
  }
}

TEST_CASE("adasum_all_reduce refuses shards that are no parts of the same segments") {
  auto refused = std::atomic<int>{0};
  local::run(2, [&](communicator& comm, host::device& device) {
    auto across = comm.split(comm.rank(), 0);
    auto memory = std::vector<float>(10);
    auto list   = std::vector<element_range>(comm.rank() == 0 ? 1 : 2);
    try {
      auto const reduction = adasum_all_reduce{device, across, comm, {{std::span{memory}, list}}};
    } catch (plan_mismatch_error const& e) {
      auto const text = std::string{e.what()};
      if (text.find("rank 1 has buffer 0: 2 segments of fp32") != std::string::npos) { ++refused; }
    }
  });
  CHECK(refused == 2);
}

TEST_CASE("adasum_all_reduce is stable where norms differ by 57 orders of magnitude") {
  auto const tiny = std::numeric_limits<float>::min();
  auto const huge = std::sqrt(std::numeric_limits<float>::max());
  CHECK(adasum_of({{tiny, 0}, {huge, 0}})[0] == doctest::Approx(huge / 2));
  CHECK(adasum_of({{tiny, tiny}, {tiny, tiny}}) == std::vector<float>{tiny, tiny});
  CHECK(adasum_of({{1e38F, 0}, {0, 1e38F}}) == std::vector<float>{1e38F, 1e38F});
}

TEST_CASE(
    "adasum_all_reduce errs by what is joined, not by the little that vectors may leave over") {
  // One element is always parallel to another: the result is their mean, here of a and almost -a.
  constexpr auto count = std::size_t{50};
  auto const segments  = [] {
    auto result = std::vector<element_range>{};
    for (auto i = std::size_t{0}; i < count; ++i) { result.push_back({i, i + 1}); }
    return result;
  }();
  for (auto const ranks : {2, 3, 4, 5}) {
    auto const gradient = [&](int rank, std::size_t i) {
      auto const size = std::pow(1.37, static_cast<double>(i) - 25.0);
      return (rank % 2 == 0 ? size : -size) * (1.0 + (rank + 1) * 0x1p-45);
    };
    auto found = std::vector<double>(count);
    local::run(ranks, [&](communicator& comm, host::device& device) {
      auto own = std::vector<double>(count);
      for (auto i = std::size_t{0}; i < count; ++i) { own[i] = gradient(comm.rank(), i); }
      auto s         = device.make_stream();
      auto reduction = adasum_all_reduce{device, comm, {{std::span{own}, segments}}};
      reduction.reduce(s);
      device.sync(s);
      if (comm.rank() == 0) { found = own; }
    });
    for (auto i = std::size_t{0}; i < count; ++i) {
      auto vectors = std::vector<test::wide_vector>{};
      for (auto r = 0; r < ranks; ++r) {
        vectors.push_back({static_cast<long double>(gradient(r, i))});
      }
      auto const wanted = static_cast<double>(test::adasum_tree(vectors).value[0]);
      auto const joined = 2 * std::abs(gradient(0, i));  // the norms of a and -a
      CHECK(std::abs(found[i] - wanted) <= 4 * std::log2(ranks) * 0x1p-52 * joined);
    }
  }
}

TEST_CASE("adasum_all_reduce combines by segment: not as the whole buffer would be") {
  // parallel in the first segment, orthogonal in the second
  auto results = std::vector<std::vector<float>>{{2, 0, 3, 0}, {4, 0, 0, 5}};
  local::run(2, [&](communicator& comm, host::device& device) {
    auto& own      = results[static_cast<std::size_t>(comm.rank())];
    auto s         = device.make_stream();
    auto reduction = adasum_all_reduce{device, comm, {{std::span{own}, {{0, 2}, {2, 4}}}}};
    reduction.reduce(s);
    reduction.download(s);
    device.sync(s);
    if (comm.rank() == 0) {
      CHECK(reduction.orthogonality(0, 0) == 9.0 / 20.0);
      CHECK(reduction.orthogonality(0, 1) == 1.0);
    }
  });
  CHECK(results[0] == std::vector<float>{3, 0, 3, 5});
  CHECK(results[1] == results[0]);
  auto const whole = adasum_of({{2, 0, 3, 0}, {4, 0, 0, 5}});
  CHECK(whole[2] != 3.0F);
}

TEST_CASE("adasum_all_reduce brings NaN and Inf of one rank to that segment of all, and no other") {
  auto const nan = std::numeric_limits<float>::quiet_NaN();
  auto const inf = std::numeric_limits<float>::infinity();
  for (auto const ranks : {2, 3, 4, 7}) {
    for (auto bad_rank = 0; bad_rank < ranks; ++bad_rank) {
      for (auto const bad : {nan, inf, -inf}) {
        auto wrong = std::atomic<int>{0};
        local::run(ranks, [&](communicator& comm, host::device& device) {
          auto own       = std::vector<float>(400, 1.0F);
          own[270]       = comm.rank() == bad_rank ? bad : 2.0F;
          auto s         = device.make_stream();
          auto reduction = adasum_all_reduce{
              device, comm, {{std::span{own}, {{0, 200}, {200, 300}, {300, 400}}}}};
          reduction.reduce(s);
          device.sync(s);
          for (auto i = std::size_t{0}; i < own.size(); ++i) {
            auto const lost = i >= 200 && i < 300;
            wrong += (lost ? std::isnan(own[i]) : own[i] == 1.0F) ? 0 : 1;
          }
        });
        CHECK(wrong == 0);
      }
    }
  }
}

TEST_CASE("adasum_all_reduce takes buffers without elements or segments, and of many sizes") {
  for (auto const ranks : {1, 2, 3, 5}) {
    auto checks = tally{};
    local::run(ranks, [&](communicator& comm, host::device& device) {
      auto check         = checks.counter();
      auto const small   = test::adasum_case{dtype::fp32, 3, {{0, 1}, {1, 3}}, 1};
      auto const large   = test::mixed_case(dtype::bf16, 2);
      auto small_memory  = std::vector<float>(3);
      auto large_memory  = std::vector<bf16>(large.count);
      auto gap           = std::vector<float>(9, 5.0F);
      auto hollow        = std::vector<float>(64);
      auto reduction     = adasum_all_reduce{device,
                                         comm,
                                             {{std::span{small_memory}, small.segments},
                                              {{nullptr, 0, dtype::fp16}, {{0, 0}}},
                                              {std::span{large_memory}, large.segments},
                                              {std::span{gap}, {}},
                                              {std::span{hollow}, {{3, 3}, {7, 7}}}}};
      auto s             = device.make_stream();
      auto other         = device.make_stream();
      auto const buffers = std::size_t{5};
      for (auto step = 0; step < 3; ++step) {
        device.sync(s);
        device.sync(other);
        small.fill(std::span{small_memory}, comm.rank());
        large.fill(std::span{large_memory}, comm.rank());
        // two streams in turns: calls follow each other all the same
        for (auto b = std::size_t{0}; b < buffers; ++b) { reduction.reduce(b < 2 ? s : other, b); }
        reduction.download(s);
        device.sync(s);
        device.sync(other);
        auto const bound = ranks == 1 ? 0.0 : 4 * std::log2(ranks);
        for (auto t = std::size_t{0}; t < small.segments.size(); ++t) {
          check(small.error(std::span{small_memory}, ranks, t) <= bound);
        }
        for (auto t = std::size_t{0}; t < large.segments.size(); ++t) {
          check(large.error(std::span{large_memory}, ranks, t) <= bound);
        }
        check(gap == std::vector<float>(9, 5.0F));
        check(std::isnan(reduction.orthogonality(1, 0)) == (ranks > 1));
        check(std::isnan(reduction.orthogonality(4, 0)) == (ranks > 1));
      }
    });
  }
}

TEST_CASE("adasum_all_reduce reports its workspace: half the largest buffer, and scalars") {
  auto const bytes_of = [](int ranks) {
    auto result = std::atomic<std::size_t>{0};
    local::run(ranks, [&](communicator& comm, host::device& device) {
      auto large     = std::vector<float>(1 << 12);
      auto small     = std::vector<float>(100);
      auto reduction = adasum_all_reduce{
          device,
          comm,
          {{std::span{large}, {{0, 4000}, {4000, 4096}}}, {std::span{small}, {{0, 100}}}}};
      if (comm.rank() == 0) { result = reduction.workspace_bytes(); }
    });
    return result.load();
  };
  auto const scalars = (3 + 2) * 4 * sizeof(double);
  CHECK(bytes_of(1) == 0);
  CHECK(bytes_of(2) == 4096 / 2 * sizeof(float) + scalars);
  CHECK(bytes_of(4) == 4096 / 2 * sizeof(float) + scalars);
  CHECK(bytes_of(3) == 4096 * sizeof(float) + scalars);  // rank 0 takes in all of rank 1's
}

TEST_CASE("adasum_all_reduce refuses ranks that disagree, on all of them") {
  auto const refused = [](auto make_buffers, char const* text) {
    auto count = std::atomic<int>{0};
    local::run(3, [&](communicator& comm, host::device& device) {
      auto memory        = std::vector<double>(64);
      auto const buffers = make_buffers(comm.rank() == 2, buffer_view{std::span{memory}});
      try {
        auto const reduction = adasum_all_reduce{device, comm, buffers};
      } catch (plan_mismatch_error const& e) {
        if (std::string{e.what()}.find(text) != std::string::npos) { ++count; }
      }
    });
    return count == 3;
  };
  using buffers = std::vector<adasum_buffer>;
  CHECK(refused(
      [](bool other, buffer_view x) { return buffers{{x, {{0, 10}, {10, other ? 21U : 20U}}}}; },
      "rank 0 has buffer 0, segment 1: elements [10, 20); rank 2 has buffer 0, segment 1: "
      "elements [10, 21)"));
  CHECK(refused(
      [](bool other, buffer_view x) { return buffers{{other ? x.subview(0, 60) : x, {{0, 10}}}}; },
      "rank 2 has buffer 0: 60 x fp64"));
  CHECK(refused(
      [](bool other, buffer_view x) {
        return buffers{{buffer_view{x.data(), 64, other ? dtype::bf16 : dtype::fp16}, {{0, 10}}}};
      },
      "rank 0 has buffer 0: 64 x fp16; rank 2 has buffer 0: 64 x bf16"));
  CHECK(refused(
      [](bool other, buffer_view x) {
        return other ? buffers{{x, {{0, 64}}}, {x, {}}} : buffers{{x, {{0, 64}}}};
      },
      "rank 0 has (nothing); rank 2 has buffer 1"));
}

TEST_CASE("adasum_all_reduce refuses segments and dtypes that it cannot take") {
  local::run(1, [](communicator& comm, host::device& device) {
    auto x          = std::vector<float>(8);
    auto n          = std::vector<std::int32_t>(8);
    auto const make = [&](buffer_view memory, std::vector<element_range> segments) {
      static_cast<void>(adasum_all_reduce{device, comm, {{memory, std::move(segments)}}});
    };
    CHECK_THROWS_AS(make(std::span{n}, {}), contract_error);
    CHECK_THROWS_AS(make(std::span{x}, {{0, 9}}), contract_error);
    CHECK_THROWS_AS(make(std::span{x}, {{4, 3}}), contract_error);
    CHECK_THROWS_AS(make(std::span{x}, {{0, 4}, {3, 8}}), contract_error);
    CHECK_THROWS_AS(make(std::span{x}, {{4, 8}, {0, 4}}), contract_error);
    make(std::span{x}, {{0, 0}, {0, 8}, {8, 8}});
    auto s         = device.make_stream();
    auto reduction = adasum_all_reduce{device, comm, {{std::span{x}, {{0, 8}}}}};
    CHECK_THROWS_AS(reduction.reduce(s, 1), contract_error);
    CHECK_THROWS_AS(static_cast<void>(reduction.orthogonality(0, 1)), contract_error);
  });
}

TEST_CASE("adasum_all_reduce ends in an error on every rank, wherever one of them fails or dies") {
  auto const calls_of_one = [](int ranks) {
    auto calls = std::atomic<std::uint64_t>{0};
    local::run(ranks, [&](communicator& comm, host::device& device) {
      static_cast<void>(
          test::run_adasum(comm, device, test::mixed_case(dtype::fp32, 1), [](bool) {}));
      if (comm.rank() == 0) { calls = comm.collectives(); }
    });
    return calls.load();
  };
  for (auto const ranks : {2, 3}) {
    auto const calls = calls_of_one(ranks);
    REQUIRE(calls > 3);
    for (auto call = std::uint64_t{1}; call < calls; ++call) {  // 0 compares layouts
      for (auto const dies : {false, true}) {
        CAPTURE(call);
        CAPTURE(dies);
        auto faults = local::script{};
        (dies ? faults.deaths : faults.failures).push_back({ranks - 1, call});
        auto told = std::atomic<int>{0};
        local::run(ranks, {.faults = faults}, [&](communicator& comm, host::device& device) {
          comm.set_deadline(dies ? 30ms : 10s);
          try {
            static_cast<void>(
                test::run_adasum(comm, device, test::mixed_case(dtype::fp32, 1), [](bool) {}));
          } catch (error const&) { ++told; }
        });
        CHECK(told == ranks);
      }
    }
  }
}

TEST_CASE("adasum_all_reduce that is destroyed after its stream failed tells its peers") {
  auto told = std::atomic<bool>{false};
  local::run(2, [&](communicator& comm, host::device& device) {
    auto own       = std::vector<float>(100, 1.0F);
    auto s         = device.make_stream();
    auto reduction = std::optional<adasum_all_reduce<host::device, communicator>>{};
    reduction.emplace(device, comm, std::vector<adasum_buffer>{{std::span{own}, {{0, 100}}}});
    if (comm.rank() == 0) {
      device.enqueue(s, [] { throw std::runtime_error{"no gradients"}; });
      reduction->reduce(s);
      reduction.reset();
      while (!told) { std::this_thread::yield(); }
    } else {
      reduction->reduce(s);
      CHECK_THROWS_AS(device.sync(s, 20s), aborted_error);
      told = true;
    }
  });
}

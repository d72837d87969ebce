// SPDX-License-Identifier: Apache-2.0
// Adasum over nodes whose ranks average, or add up, among themselves.
#include <gradlane/gradlane.hpp>

#include <doctest/doctest.h>

#include <support/adasum_steps.hpp>
#include <support/model.hpp>

#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

using namespace gradlane;
using namespace std::chrono_literals;
using local::communicator;

// One larger than all others together, so that it is cut by every sharding; one of no elements;
// none of one element (see adasum_test.cpp).
auto const sizes = std::vector<std::size_t>{5, 0, 300, 64, 9, 900};

/// Nodes x ranks a node: one node, one rank a node, and surplus nodes.
constexpr auto grids = std::array<std::pair<int, int>, 11>{
    {{1, 1}, {1, 4}, {4, 1}, {2, 2}, {2, 3}, {3, 2}, {5, 2}, {6, 1}, {6, 2}, {7, 2}, {3, 3}}};

template <class Clip>
void check_steps(test::node_layout const& layout,
                 Clip const& clip,
                 test::steps_case input,
                 reduction in_node = reduction::average) {
  auto const nodes     = test::nodes_in(layout).size();
  auto const per_node  = layout.size() / nodes;
  input.sizes          = sizes;
  input.options.pad_to = per_node * 4;
  test::check_steps(
      layout,
      clip,
      [&](int rank) {
        return reduce::adasum_hierarchical{.in_node = in_node,
                                           .node    = layout[static_cast<std::size_t>(rank)]};
      },
      input);
}

[[nodiscard]] reduce::adasum_hierarchical on_node(int node) { return {.node = node}; }

/// A bucket for each parameter, in two equal parts.
constexpr auto cut_in_two = bucket_options{.cap_bytes = 1, .first_cap_bytes = 1, .pad_to = 2};

}  // namespace

TEST_CASE("reduce::adasum_hierarchical agrees with the tree over nodes under every clip policy") {
  auto seed = std::uint64_t{0};
  for (auto const& [nodes, per_node] : grids) {
    CAPTURE(nodes);
    for (auto const& options : {bucket_options{}, test::one_each}) {
      auto const check = [&](auto clip) {
        check_steps(test::grid_of(nodes, per_node),
                    clip,
                    {.sizes = {}, .options = options, .seed = ++seed});
      };
      check(clip::none{});
      check(clip::after{2.0});
      check(clip::before{2.0});
      check(clip::bucketwise{threshold::equal{2.0}});
    }
  }
}

TEST_CASE("reduce::adasum_hierarchical takes nodes in the order of their lowest ranks") {
  for (auto const& layout :
       {test::node_layout{7, 3, 3, 7}, {9, 9, 4, 2, 4, 2}, {0, 1, 2, 2, 1, 0}, {5, 0, 5, 0}}) {
    check_steps(layout, clip::bucketwise{threshold::equal{2.0}}, {.sizes = {}, .seed = 77});
  }
}

TEST_CASE("reduce::adasum_hierarchical works in the dtype of the wire") {
  auto seed        = std::uint64_t{100};
  auto const check = [&](storage_options storage, dtype type, double unit) {
    check_steps(
        test::grid_of(3, 2), clip::none{}, {{}, test::one_each, storage, type, unit, ++seed});
  };
  check({}, dtype::fp64, 0x1p-52);
  check({}, dtype::bf16, 0x1p-7);
  check({}, dtype::fp16, 0x1p-10);
  check({.reduce = dtype::bf16}, dtype::fp32, 0x1p-7);
  check({.reduce = dtype::fp32}, dtype::bf16, 0x1p-7);
  check({.accumulate = dtype::fp32}, dtype::fp16, 0x1p-10);
}

TEST_CASE("reduce::adasum_hierarchical of sums is that of averages, times the ranks of a node") {
  auto results = std::array<std::vector<float>, 2>{};
  for (auto const sums : {false, true}) {
    local::run(4, [&](communicator& comm, host::device& device) {
      auto buckets  = gradient_buckets{device, bucket_plan{test::parameters({70}), {.pad_to = 2}}};
      auto pipeline = clip_allreduce{
          buckets,
          comm,
          clip::none{},
          reduce::adasum_hierarchical{.in_node = sums ? reduction::sum : reduction::average,
                                      .node    = comm.rank() / 2}};
      auto compute = device.make_stream();
      test::run_step(pipeline, buckets, compute, [&](std::size_t p, buffer_view view) {
        test::write(view, comm.rank(), 3, p);
      });
      auto const g = buckets.gradient<float>(0);
      if (comm.rank() == 3) { results.at(sums ? 1 : 0).assign(g.begin(), g.end()); }
    });
  }
  for (auto i = std::size_t{0}; i < 70; ++i) { CHECK(results[1][i] == 2 * results[0][i]); }
}

TEST_CASE("reduce::adasum_hierarchical finds its nodes where none are given, and tells them") {
  for (auto const per_node : {1, 2, 3, 6}) {
    local::run(6, {.ranks_per_node = per_node}, [&](communicator& comm, host::device& device) {
      auto buckets    = gradient_buckets{device, bucket_plan{test::parameters({8}), {.pad_to = 6}}};
      auto pipeline   = clip_allreduce{buckets, comm, clip::none{}, reduce::adasum_hierarchical{}};
      auto const text = pipeline.describe();
      CHECK(text.find("over ranks: adasum_hierarchical") != std::string::npos);
      CHECK(text.find("tree over the nodes of adasum(a, b) = (1 - a.b / (2|a|^2)) a") !=
            std::string::npos);
      CHECK(text.find("nodes: N = " + std::to_string(6 / per_node) +
                      ", of L = " + std::to_string(per_node)) != std::string::npos);
    });
  }
}

TEST_CASE("step_report tells how orthogonal nodes are, with the same bits on all ranks") {
  for (auto const& [nodes, per_node] : grids) {
    auto const ranks = nodes * per_node;
    CAPTURE(nodes);
    CAPTURE(per_node);
    auto const options = bucket_options{.pad_to = static_cast<std::size_t>(per_node)};
    auto const layout  = test::grid_of(nodes, per_node);
    auto wrong         = std::atomic<int>{0};
    auto bits          = std::vector<std::vector<std::uint64_t>>(layout.size());
    local::run(ranks, [&](communicator& comm, host::device& device) {
      auto buckets  = gradient_buckets{device, bucket_plan{test::parameters(sizes), options}};
      auto pipeline = clip_allreduce{
          buckets, comm, clip::none{}, on_node(layout[static_cast<std::size_t>(comm.rank())])};
      auto compute = device.make_stream();
      for (auto step = std::size_t{0}; step < 2; ++step) {
        test::run_step(pipeline, buckets, compute, [&](std::size_t p, buffer_view view) {
          test::write(view, comm.rank(), step, p);
        });
        auto const& report  = pipeline.sync_report();
        auto const g        = test::all_gradients(ranks, step, sizes);
        auto const expected = test::adasum_of(g, test::ones(g), layout);
        for (auto p = std::size_t{0}; p < sizes.size(); ++p) {
          auto const found  = report.parameter_orthogonality.at(p);
          auto const wanted = static_cast<double>(expected[p].orthogonality);
          if (sizes[p] == 0) {
            if (!std::isnan(found)) { ++wrong; }
            continue;
          }
          if (!(std::abs(found - (nodes == 1 ? 1.0 : wanted)) <= 1e-5)) { ++wrong; }
          auto& own = bits[static_cast<std::size_t>(comm.rank())].emplace_back();
          std::memcpy(&own, &found, sizeof own);
        }
      }
    });
    CHECK(wrong == 0);
    for (auto const& own : bits) { CHECK(own == bits[0]); }
  }
}

TEST_CASE("reduce::adasum_hierarchical skips on all ranks what is not finite on one") {
  auto const check = [](auto clip, double bad) {
    CAPTURE(clip.describe());
    local::run(6, [&](communicator& comm, host::device& device) {
      auto buckets =
          gradient_buckets{device, bucket_plan{test::parameters({4, 50, 6}), cut_in_two}};
      auto pipeline =
          clip_allreduce{buckets, comm, clip, on_node(comm.rank() / 2), non_finite::fail{}};
      auto compute = device.make_stream();
      for (auto step = 0; step < 4; ++step) {
        auto const is_bad = step % 2 == 1;
        test::run_step(pipeline, buckets, compute, [&](std::size_t p, buffer_view view) {
          test::write(view, comm.rank(), 0, p);
          if (is_bad && p == 1 && comm.rank() == 3) { test::store(view, 40, bad); }
        });
        if (!is_bad) {
          CHECK_FALSE(pipeline.sync_report().skipped);
          continue;
        }
        auto const known = decltype(clip)::scope != clip_scope::local_total || comm.rank() == 3;
        CHECK_THROWS_WITH_AS(
            static_cast<void>(pipeline.sync_report()),
            doctest::Contains(known ? "not finite in bucket 1" : "not finite in bucket 0"),
            non_finite_error);
        CHECK(pipeline.status()->skip != 0);
      }
    });
  };
  for (auto const bad :
       {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    check(clip::none{}, bad);
    check(clip::after{1.0}, bad);
    check(clip::before{1.0}, bad);
    check(clip::bucketwise{threshold::equal{1.0}}, bad);
  }
}

TEST_CASE("reduce::adasum_hierarchical brings NaN of one rank to all of the parameter, no other") {
  auto wrong = std::atomic<int>{0};
  local::run(4, [&](communicator& comm, host::device& device) {
    auto buckets =
        gradient_buckets{device, bucket_plan{test::parameters({90, 100, 3}), {.pad_to = 2}}};
    auto pipeline = clip_allreduce{buckets, comm, clip::none{}, on_node(comm.rank() / 2)};
    auto compute  = device.make_stream();
    test::run_step(pipeline, buckets, compute, [&](std::size_t p, buffer_view view) {
      test::write(view, comm.rank(), 0, p);
      if (p == 1 && comm.rank() == 2) {
        test::store(view, 7, std::numeric_limits<double>::quiet_NaN());
      }
    });
    for (auto const p : {0U, 1U, 2U}) {
      for (auto const x : buckets.gradient<float>(p)) {
        wrong += std::isnan(x) == (p == 1) ? 0 : 1;
      }
    }
  });
  CHECK(wrong == 0);
}

TEST_CASE(
    "reduce::adasum_hierarchical refuses unequal nodes, on all ranks, and its communicator "
    "is whole") {
  auto refused = std::atomic<int>{0};
  local::run(5, {.ranks_per_node = 2}, [&](communicator& comm, host::device& device) {
    auto buckets = gradient_buckets{device, bucket_plan{test::parameters({4}), {.pad_to = 20}}};
    try {
      auto const pipeline =
          clip_allreduce{buckets, comm, clip::none{}, reduce::adasum_hierarchical{}};
    } catch (contract_error const& e) {
      auto const text = std::string{e.what()};
      if (text.find("the node of rank 0 has 2 ranks, that of rank 4 has 1") != std::string::npos) {
        ++refused;
      }
    }
    CHECK(comm.deadline() == no_deadline);
    auto pipeline = clip_allreduce{buckets, comm, clip::none{}, on_node(0)};
    auto compute  = device.make_stream();
    test::run_step(pipeline, buckets, compute, [](std::size_t, buffer_view view) {
      for (auto i = std::size_t{0}; i < view.count(); ++i) { test::store(view, i, 2.0); }
    });
    CHECK(buckets.gradient<float>(0)[3] == 2.0F);
  });
  CHECK(refused == 5);
}

TEST_CASE("reduce::adasum_hierarchical refuses what it cannot do, and ranks that disagree") {
  auto refused = std::atomic<int>{0};
  local::run(4, [&](communicator& comm, host::device& device) {
    auto const first   = comm.rank() == 0;
    auto uneven        = gradient_buckets{device, bucket_plan{test::parameters({5})}};
    auto even          = gradient_buckets{device, bucket_plan{test::parameters({4})}};
    auto const attempt = [&](auto& buckets, auto reduction, char const* text) {
      try {
        auto const pipeline = clip_allreduce{buckets, comm, clip::none{}, reduction};
      } catch (error const& e) {
        if (std::string{e.what()}.find(text) != std::string::npos) { ++refused; }
      }
    };
    attempt(uneven,
            on_node(comm.rank() / 2),
            "bucket 0 has 5 elements, which are no equal parts for 2 ranks of a node");
    attempt(even,
            reduce::adasum_hierarchical{.in_node = reduction::max},
            "in_node must be reduction::average or sum");
    attempt(even, first ? on_node(0) : reduce::adasum_hierarchical{}, "nodes as given");
    attempt(even,
            reduce::adasum_hierarchical{.in_node = first ? reduction::sum : reduction::average},
            "sum over each node's ranks");
    auto other = gradient_buckets{device, bucket_plan{test::parameters({first ? 8U : 4U})}};
    attempt(other, on_node(comm.rank() / 2), "rank 0 has parameter 0: 'p0'");
  });
  CHECK(refused == 5 * 4);
}

TEST_CASE("reduce::adasum_hierarchical joins deltas of local optimizers as it joins gradients") {
  auto const step_size = -0.5F;
  auto wrong           = std::atomic<int>{0};
  local::run(6, {.ranks_per_node = 2}, [&](communicator& comm, host::device& device) {
    auto buckets = gradient_buckets{device, bucket_plan{test::parameters(sizes), {.pad_to = 2}}};
    auto const optimize = [&](bucket_update<host::device> const& u) {
      for (auto const& delta : u.deltas) { device.scale(u.stream, delta, &step_size); }
    };
    auto pipeline = clip_allreduce{
        buckets, comm, clip::none{}, reduce::deltas{reduce::adasum_hierarchical{}, optimize}};
    auto compute = device.make_stream();
    for (auto step = std::size_t{0}; step < 2; ++step) {
      test::run_step(pipeline, buckets, compute, [&](std::size_t p, buffer_view view) {
        test::write(view, comm.rank(), step, p);
      });
      auto const g = test::all_gradients(6, step, sizes);
      auto deltas  = test::adasum(g, test::ones(g), test::grid_of(3, 2));
      for (auto& p : deltas) {
        for (auto& x : p) { x *= static_cast<double>(step_size); }
      }
      if (!(test::largest_error(buckets, deltas) <= 1e-5)) { ++wrong; }
    }
  });
  CHECK(wrong == 0);
}

TEST_CASE("reduce::adasum_hierarchical follows a plan that was laid out anew") {
  auto wrong = std::atomic<int>{0};
  local::run(4, [&](communicator& comm, host::device& device) {
    auto buckets  = gradient_buckets{device, bucket_plan{test::parameters({3, 40, 5}), cut_in_two}};
    auto pipeline = clip_allreduce{buckets, comm, clip::none{}, on_node(comm.rank() / 2)};
    auto compute  = device.make_stream();
    auto const step = [&](std::size_t number) {
      pipeline.begin(compute);
      for (auto const p : {0U, 2U, 1U}) {
        test::write(buckets.gradient(p), comm.rank(), number, p);
        pipeline.ready(p, compute);
      }
      pipeline.finish(compute);
      device.sync(compute);
      auto const g        = test::all_gradients(4, number, {3, 40, 5});
      auto const expected = test::adasum(g, test::ones(g), test::grid_of(2, 2));
      if (!(test::largest_error(buckets, expected) <= 1e-5)) { ++wrong; }
    };
    step(0);
    pipeline.sync_learn_order();
    if (pipeline.plan().buckets()[0].parameters[0] != 0) { ++wrong; }
    step(1);
    step(2);
  });
  CHECK(wrong == 0);
}

namespace {

/// A pipeline on 2 x 2 ranks and two steps with it; gives how many ranks got an error.
[[nodiscard]] int failures_of_grid(local::script const& faults, timeout deadline) {
  auto told = std::atomic<int>{0};
  local::run(4, {.faults = faults}, [&](communicator& comm, host::device& device) {
    comm.set_deadline(deadline);
    try {
      auto buckets  = gradient_buckets{device, bucket_plan{test::parameters({4, 6}), cut_in_two}};
      auto pipeline = clip_allreduce{buckets,
                                     comm,
                                     clip::none{},
                                     on_node(comm.rank() / 2),
                                     non_finite::propagate{},
                                     scaling::automatic{},
                                     {.construction_deadline = deadline}};
      auto compute  = device.make_stream();
      for (auto step = std::size_t{0}; step < 2; ++step) {
        pipeline.begin(compute);
        for (auto p = std::size_t{2}; p-- > 0;) {
          test::write(buckets.gradient(p), comm.rank(), step, p);
          pipeline.ready(p, compute);
        }
        pipeline.finish(compute, 10s);
      }
    } catch (communication_error const&) { ++told; }
  });
  return told;
}

}  // namespace

TEST_CASE(
    "reduce::adasum_hierarchical ends in an error on every rank, wherever one fails or dies") {
  // 2 splits and 5 exchanges when it is made; 6 calls for each of 2 buckets in 2 steps
  constexpr auto calls = std::uint64_t{7 + 4 * 6};
  for (auto const rank : {0, 3}) {
    for (auto const dies : {false, true}) {
      for (auto call = std::uint64_t{0}; call <= calls; ++call) {
        CAPTURE(call);
        CAPTURE(dies);
        auto faults = local::script{};
        (dies ? faults.deaths : faults.failures).push_back({rank, call});
        auto const told = failures_of_grid(faults, dies ? 40ms : 10s);
        // the very last call gathers inside the node: the other one has come to its end
        CHECK(told == (call == calls ? 0 : call == calls - 1 ? 2 : 4));
      }
    }
  }
}

TEST_CASE("reduce::adasum_hierarchical aborts all its groups where the work of one rank fails") {
  // Nobody destroys anything before all are told. Rank 3 has no group in common with rank 0 but
  // that of all, in which it does not wait.
  auto told = std::atomic<int>{0};
  local::run(4, [&](communicator& comm, host::device& device) {
    auto buckets  = gradient_buckets{device, bucket_plan{test::parameters({4, 6}), cut_in_two}};
    auto pipeline = clip_allreduce{buckets, comm, clip::none{}, on_node(comm.rank() / 2)};
    auto compute  = device.make_stream();
    pipeline.begin(compute);
    if (comm.rank() == 0) {
      device.enqueue(compute, [] { throw std::runtime_error{"no gradients"}; });
    }
    try {
      pipeline.ready(1, compute);
      pipeline.ready(0, compute);
      pipeline.finish(compute, 30s);
    } catch (aborted_error const& e) {
      CHECK(std::string{e.what()}.find("bucket 0, 'p1'") != std::string::npos);
      ++told;
    } catch (std::runtime_error const&) {
      CHECK(comm.rank() == 0);
      ++told;
    }
    while (told < 4) { std::this_thread::yield(); }
  });
  CHECK(told == 4);
}

TEST_CASE("reduce::adasum_hierarchical waits no longer than its communicator's deadline") {
  auto told = std::atomic<int>{0};
  local::run(4, [&](communicator& comm, host::device& device) {
    auto buckets  = gradient_buckets{device, bucket_plan{test::parameters({4, 6}), cut_in_two}};
    auto pipeline = clip_allreduce{buckets, comm, clip::none{}, on_node(comm.rank() / 2)};
    auto compute  = device.make_stream();
    comm.set_deadline(50ms);  // after the groups have been made
    pipeline.begin(compute);
    if (comm.rank() == 3) {
      while (told < 3) { std::this_thread::yield(); }
      return;
    }
    auto const step = [&] {  // on a slow machine, ready() is told already
      pipeline.ready(1, compute);
      pipeline.ready(0, compute);
      pipeline.finish(compute);
      device.sync(compute);
    };
    CHECK_THROWS_AS(step(), communication_error);
    ++told;
  });
  CHECK(told == 3);
}

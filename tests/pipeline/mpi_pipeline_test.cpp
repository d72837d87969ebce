// SPDX-License-Identifier: Apache-2.0
// The pipeline over MPI: any number of ranks, every thread level.
#include <gradlane/gradlane.hpp>
#include <gradlane/mpi/communicator.hpp>

#include <doctest/doctest.h>

#include <mpi.h>

#include <conformance/pipeline.hpp>  // for GRADLANE_PIPELINE_CONFORMANCE
#include <support/adasum.hpp>
#include <support/model.hpp>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <limits>
#include <random>
#include <thread>
#include <vector>

namespace {

using namespace gradlane;

constexpr auto eps = 1.2e-7;

struct on_mpi {
  using device                    = host::device;
  static constexpr auto schedules = std::uint64_t{10};

  [[nodiscard]] static std::vector<int> worlds() {
    auto size = 0;
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    return {size};
  }

  template <class F>
  static void run(int, std::uint64_t, F f) {
    auto on   = device{};
    auto comm = mpi::from_mpi(on, MPI_COMM_WORLD);
    f(comm, on);
  }

  static void delay(device& d, device::stream& s, int microseconds) {
    d.enqueue(s, [=] { std::this_thread::sleep_for(std::chrono::microseconds{microseconds}); });
  }
};

/// Requests of this process that MPI has completed.
auto completed = std::atomic<int>{0};

}  // namespace

// MPI's profiling interface: what gradlane completes is counted on its way.
extern "C" int MPI_Test(MPI_Request* request, int* complete, MPI_Status* status) {
  auto const code = PMPI_Test(request, complete, status);
  if (code == MPI_SUCCESS && *complete != 0) { ++completed; }
  return code;
}

TYPE_TO_STRING(on_mpi);
GRADLANE_PIPELINE_CONFORMANCE(on_mpi);

TEST_CASE("clip_allreduce over MPI joins gradients by Adasum") {
  auto device      = host::device{};
  auto comm        = mpi::from_mpi(device, MPI_COMM_WORLD);
  auto const sizes = std::vector<std::size_t>{5, 0, 3000, 64, 1};
  auto buckets     = gradient_buckets{device, bucket_plan{test::parameters(sizes), test::one_each}};
  auto pipeline    = clip_allreduce{buckets, comm, clip::none{}, reduce::adasum{}};
  auto compute     = device.make_stream();
  for (auto step = std::size_t{0}; step < 3; ++step) {
    test::run_step(pipeline, buckets, compute, [&](std::size_t p, buffer_view view) {
      test::write(view, comm.rank(), step, p);
    });
    auto const g  = test::all_gradients(comm.size(), step, sizes);
    auto expected = std::vector<std::vector<double>>{};
    for (auto p = std::size_t{0}; p < sizes.size(); ++p) {
      auto vectors = std::vector<test::wide_vector>{};
      for (auto const& own : g) { vectors.emplace_back(own[p].begin(), own[p].end()); }
      auto const joined = test::adasum_tree(vectors).value;
      expected.emplace_back(joined.begin(), joined.end());
    }
    CHECK(test::largest_error(buckets, expected) <= 4 * 3 * eps * 8 * 1.5 * comm.size());
    auto const ratio = pipeline.sync_report().orthogonality;
    CHECK(ratio > 0.0);
    CHECK((comm.size() > 1 || ratio == 1.0));
  }
}

TEST_CASE("clip_allreduce over MPI repeats bit for bit, and integers do not depend on buckets") {
  auto device      = host::device{};
  auto comm        = mpi::from_mpi(device, MPI_COMM_WORLD);
  auto const sizes = std::vector<std::size_t>{1000, 77, 3, 40000};
  auto const g     = test::all_gradients(comm.size(), 0, sizes);
  auto const caps  = std::array<std::size_t, 4>{
      1U << 10U, 64U << 10U, 25U << 20U, std::numeric_limits<std::size_t>::max()};
  auto first = std::array<std::vector<float>, 4>{};  // by cap
  for (auto run = std::size_t{0}; run < 20; ++run) {
    auto const cap = caps.at(run % caps.size());
    auto buckets   = gradient_buckets{
        device, bucket_plan{test::parameters(sizes), {.cap_bytes = cap, .first_cap_bytes = cap}}};
    auto pipeline   = clip_allreduce{buckets, comm, clip::none{}, average::none{}};
    auto compute    = device.make_stream();
    auto const step = [&](double unit) {
      test::run_step(pipeline, buckets, compute, [&](std::size_t p, buffer_view view) {
        for (auto i = std::size_t{0}; i < view.count(); ++i) {
          test::store(view, i, unit * test::value(comm.rank(), 0, p, i));
        }
      });
      auto const share = std::vector<double>(sizes.size(), unit);
      return test::largest_error(buckets, test::combine(g, {g.size(), share}));
    };
    CHECK(step(1.0) == 0.0);
    CHECK(step(0.1) <= 0.8 * comm.size() * comm.size() * eps);  // a rounding per rank, of the sum
    auto result = std::vector<float>{};
    for (auto const p : test::every(sizes.size())) {
      auto const x = buckets.gradient<float>(p);
      result.insert(result.end(), x.begin(), x.end());
    }
    auto& expected = first.at(run % caps.size());
    if (expected.empty()) { expected = result; }
    CHECK(result == expected);
  }
}

TEST_CASE("clip_allreduce over MPI reduces while backward goes on, at every thread level") {
  auto device = host::device{};
  auto comm   = mpi::from_mpi(device, MPI_COMM_WORLD);
  if (comm.size() == 1) { return; }
  auto parameters    = test::parameters({1, 1U << 20U});
  parameters[0].uses = 20000;  // a backward that goes on until the first bucket has been reduced
  auto buckets       = gradient_buckets{device, bucket_plan{parameters, test::one_each}};
  auto pipeline      = clip_allreduce{buckets, comm, clip::none{}};
  auto compute       = device.make_stream();
  pipeline.begin(compute);
  for (auto const p : {std::size_t{1}, std::size_t{0}}) {
    test::write(buckets.gradient(p), comm.rank(), 0, p);
  }
  auto const before = completed.load();
  pipeline.ready(1, compute);
  auto overlapped = false;
  for (auto use = 0; use < 20000; ++use) {
    if (!overlapped) { std::this_thread::sleep_for(std::chrono::microseconds{500}); }
    pipeline.ready(0, compute);
    overlapped = overlapped || (use < 19999 && completed.load() > before);
  }
  CHECK(overlapped);
  pipeline.finish(compute);
  device.sync(compute);
  auto const g = test::all_gradients(comm.size(), 0, {1, 1U << 20U});
  CHECK(test::largest_error(buckets, test::reference_none(g)) <= 8 * 8 * eps);
}

TEST_CASE("clip_allreduce over MPI gives up its construction where a rank does not come") {
  auto device = host::device{};
  auto comm   = mpi::from_mpi(device, MPI_COMM_WORLD);
  if (comm.size() == 1) { return; }
  auto buckets    = gradient_buckets{device, bucket_plan{test::parameters({4, 5})}};
  auto const make = [&] {
    auto pipeline = clip_allreduce{buckets,
                                   comm,
                                   clip::none{},
                                   average::ranks{},
                                   non_finite::propagate{},
                                   scaling::automatic{},
                                   {.construction_deadline = std::chrono::milliseconds{100}}};
  };
  if (comm.rank() != 0) {
    CHECK_THROWS_WITH_AS(
        make(), doctest::Contains("waited in vain for other ranks"), timeout_error);
    CHECK_THROWS_AS(comm.poll(), communication_error);
  }
  MPI_Barrier(MPI_COMM_WORLD);
}

TEST_CASE("clip_allreduce over MPI refuses different plans on every rank alike") {
  auto device = host::device{};
  auto comm   = mpi::from_mpi(device, MPI_COMM_WORLD);
  if (comm.size() == 1) { return; }
  auto const last = comm.rank() == comm.size() - 1;
  auto buckets    = gradient_buckets{
      device, bucket_plan{test::parameters({4, last ? std::size_t{16} : std::size_t{8}})}};
  auto const wanted = "rank " + std::to_string(comm.size() - 1) + " has parameter 1: 'p1' 16";
  CHECK_THROWS_WITH_AS((clip_allreduce{buckets, comm, clip::none{}}),
                       doctest::Contains(wanted.c_str()),
                       plan_mismatch_error);
}

TEST_CASE("clip_allreduce over MPI skips on all ranks what is not finite on one") {
  auto device   = host::device{};
  auto comm     = mpi::from_mpi(device, MPI_COMM_WORLD);
  auto buckets  = gradient_buckets{device, bucket_plan{test::parameters({4, 5}), test::one_each}};
  auto pipeline = clip_allreduce{
      buckets, comm, clip::bucketwise{threshold::equal{1.0}}, average::ranks{}, non_finite::skip{}};
  auto compute = device.make_stream();
  for (auto step = 0; step < 4; ++step) {
    auto const bad    = step % 2 == 1;
    auto const before = comm.collectives();
    test::run_step(pipeline, buckets, compute, [&](std::size_t p, buffer_view view) {
      test::write(view, comm.rank(), 0, p);
      if (bad && p == 0 && comm.rank() == comm.size() - 1) {
        test::store(view, 2, std::numeric_limits<double>::infinity());
      }
    });
    CHECK(pipeline.sync_report().skipped == bad);
    CHECK(pipeline.sync_report().buckets[1].finite == !bad);
    CHECK(comm.collectives() == before + 2);
  }
}

TEST_CASE("clip_allreduce over MPI learns rank 0's order, and lets ranks join early") {
  auto device     = host::device{};
  auto comm       = mpi::from_mpi(device, MPI_COMM_WORLD);
  auto const size = std::vector<std::size_t>{3, 4, 5};
  auto buckets    = gradient_buckets{device, bucket_plan{test::parameters(size), test::one_each}};
  auto pipeline   = clip_allreduce{buckets, comm, clip::none{}, average::weighted{}};
  auto compute    = device.make_stream();
  auto const step = [&] {
    pipeline.begin(compute, {.weight = comm.rank() + 1.0});
    for (auto k = std::size_t{0}; k < 3; ++k) {
      auto const p = comm.rank() == 0 ? (k + 1) % 3 : k;
      test::write(buckets.gradient(p), comm.rank(), 0, p);
      pipeline.ready(p, compute);
    }
    pipeline.finish(compute);
    device.sync(compute);
  };
  step();
  pipeline.sync_learn_order();
  CHECK(pipeline.plan().buckets()[0].parameters[0] == 1);
  CHECK(pipeline.plan().buckets()[2].parameters[0] == 0);
  auto joined = 0;
  for (auto k = 0; k <= comm.rank(); ++k) { step(); }  // rank r has r + 1 batches
  pipeline.sync_join(compute, [&] { ++joined; });
  CHECK(joined == comm.size() - 1 - comm.rank());
  // In the last step before all had joined, only the last rank had weight.
  auto const last = comm.size() - 1;
  auto weights    = std::vector<double>(static_cast<std::size_t>(comm.size()));
  weights.back()  = last + 1.0;
  auto const g    = test::all_gradients(comm.size(), 0, size);
  CHECK(test::largest_error(buckets, test::reference_weighted(g, weights)) <= 8 * 8 * eps);
}

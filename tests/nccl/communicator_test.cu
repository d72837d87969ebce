// SPDX-License-Identifier: Apache-2.0
#include <gradlane/cuda/device.cuh>        // for device
#include <gradlane/cuda/error.hpp>         // for check
#include <gradlane/error.hpp>              // for communication_error, contract_error, timeout_error
#include <gradlane/nccl/communicator.hpp>  // for communicator, from_existing, from_unique_id, …
#include <gradlane/nccl/from_mpi.hpp>      // for from_mpi

#include <doctest/doctest.h>

#include <cuda_runtime_api.h>
#include <mpi.h>
#include <nccl.h>
#include <nccl/support.cuh>  // for own_device

#include <conformance/communicator.hpp>  // for fill, placed, throws

#include <chrono>   // for milliseconds, seconds
#include <cstddef>  // for size_t
#include <cstdint>  // for uint8_t
#include <string>   // for string, to_string
#include <vector>   // for vector

namespace gradlane::test {

/// x[i] = i, and *coefficient = the next of 1, 2, 3, …
struct count_up {
  float* x;
  std::size_t n;
  float* coefficient;
  __host__ __device__ void operator()() const {
    for (std::size_t i = 0; i < n; ++i) { x[i] = static_cast<float>(i); }
    *coefficient += 1.0F;
  }
};

}  // namespace gradlane::test

namespace {

namespace nccl = gradlane::nccl;
namespace test = gradlane::test;
using gradlane::bf16;
using gradlane::reduction;
using gradlane::stream_priority;
using gradlane::cuda::check;
using gradlane::cuda::device;
using gradlane::test::placed;

template <class F>
void on_every_rank(F f) {
  auto d = device{test::own_device()};
  auto c = nccl::from_mpi(d, MPI_COMM_WORLD);
  f(c, d);
}

/// An id that rank 0 has made.
[[nodiscard]] ncclUniqueId shared_id() {
  auto rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  auto id = rank == 0 ? nccl::make_unique_id() : ncclUniqueId{};
  MPI_Bcast(&id, static_cast<int>(sizeof id), MPI_BYTE, 0, MPI_COMM_WORLD);
  return id;
}

}  // namespace

TEST_CASE("an nccl communicator reads the coefficient when the stream, or a graph, gets there") {
  on_every_rank([](auto& c, auto& d) {
    constexpr auto n = std::size_t{1009};
    auto s           = d.make_stream(stream_priority::high);
    auto x           = placed{d, s, std::vector<float>(n)};
    auto k           = placed{d, s, std::vector<float>{static_cast<float>(c.rank())}};
    auto const once  = [&] {
      d.invoke(s, test::count_up{x.data(), n, k.data()});
      c.all_reduce_scaled(s, x, x, k.data());
    };
    auto const factor = [&](int steps) {  // Σ over ranks of rank + steps
      return c.size() * (c.size() - 1) / 2 + c.size() * steps;
    };
    auto const expected = [&](int steps) {
      return [f = static_cast<double>(factor(steps))](std::size_t i) {
        return f * static_cast<double>(i);
      };
    };
    once();
    CHECK(test::wrong(x.values(), expected(1)) == 0);

    auto* graph = cudaGraph_t{};
    auto* ready = cudaGraphExec_t{};
    check(cudaStreamBeginCapture(s.get(), cudaStreamCaptureModeThreadLocal));
    once();
    check(cudaStreamEndCapture(s.get(), &graph));
    check(cudaGraphInstantiate(&ready, graph, 0));
    for (auto replay = 1; replay <= 100; ++replay) {
      check(cudaGraphLaunch(ready, s.get()));
      if (replay % 10 == 0) { CHECK(test::wrong(x.values(), expected(1 + replay)) == 0); }
    }
    check(cudaGraphExecDestroy(ready));
    check(cudaGraphDestroy(graph));
  });
}

TEST_CASE("an nccl communicator scales fp32, and refuses what it would scale badly") {
  on_every_rank([](auto& c, auto& d) {
    auto s       = d.make_stream();
    auto const k = placed{d, s, std::vector<float>{1.0F}};
    auto const x = placed{d, s, std::vector<bf16>(8)};
    CHECK(nccl::communicator::supports_scaled(gradlane::dtype::fp32));
    CHECK_FALSE(nccl::communicator::supports_scaled(gradlane::dtype::bf16));
    CHECK(test::throws<gradlane::contract_error>([&] { c.all_reduce_scaled(s, x, x, k.data()); },
                                                 "NCCL scales fp32 only"));
  });
}

TEST_CASE("an nccl communicator takes turns with those split from it, in the order of the host") {
  on_every_rank([](auto& c, auto& d) {
    auto other   = c.split(0, c.rank());
    auto a       = d.make_stream(stream_priority::high);
    auto b       = d.make_stream(stream_priority::normal);
    auto x       = placed{d, a, std::vector<float>(17)};
    auto y       = placed{d, b, std::vector<float>(17)};
    auto const r = static_cast<float>(c.rank());
    for (auto i = 0; i < 250; ++i) {
      auto const v = static_cast<float>(i % 100);
      d.invoke(a, test::fill{x.data(), x.size(), v + r});
      c.all_reduce(a, x, x, reduction::sum);
      d.invoke(b, test::fill{y.data(), y.size(), v - r});
      other.all_reduce(b, y, y, reduction::sum);
    }
    auto const ranks = static_cast<double>(c.size());
    auto const pairs = ranks * (ranks - 1) / 2;
    CHECK(test::wrong(x.values(), [&](std::size_t) { return ranks * 49 + pairs; }) == 0);
    CHECK(test::wrong(y.values(), [&](std::size_t) { return ranks * 49 - pairs; }) == 0);
  });
}

TEST_CASE("an nccl communicator is made from a unique id that came by any means") {
  auto rank = 0;
  auto size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  auto d = device{test::own_device()};
  auto c = nccl::from_unique_id(d, shared_id(), rank, size);
  auto s = d.make_stream();
  auto x = placed{d, s, std::vector<float>{1.0F}};
  c.all_reduce(s, x, x, reduction::sum);
  CHECK(x.values()[0] == static_cast<float>(size));
  auto const text = c.describe();
  CHECK(text.find("nccl: rank " + std::to_string(rank) + " of " + std::to_string(size)) == 0);
  auto node = c.node_group();  // by the host's name
  CHECK(node.size() == size);
  CHECK(test::throws<gradlane::contract_error>(
      [&] { static_cast<void>(nccl::from_unique_id(d, ncclUniqueId{}, 2, 2)); }, "rank"));
}

TEST_CASE("an nccl communicator over an existing one leaves that to its owner") {
  auto rank = 0;
  auto size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  auto d     = device{test::own_device()};
  auto s     = d.make_stream();
  auto* mine = ncclComm_t{};
  REQUIRE(ncclCommInitRank(&mine, size, shared_id(), rank) == ncclSuccess);
  auto x = placed{d, s, std::vector<float>{1.0F}};
  for (auto aborts : {false, true}) {
    auto c = nccl::from_existing(d, mine);
    if (aborts) {
      c.abort();
      CHECK(test::throws<gradlane::aborted_error>([&] { c.poll(); }));
      continue;
    }
    CHECK(c.rank() == rank);
    c.all_reduce(s, x, x, reduction::sum);
    CHECK(x.values()[0] == static_cast<float>(size));
  }
  CHECK(ncclCommAbort(mine) == ncclSuccess);
}

TEST_CASE("nccl::from_unique_id gives up on ranks that do not come") {
  auto rank = 0;
  auto size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (size == 1) { return; }
  auto d        = device{test::own_device()};
  auto const id = shared_id();
  if (rank > 0) {
    auto const wishes = nccl::options{.construction_deadline = std::chrono::milliseconds{200}};
    CHECK(test::throws<gradlane::timeout_error>(
        [&] { static_cast<void>(nccl::from_unique_id(d, id, rank, size, wishes)); },
        "waited for the other ranks"));
  }
  MPI_Barrier(MPI_COMM_WORLD);
}

TEST_CASE("an nccl communicator turns calls that do not fit into an error") {
  on_every_rank([](auto& c, auto& d) {
    if (c.size() == 1) { return; }
    auto bad = c.split(0, c.rank());
    bad.set_deadline(std::chrono::seconds{5});
    auto s = d.make_stream();
    auto x = placed{d, s, std::vector<float>(18)};
    auto t = d.make_stream();
    bad.all_reduce(
        t, x.part(0, c.rank() == 0 ? 17 : 18), x.part(0, c.rank() == 0 ? 17 : 18), reduction::sum);
    CHECK(test::throws<gradlane::communication_error>([&] { d.sync(t); }, "all_reduce(sum) of 1"));
    auto all = placed{d, s, std::vector<float>{1.0F}};
    c.all_reduce(s, all, all, reduction::sum);
    CHECK(all.values()[0] == static_cast<float>(c.size()));
  });
}

TEST_CASE("an nccl communicator tells of a failure that a graph met") {
  on_every_rank([](auto& c, auto& d) {
    if (c.size() == 1) { return; }
    auto lost = c.split(0, c.rank());
    auto s    = d.make_stream();
    auto x    = placed{d, s, std::vector<float>(17)};
    check(cudaStreamBeginCapture(s.get(), cudaStreamCaptureModeThreadLocal));
    lost.all_reduce(s, x, x, reduction::sum);
    auto* graph = cudaGraph_t{};
    auto* ready = cudaGraphExec_t{};
    check(cudaStreamEndCapture(s.get(), &graph));
    check(cudaGraphInstantiate(&ready, graph, 0));
    check(cudaGraphLaunch(ready, s.get()));
    d.sync(s);
    auto t   = d.make_stream();
    auto all = placed{d, t, std::vector<float>{1.0F}};
    c.all_reduce(t, all, all, reduction::sum);  // all have come through the graph
    d.sync(t);
    if (c.rank() == 0) {
      lost.abort();
    } else {
      check(cudaGraphLaunch(ready, s.get()));
    }
    CHECK(test::throws<gradlane::communication_error>([&] { d.sync(s); }));
    CHECK(test::throws<gradlane::communication_error>([&] { lost.poll(); }));
    check(cudaGraphExecDestroy(ready));
    check(cudaGraphDestroy(graph));
  });
}

TEST_CASE("nccl::version_text reads both of NCCL's codes; an older library is refused by name") {
  CHECK(nccl::version_text(22809) == "2.28.9");
  CHECK(nccl::version_text(21805) == "2.18.5");
  CHECK(nccl::version_text(2604) == "2.6.4");
  auto const at = std::source_location::current();
  nccl::detail::check_version(22809, 22809, at);
  nccl::detail::check_version(21805, 22809, at);
  CHECK(
      test::throws<nccl::error>([&] { nccl::detail::check_version(22809, 21805, at); }, "2.28.9"));
  CHECK(
      test::throws<nccl::error>([&] { nccl::detail::check_version(22809, 21805, at); }, "2.18.5"));
  CHECK(test::throws<nccl::error>([&] { nccl::detail::check_version(22809, 30000, at); }, "3.0.0"));
}

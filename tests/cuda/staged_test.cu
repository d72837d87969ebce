// SPDX-License-Identifier: Apache-2.0
// The conformance suite over MPI on CUDA streams, and what is particular to going through the host.
#include <gradlane/concepts.hpp>          // for communicator_for
#include <gradlane/cuda/device.cuh>       // for device
#include <gradlane/cuda/staged.hpp>       // for staged
#include <gradlane/host/device.hpp>       // for device
#include <gradlane/mpi/communicator.hpp>  // for communicator, from_mpi

#include <doctest/doctest.h>

#include <cuda/support.cuh>  // for on_cuda
#include <mpi.h>

#include <conformance/communicator.hpp>  // for GRADLANE_COMMUNICATOR_CONFORMANCE
#include <support/mpi_nodes.hpp>         // for nodes_of_mpi

namespace {

namespace host = gradlane::host;
namespace mpi  = gradlane::mpi;
namespace test = gradlane::test;
using gradlane::cuda::device;
using gradlane::cuda::staged;
using gradlane::cuda::stream;

static_assert(gradlane::communicator_for<staged<mpi::communicator>, device>);

struct staged_ranks {
  template <class F>
  static void run(F f) {
    auto gpu  = device{0};
    auto host = host::device{};
    auto self = staged{gpu, host, mpi::from_mpi(host, MPI_COMM_WORLD)};
    f(self, gpu);
  }
  static int nodes(int size) { return test::nodes_of_mpi(size); }
  static void delay(device& d, stream& s, int microseconds) {
    test::on_cuda::delay(d, s, microseconds);
  }
  static constexpr auto divides_late  = true;
  static constexpr auto max_keeps_nan = true;
};

}  // namespace

GRADLANE_COMMUNICATOR_CONFORMANCE(staged_ranks);

TEST_CASE("a staged communicator refuses to be captured into a graph") {
  staged_ranks::run([](auto& c, auto& d) {
    auto s       = d.make_stream();
    auto const x = test::placed{d, s, std::vector<float>(17)};
    REQUIRE(cudaStreamBeginCapture(s.get(), cudaStreamCaptureModeThreadLocal) == cudaSuccess);
    CHECK(test::throws<gradlane::state_error>(
        [&] { c.all_reduce(s, x, x, gradlane::reduction::sum); }, "cannot be captured"));
    auto* graph = cudaGraph_t{};
    CHECK(cudaStreamEndCapture(s.get(), &graph) == cudaSuccess);
    cudaGraphDestroy(graph);
    c.all_reduce(s, x, x, gradlane::reduction::sum);
    d.sync(s);
  });
}

TEST_CASE("a staged communicator orders calls on many streams, each of which waits for another") {
  staged_ranks::run([](auto& c, auto& d) {
    constexpr auto streams = std::size_t{4};
    constexpr auto rounds  = std::size_t{10};
    using array            = test::placed<device, float>;
    auto on                = std::vector<stream>{};
    auto marks             = std::vector<device::event>{};
    for (std::size_t i = 0; i < streams; ++i) {
      on.push_back(d.make_stream());
      marks.push_back(d.make_event());
    }
    auto x = array{d, on[0], std::vector<float>{1.0F}};
    for (std::size_t k = 0; k < rounds; ++k) {  // the sum of all ranks' sums, around the streams
      auto& s = on[k % streams];
      d.wait(s, marks[(k + streams - 1) % streams]);
      c.all_reduce(s, x, x, gradlane::reduction::average);
      d.invoke(s, test::add{x.data(), 1.0F});
      d.record(marks[k % streams], s);
      auto& other = on[(k + 2) % streams];  // and others that have nothing to do with it
      auto y      = array{d, other, std::vector<float>{static_cast<float>(c.rank())}};
      c.all_reduce(other, y, y, gradlane::reduction::max);
      CHECK(y.values()[0] == static_cast<float>(c.size() - 1));
    }
    for (auto& s : on) { d.sync(s); }
    CHECK(x.values()[0] == 1.0F + static_cast<float>(rounds));
  });
}

TEST_CASE("a staged communicator may end while its calls wait for peers that never come") {
  staged_ranks::run([](auto& c, auto& d) {
    if (c.size() == 1) { return; }
    auto s = d.make_stream();
    auto x = test::placed{d, s, std::vector<float>(17)};
    {
      auto lost = c.split(0, c.rank());
      if (lost.rank() > 0) { lost.all_reduce(s, x, x, gradlane::reduction::sum); }
    }
    if (c.rank() > 0) {
      CHECK(test::throws<gradlane::aborted_error>([&] { d.sync(s); }, "aborted by rank"));
    }
    auto t = d.make_stream();
    auto y = test::placed{d, t, std::vector<float>{1.0F}};
    c.all_reduce(t, y, y, gradlane::reduction::sum);
    CHECK(y.values()[0] == static_cast<float>(c.size()));
  });
}

TEST_CASE("a staged communicator refuses MPI below MPI_THREAD_MULTIPLE") {
  auto level = 0;
  MPI_Query_thread(&level);
  if (level == MPI_THREAD_MULTIPLE) { return; }
  CHECK(test::throws<gradlane::contract_error>([] { staged_ranks::run([](auto&, auto&) {}); },
                                               "MPI_THREAD_MULTIPLE"));
}

// SPDX-License-Identifier: Apache-2.0
// What the MPI communicator adds to the conformance suite.
#include <gradlane/error.hpp>             // for communication_error, contract_error, timeout_error
#include <gradlane/host/device.hpp>       // for device
#include <gradlane/mpi/communicator.hpp>  // for from_mpi, options
#include <gradlane/mpi/environment.hpp>   // for environment
#include <gradlane/types.hpp>             // for bf16, fp16

#include <doctest/doctest.h>

#include <mpi.h>

#include <sys/resource.h>

#include <array>      // for array
#include <chrono>     // for milliseconds, steady_clock
#include <cstddef>    // for size_t
#include <cstdint>    // for uint32_t
#include <span>       // for span
#include <stdexcept>  // for runtime_error
#include <string>     // for string
#include <thread>     // for sleep_for
#include <vector>     // for vector

namespace {

using gradlane::bf16;
using gradlane::fp16;
using gradlane::reduction;
using gradlane::stream_priority;
using gradlane::host::device;
using gradlane::mpi::communicator;
using gradlane::mpi::from_mpi;
using namespace std::chrono_literals;

/// Non-blocking collectives that this process has begun.
auto begun = 0;

[[nodiscard]] float fraction(int rank, std::size_t i) {
  auto x = static_cast<std::uint32_t>(rank) * 2654435761U + static_cast<std::uint32_t>(i) * 40503U;
  x      = (x ^ (x >> 15U)) * 2246822519U;
  return static_cast<float>(x >> 8U) * 0x1p-24F - 0.5F;
}

/// The sum of two as a custom operation must give it: in fp32, rounded once.
template <class T>
[[nodiscard]] T plus(T a, T b) {
  return T{static_cast<float>(a) + static_cast<float>(b)};
}

template <class T>
void check_combinations(communicator& c, device& d) {
  auto s                  = d.make_stream(stream_priority::normal);
  constexpr std::size_t n = 1009;
  auto const value        = [](int rank, std::size_t i) { return T{fraction(rank, i)}; };
  auto x                  = std::vector<T>(n);
  auto y                  = std::vector<T>(n);
  for (std::size_t i = 0; i < n; ++i) { x[i] = y[i] = value(c.rank(), i); }
  c.all_reduce(s, std::span{x}, std::span{x}, reduction::sum);
  c.all_reduce(s, std::span{y}, std::span{y}, reduction::max);
  d.sync(s);
  auto wrong = 0;
  for (std::size_t i = 0; i < n; ++i) {  // the three ways to add three numbers
    auto const p     = value(0, i);
    auto const q     = value(1, i);
    auto const r     = value(2, i);
    auto const found = x[i].bits == plus(plus(p, q), r).bits ||
                       x[i].bits == plus(plus(p, r), q).bits ||
                       x[i].bits == plus(plus(q, r), p).bits;
    auto const greatest =
        std::max({static_cast<float>(p), static_cast<float>(q), static_cast<float>(r)});
    wrong += found && static_cast<float>(y[i]) == greatest ? 0 : 1;
  }
  CHECK(wrong == 0);
}

[[nodiscard]] double processor_seconds() {
  auto used = rusage{};
  getrusage(RUSAGE_SELF, &used);
  auto const seconds = [](timeval t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

}  // namespace

// MPI's profiling interface: what gradlane begins is counted on its way.
extern "C" int MPI_Iallreduce(void const* in,
                              void* out,
                              int n,
                              MPI_Datatype type,
                              MPI_Op op,
                              MPI_Comm comm,
                              MPI_Request* request) {
  ++begun;
  return PMPI_Iallreduce(in, out, n, type, op, comm, request);
}

extern "C" int MPI_Ibcast(
    void* x, int n, MPI_Datatype type, int root, MPI_Comm comm, MPI_Request* request) {
  ++begun;
  return PMPI_Ibcast(x, n, type, root, comm, request);
}

extern "C" int MPI_Iallgather(void const* in,
                              int n,
                              MPI_Datatype type,
                              void* out,
                              int m,
                              MPI_Datatype out_type,
                              MPI_Comm comm,
                              MPI_Request* request) {
  ++begun;
  return PMPI_Iallgather(in, n, type, out, m, out_type, comm, request);
}

TEST_CASE("an MPI communicator issues nothing for one rank, nor for empty buffers") {
  auto d = device{};
  auto c = from_mpi(d, MPI_COMM_WORLD);
  auto s = d.make_stream(stream_priority::normal);
  for (auto const n : {std::size_t{0}, std::size_t{5}}) {
    auto x   = std::vector<float>(n, 1.0F);
    auto all = std::vector<float>(n * static_cast<std::size_t>(c.size()));
    begun    = 0;
    c.all_reduce(s, std::span{x}, std::span{x}, reduction::average);
    c.broadcast(s, std::span{x}, 0);
    c.all_gather(s, std::span{x}, std::span{all});
    d.sync(s);
    CHECK(begun == (n == 0 || c.size() == 1 ? 0 : 3));
    CHECK(c.collectives() == (n == 0 ? 3 : 6));
    CHECK(all == std::vector<float>(all.size(), 1.0F));
  }
}

TEST_CASE("an MPI communicator combines 16-bit types in fp32, rounded once per combination") {
  auto d = device{};
  auto c = from_mpi(d, MPI_COMM_WORLD);
  if (c.size() != 3) { return; }
  check_combinations<bf16>(c, d);
  check_combinations<fp16>(c, d);
}

TEST_CASE("an MPI communicator keeps apart from the program's own messages") {
  auto d     = device{};
  auto c     = from_mpi(d, MPI_COMM_WORLD);
  auto s     = d.make_stream(stream_priority::normal);
  auto other = 0;
  auto mine  = c.rank();
  auto next  = (c.rank() + 1) % c.size();
  auto last  = (c.rank() + c.size() - 1) % c.size();
  auto early = MPI_REQUEST_NULL;
  MPI_Irecv(&other, 1, MPI_INT, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &early);
  auto x = std::vector<std::int32_t>{100 + c.rank()};
  auto y = std::vector<std::int32_t>{0};
  auto t = d.make_stream(stream_priority::normal);
  c.send(s, std::span{x}, next);
  c.receive(t, std::span{y}, last);
  d.sync(s);
  d.sync(t);
  MPI_Send(&mine, 1, MPI_INT, next, 0, MPI_COMM_WORLD);
  MPI_Wait(&early, MPI_STATUS_IGNORE);
  CHECK(other == last);
  CHECK(y[0] == 100 + last);
}

TEST_CASE("an MPI communicator turns errors of MPI into typed ones, and stays failed") {
  auto d = device{};
  auto c = from_mpi(d, MPI_COMM_WORLD);
  if (c.size() == 1) { return; }
  auto x   = std::vector<float>(5);
  auto s   = d.make_stream(stream_priority::normal);
  auto two = c.split(c.rank() / 2, c.rank());
  if (two.size() == 1) { return; }
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);  // an mpi::environment would have
  if (two.rank() == 0) {
    two.send(s, std::span{x}, 1);
    d.sync(s);
    two.abort();  // or its communicator would be freed while the other's is not
  } else {
    two.receive(s, std::span{x}.first(4), 0);
    auto code = MPI_SUCCESS;
    try {
      d.sync(s);
    } catch (gradlane::mpi::error const& e) {
      MPI_Error_class(e.code(), &code);
      auto const told = doctest::Contains("receive of 4 fp32 from rank 0 on rank 1");
      CHECK(told.checkWith(e.what()));
    }
    CHECK(code == MPI_ERR_TRUNCATE);
    CHECK_THROWS_AS(two.poll(), gradlane::mpi::error);
    auto later = d.make_stream(stream_priority::normal);
    two.broadcast(later, std::span{x}, 0);
    CHECK_THROWS_AS(d.sync(later), gradlane::mpi::error);
  }
}

TEST_CASE("an MPI communicator notices a message that is too short") {
  auto d = device{};
  auto c = from_mpi(d, MPI_COMM_WORLD);
  if (c.size() == 1) { return; }
  auto x   = std::vector<float>(5);
  auto s   = d.make_stream(stream_priority::normal);
  auto two = c.split(c.rank() / 2, c.rank());
  if (two.size() == 1) { return; }
  if (two.rank() == 0) {
    two.send(s, std::span{x}.first(4), 1);
    d.sync(s);
    two.abort();
  } else {
    two.receive(s, std::span{x}, 0);
    CHECK_THROWS_WITH_AS(d.sync(s),
                         doctest::Contains("rank 0 sent 4 elements, 5 were expected"),
                         gradlane::communication_error);
  }
}

TEST_CASE("an MPI communicator fails where an error of the stream skips a collective") {
  auto d = device{};
  auto c = from_mpi(d, MPI_COMM_WORLD);
  auto s = d.make_stream(stream_priority::normal);
  auto x = std::vector<float>(5);
  d.invoke(s, [] { throw std::runtime_error{"kernel"}; });
  c.all_reduce(s, std::span{x}, std::span{x}, reduction::sum);
  CHECK_THROWS_WITH_AS(d.sync(s), "kernel", std::runtime_error);
  auto const skipped =
      doctest::Contains("all_reduce(sum) of 5 fp32 on rank " +
                        doctest::String{std::to_string(c.rank()).c_str()} + " was skipped");
  CHECK_THROWS_WITH_AS(c.poll(), skipped, gradlane::communication_error);
}

TEST_CASE("an MPI communicator names operation, rank, count and time of what came too late") {
  auto d = device{};
  auto c = from_mpi(d, MPI_COMM_WORLD);
  if (c.size() == 1) { return; }
  auto lost = c.split(0, c.rank());
  auto x    = std::vector<float>(17);
  if (c.rank() == 0) {
    auto s = d.make_stream(stream_priority::normal);
    lost.set_deadline(50ms);
    lost.all_reduce(s, std::span{x}, std::span{x}, reduction::sum);
    auto const text = "all_reduce(sum) of 17 fp32 on rank 0 of " + std::to_string(c.size()) +
                      " has waited for its peers since 0.05";
    CHECK_THROWS_WITH_AS(d.sync(s), doctest::Contains(text.c_str()), gradlane::timeout_error);
  }
  lost.abort();
  MPI_Barrier(MPI_COMM_WORLD);  // x stays alive until all are through
}

TEST_CASE("an MPI communicator waits for a late peer without a busy core") {
  auto d = device{};
  auto c = from_mpi(d, MPI_COMM_WORLD);
  if (c.size() != 2) { return; }
  auto s = d.make_stream(stream_priority::normal);
  auto x = std::vector<float>(17);
  c.all_reduce(s, std::span{x}, std::span{x}, reduction::sum);
  d.sync(s);
  if (c.rank() == 1) { std::this_thread::sleep_for(500ms); }
  auto const begin = std::chrono::steady_clock::now();
  auto const used  = processor_seconds();
  c.all_reduce(s, std::span{x}, std::span{x}, reduction::sum);
  d.sync(s);
  auto const share =
      (processor_seconds() - used) /
      std::chrono::duration<double>{std::chrono::steady_clock::now() - begin}.count();
  if (c.rank() == 0) { CHECK(share < 0.3); }  // 0.06 measured; a busy core is 1
}

TEST_CASE("from_mpi refuses what cannot work") {
  auto d = device{};
  CHECK_THROWS_WITH_AS(static_cast<void>(from_mpi(d, MPI_COMM_NULL)),
                       doctest::Contains("MPI_COMM_NULL"),
                       gradlane::contract_error);
  CHECK_THROWS_AS(static_cast<void>(from_mpi(d, MPI_COMM_WORLD, {.max_chunk = 0})),
                  gradlane::contract_error);
  CHECK_THROWS_AS(
      static_cast<void>(from_mpi(d, MPI_COMM_WORLD, {.max_chunk = std::size_t{1} << 31U})),
      gradlane::contract_error);
}

TEST_CASE("from_mpi uses the program's communicator itself where it is told to") {
  auto own = MPI_COMM_NULL;
  MPI_Comm_dup(MPI_COMM_WORLD, &own);
  {
    auto d = device{};
    auto c = from_mpi(d, own, {.duplicate = false});
    auto s = d.make_stream(stream_priority::normal);
    auto x = std::vector<float>{1.0F};
    c.all_reduce(s, std::span{x}, std::span{x}, reduction::sum);
    d.sync(s);
    CHECK(x[0] == static_cast<float>(c.size()));
  }
  auto size = 0;
  CHECK(MPI_Comm_size(own, &size) == MPI_SUCCESS);  // still ours
  MPI_Comm_free(&own);
}

TEST_CASE("an MPI environment that finds MPI running leaves it running") {
  auto text = std::string{};
  {
    auto const environment = gradlane::mpi::environment{};
    CHECK(!environment.owns_mpi());
    text   = environment.describe();
    auto d = device{};
    auto c = from_mpi(d, MPI_COMM_WORLD, {.owner = &environment});
    CHECK(c.describe().find(name_of(environment.thread_level())) != std::string::npos);
  }
  CHECK(text.find("initialised by the program") != std::string::npos);
  auto finalized = 1;
  MPI_Finalized(&finalized);
  CHECK(finalized == 0);
}

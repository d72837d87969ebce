// SPDX-License-Identifier: Apache-2.0
// Communicators and environments that end in every order, MPI_Finalize between them: the process
// must end with status 0. One order per run, named by the argument.
#include <gradlane/error.hpp>             // for contract_error, state_error
#include <gradlane/host/device.hpp>       // for device
#include <gradlane/mpi/communicator.hpp>  // for communicator, from_mpi
#include <gradlane/mpi/environment.hpp>   // for environment, thread_support

#include <mpi.h>

#include <cstdio>       // for fprintf
#include <memory>       // for make_unique, unique_ptr
#include <optional>     // for optional
#include <span>         // for span
#include <string_view>  // for string_view
#include <vector>       // for vector

namespace {

using gradlane::host::device;
using gradlane::mpi::communicator;
using gradlane::mpi::environment;
using gradlane::mpi::from_mpi;
using gradlane::mpi::thread_support;

/// Its communicator ends after main() has.
auto end_of_program = std::optional<communicator>{};

[[nodiscard]] bool works(communicator& c, device& d) {
  auto s = d.make_stream(gradlane::stream_priority::normal);
  auto x = std::vector<gradlane::bf16>{gradlane::bf16{1.0F}};
  c.all_reduce(s, std::span{x}, std::span{x}, gradlane::reduction::sum);
  d.sync(s);
  return static_cast<float>(x[0]) == static_cast<float>(c.size());
}

template <class Error, class F>
[[nodiscard]] bool throws(F f) {
  try {
    f();
  } catch (Error const&) { return true; }
  return false;
}

[[nodiscard]] bool run(std::string_view order) {
  auto d = device{};
  if (order == "communicator_first") {
    auto const e = environment{};
    auto c       = from_mpi(d, MPI_COMM_WORLD, {.owner = &e});
    auto half    = c.split(c.rank(), 0);
    return e.owns_mpi() && works(c, d) && works(half, d);
  }
  if (order == "environment_first") {
    auto e    = std::make_unique<environment>(thread_support::funneled);
    auto c    = from_mpi(d, MPI_COMM_WORLD, {.owner = e.get()});
    auto half = c.split(c.rank(), 0);
    auto fine = works(c, d) && works(half, d);
    e.reset();
    auto finalized = 0;
    MPI_Finalized(&finalized);
    return fine && finalized != 0;
  }
  if (order == "end_of_program") {
    auto const e = environment{};
    end_of_program.emplace(from_mpi(d, MPI_COMM_WORLD));
    return works(*end_of_program, d);
  }
  if (order == "never") {
    auto const e       = environment{};
    auto* const leaked = new communicator{from_mpi(d, MPI_COMM_WORLD)};
    return works(*leaked, d);
  }
  if (order == "program_finalizes") {
    MPI_Init(nullptr, nullptr);
    auto const e = environment{};
    auto c       = from_mpi(d, MPI_COMM_WORLD, {.owner = &e});
    auto fine    = !e.owns_mpi() && works(c, d);
    MPI_Finalize();
    c.abort();  // touches MPI no more
    return fine && throws<gradlane::contract_error>([&] {
             static_cast<void>(from_mpi(d, MPI_COMM_WORLD));
           }) &&
           throws<gradlane::state_error>([] { auto const again = environment{}; });
  }
  if (order == "not_initialized") {
    return throws<gradlane::contract_error>(
        [&] { static_cast<void>(from_mpi(d, MPI_COMM_WORLD)); });
  }
  return false;
}

}  // namespace

int main(int argc, char** argv) {
  auto const order = std::string_view{argc == 2 ? argv[1] : ""};
  if (run(order)) { return 0; }
  std::fprintf(stderr, "lifetime_test %s failed\n", argc == 2 ? argv[1] : "(no order given)");
  return 1;
}

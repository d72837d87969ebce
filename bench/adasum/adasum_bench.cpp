// SPDX-License-Identifier: Apache-2.0
// Adasum, over all ranks and over nodes, beside a sum all-reduce of the same bytes, bucket by
// bucket over MPI: one bucket of 25 MiB, and the 440 MB of BERT-base in buckets of 25 MiB. Nodes
// must have equally many ranks.
//
//   mpiexec -n 2 ./bench/adasum_adasum_bench [elements] [repetitions]
//
// Goals: at most 2.5 times the sum's time in shared memory, 1.6 times over a link of 1 Gbit/s.
#include "../turns.hpp"

#include <gradlane/gradlane.hpp>
#include <gradlane/mpi/communicator.hpp>
#include <gradlane/mpi/environment.hpp>

#include <benchmark/benchmark.h>

#include <mpi.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <span>
#include <string>
#include <vector>

namespace {

using namespace gradlane;
using host::device;
using mpi::communicator;

/// The buckets of some parameters, with random values, and four ways to join them.
class contest {
 public:
  contest(device& d, communicator& comm, std::vector<parameter> const& list)
      : device_{d},
        comm_{comm},
        buckets_{d,
                 bucket_plan{list,
                             {.first_cap_bytes = std::size_t{25} << 20U,
                              .pad_to          = static_cast<std::size_t>(comm.size())}}},
        adasum_{d, comm, views_and_segments()},
        over_nodes_{buckets_, comm, clip::none{}} {
    auto random = std::minstd_rand{static_cast<unsigned>(comm.rank()) + 1};
    for (auto b = std::size_t{0}; b < count(); ++b) {
      for (auto& x : wire(b).as<float>()) {
        x = static_cast<float>(random() % 2001) * 1e-6F - 1e-3F;
      }
    }
  }

  void mpi_sum() {
    for (auto b = std::size_t{0}; b < count(); ++b) {
      auto const x = wire(b).as<float>();
      MPI_Allreduce(
          MPI_IN_PLACE, x.data(), static_cast<int>(x.size()), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    }
  }
  void sum() {
    for (auto b = std::size_t{0}; b < count(); ++b) {
      comm_.all_reduce(stream_, wire(b), wire(b), reduction::sum);
    }
    device_.sync(stream_);
  }
  void adasum() {
    for (auto b = std::size_t{0}; b < count(); ++b) { adasum_.reduce(stream_, b); }
    device_.sync(stream_);
  }
  void adasum_over_nodes() {
    over_nodes_.begin(stream_);
    for (auto p = buckets_.plan().parameters().size(); p-- > 0;) { over_nodes_.ready(p, stream_); }
    over_nodes_.finish(stream_);
    device_.sync(stream_);
  }

  [[nodiscard]] std::size_t count() const { return buckets_.plan().buckets().size(); }
  [[nodiscard]] std::size_t bytes() const { return buckets_.size_bytes(); }
  [[nodiscard]] std::size_t workspace_bytes() const { return adasum_.workspace_bytes(); }

 private:
  [[nodiscard]] buffer_view wire(std::size_t b) { return buckets_.bucket(b).wire; }

  [[nodiscard]] std::vector<adasum_buffer> views_and_segments() {
    auto result = std::vector<adasum_buffer>{};
    for (auto b = std::size_t{0}; b < count(); ++b) {
      auto& added = result.emplace_back(wire(b));
      for (auto const p : buckets_.plan().buckets()[b].parameters) {
        auto const& slot = *buckets_.plan().slot(p);
        added.segments.push_back({slot.offset, slot.offset + slot.count});
      }
    }
    return result;
  }

  device& device_;
  communicator& comm_;
  gradient_buckets<device> buckets_;
  adasum_all_reduce<device, communicator> adasum_;
  clip_allreduce<device, communicator, clip::none, reduce::adasum_hierarchical> over_nodes_;
  host::stream stream_{device_.make_stream()};
};

void run(device& d, communicator& comm, std::vector<parameter> const& list, int repetitions) {
  auto c    = contest{d, comm, list};
  auto rows = std::vector<bench::row>{{"MPI_Allreduce, sum", [&] { c.mpi_sum(); }},
                                      {"all_reduce, sum", [&] { c.sum(); }},
                                      {"Adasum", [&] { c.adasum(); }},
                                      {"Adasum over nodes", [&] { c.adasum_over_nodes(); }}};
  bench::measure(rows, repetitions);
  if (comm.rank() != 0) { return; }
  auto const megabytes = static_cast<double>(c.bytes()) * 1e-6;
  std::printf("%d ranks, %.1f MB in %zu buckets, workspace %.1f MB, medians of %d turns\n",
              comm.size(),
              megabytes,
              c.count(),
              static_cast<double>(c.workspace_bytes()) * 1e-6,
              repetitions);
  for (auto const& r : rows) {
    auto const s = r.median();
    std::printf("  %-20s %8.1f ms  %6.2f GB/s  %5.2f of MPI's sum  %5.2f of our sum\n",
                r.name.c_str(),
                s * 1e3,
                megabytes * 1e-3 / s,
                s / rows[0].median(),
                s / rows[1].median());
  }
}

}  // namespace

int main(int argc, char** argv) {
  auto const environment = mpi::environment{};
  auto const elements =
      argc > 1 ? static_cast<std::size_t>(std::strtoull(argv[1], nullptr, 10)) : 110000000;
  auto const repetitions = argc > 2 ? std::atoi(argv[2]) : 5;
  auto device            = host::device{};
  auto comm              = mpi::from_mpi(device, MPI_COMM_WORLD);
  if (comm.rank() == 0) { std::printf("%s\n", comm.describe().c_str()); }
  // 25 MiB: a matrix, its bias and half of the next matrix, as a bucket of an encoder has them
  auto const bucket = std::vector<parameter>{{.name = "a", .count = 2359296},
                                             {.name = "b", .count = 3072},
                                             {.name = "c", .count = 2359296},
                                             {.name = "d", .count = 768},
                                             {.name = "e", .count = 1831168}};
  run(device, comm, bucket, 5 * repetitions);
  if (elements > 0) { run(device, comm, bench::bert_base(elements), repetitions); }
}

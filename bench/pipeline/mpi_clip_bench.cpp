// SPDX-License-Identifier: Apache-2.0
// One optimizer step's communication for BERT-base (110 M fp32 gradients) in the four clip modes,
// beside what each is made of and beside the competitor: one MPI_Allreduce of everything, then a
// clip. All in one run, in turns, so that ratios hold on a machine whose speed drifts.
//
//   mpiexec -n 2 ./bench/pipeline_mpi_clip_bench [elements] [repetitions]
//
// Floor: the bytes of the gradients over the all-reduce rate, plus one read (norm), plus one read
// and write where a coefficient is not 1. The last column is bucketwise's target of 1.05.
#include "../turns.hpp"

#include <gradlane/gradlane.hpp>
#include <gradlane/mpi/communicator.hpp>
#include <gradlane/mpi/environment.hpp>

#include <benchmark/benchmark.h>

#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <vector>

namespace {

using namespace gradlane;
using host::device;
using mpi::communicator;

constexpr auto infinity = std::numeric_limits<double>::infinity();

/// Everything at once: what a trainer does without the library.
void allreduce_then_clip(std::span<float> g, double bound) {
  MPI_Allreduce(
      MPI_IN_PLACE, g.data(), static_cast<int>(g.size()), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  auto const view = buffer_view{g};
  auto const norm = std::sqrt(host::kernels::sum_of_squares(std::span{&view, 1})) / 2;
  host::kernels::scale(g, static_cast<float>(norm > bound ? bound / norm / 2 : 0.5));
}

template <class Clip, class Average = average::ranks>
class step_runner {
 public:
  step_runner(device& d,
              communicator& comm,
              std::vector<parameter> const& list,
              Clip clip,
              Average average = {})
      : device_{d}, buckets_{d, bucket_plan{list}}, pipeline_{buckets_, comm, clip, average} {
    for (auto p = std::size_t{0}; p < list.size(); ++p) {
      auto const g = buckets_.gradient<float>(p);
      std::fill(g.begin(), g.end(), 1e-3F);
    }
  }
  void operator()() {
    pipeline_.begin(compute_);
    for (auto p = buckets_.plan().parameters().size(); p-- > 0;) { pipeline_.ready(p, compute_); }
    pipeline_.finish(compute_);
    device_.sync(compute_);
  }

 private:
  device& device_;
  gradient_buckets<device> buckets_;
  clip_allreduce<device, communicator, Clip, Average> pipeline_;
  host::stream compute_{device_.make_stream()};
};

}  // namespace

int main(int argc, char** argv) {
  auto const environment = mpi::environment{};
  auto const elements =
      argc > 1 ? static_cast<std::size_t>(std::strtoull(argv[1], nullptr, 10)) : 110000000;
  auto const repetitions = argc > 2 ? std::atoi(argv[2]) : 5;
  auto device            = host::device{};
  auto comm              = mpi::from_mpi(device, MPI_COMM_WORLD);
  auto const list        = bench::bert_base(elements);
  auto all               = std::vector<float>(bucket_plan{list}.payload(), 1e-3F);
  auto const bytes       = static_cast<double>(all.size() * sizeof(float));
  auto const whole       = buffer_view{std::span{all}};

  using threshold::each;
  auto none    = step_runner{device, comm, list, clip::none{}, average::none{}};
  auto after   = step_runner{device, comm, list, clip::after{1.0}};
  auto before  = step_runner{device, comm, list, clip::before{1.0}};
  auto norms   = step_runner{device, comm, list, clip::bucketwise{each{infinity}}, average::none{}};
  auto clipped = step_runner{device, comm, list, clip::bucketwise{each{1e-3}}};
  auto rows    = std::vector<bench::row>{
      {"read (norm alone)",
          [&] { benchmark::DoNotOptimize(host::kernels::sum_of_squares(std::span{&whole, 1})); }},
      {"read and write (scale alone)", [&] { host::kernels::scale(whole, 0.999F); }},
      {"MPI_Allreduce of everything, then clip", [&] { allreduce_then_clip(all, 1.0); }},
      {"none (sum)", [&] { none(); }},
      {"after", [&] { after(); }},
      {"before", [&] { before(); }},
      {"bucketwise, coefficients 1", [&] { norms(); }},
      {"bucketwise, all clipped", [&] { clipped(); }},
  };
  bench::measure(rows, repetitions);
  if (comm.rank() != 0) { return 0; }
  std::printf("%d ranks, %zu fp32 gradients (%.0f MB), medians of %d turns\n%s\n",
              comm.size(),
              all.size(),
              bytes * 1e-6,
              repetitions,
              comm.describe().c_str());
  auto const seconds = [&](std::size_t i) { return rows[i].median(); };
  for (auto const& r : rows) {
    auto const s = r.median();
    std::printf("  %-40s %8.1f ms  %6.2f GB/s\n", r.name.c_str(), s * 1e3, bytes / s * 1e-9);
  }
  std::printf("bucketwise, coefficients 1 : none + one read                   = %.3f\n",
              seconds(6) / (seconds(3) + seconds(0)));
  std::printf("bucketwise, all clipped    : none + one read + read and write  = %.3f\n",
              seconds(7) / (seconds(3) + seconds(0) + seconds(1)));
  std::printf("bucketwise, all clipped    : MPI_Allreduce, then clip           = %.3f\n",
              seconds(7) / seconds(2));
}

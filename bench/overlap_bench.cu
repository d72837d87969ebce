// SPDX-License-Identifier: Apache-2.0
// What of the communication a step of training waits for: a model backward, one kernel of settable
// length a layer, with each clip mode and bucket size, reduced beside it and after it.
//
//   overlap_bench                                    one GPU; the wire is MODELLED (see --link)
//   mpiexec -n 8 overlap_bench --nccl                one GPU a rank, real
//   mpiexec -n 8 overlap_bench --nccl --layer-us 0   no backward: clip modes over NCCL alone
//
//   --layers 24 --elements 12596224    of a layer, fp32 (BERT-large's)
//   --layer-us 600                     backward of a layer
//   --link 20 150                      latency in microseconds, GB/s
//   --caps 25 100                      bucket sizes in MiB
//   --steps 20 --trace overlap.json    a Chrome trace of one step, bucketwise, modelled wire only
//
// Times are medians over the steps, by events on the compute stream. "exposed" is the step's time
// less that of backward alone.
#include <gradlane/cuda/device.cuh>      // for device
#include <gradlane/cuda/error.hpp>       // for check
#include <gradlane/gradlane.hpp>         // for clip_allreduce, gradient_buckets
#include <gradlane/mpi/environment.hpp>  // for environment
#include <gradlane/nccl/from_mpi.hpp>    // for from_mpi

#include <cuda/modelled_link.hpp>  // for link_speed, modelled_link
#include <cuda_runtime_api.h>
#include <mpi.h>

#include <algorithm>    // for nth_element
#include <concepts>     // for same_as
#include <cstddef>      // for size_t
#include <cstdio>       // for fprintf, printf
#include <cstdlib>      // for strtod, strtoull
#include <exception>    // for exception
#include <fstream>      // for ofstream
#include <memory>       // for make_unique, unique_ptr
#include <string>       // for string, to_string
#include <string_view>  // for string_view
#include <vector>       // for vector

namespace gradlane::bench {

/// A layer's backward: `rounds` of arithmetic on every multiprocessor, then its gradient.
template <class T>
__global__ void layer_backward(T* gradient, std::size_t n, unsigned long long rounds) {
  auto value = static_cast<T>(threadIdx.x);
  for (auto i = 0ULL; i < rounds; ++i) { value = value * T{0.999F} + T{0.001F}; }
  auto const stride = static_cast<std::size_t>(gridDim.x) * blockDim.x;
  for (auto i = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n;
       i += stride) {
    gradient[i] = value;
  }
}

struct settings {
  std::size_t layers{24};
  std::size_t elements{12596224};
  double layer_us{600};
  link_speed link{.latency_us = 20, .gigabytes_per_second = 150};
  std::vector<std::size_t> caps_mib{25, 100};
  std::size_t steps{20};
  std::string trace{};
  bool nccl{false};
};

[[nodiscard]] settings parse(int argc, char** argv) {
  auto s            = settings{};
  auto i            = 1;
  auto const number = [&] { return i < argc ? std::strtod(argv[i++], nullptr) : 0.0; };
  auto const count  = [&] { return static_cast<std::size_t>(number()); };
  while (i < argc) {
    auto const name = std::string_view{argv[i++]};
    if (name == "--layers") {
      s.layers = count();
    } else if (name == "--elements") {
      s.elements = count();
    } else if (name == "--layer-us") {
      s.layer_us = number();
    } else if (name == "--link") {
      s.link.latency_us           = number();
      s.link.gigabytes_per_second = number();
    } else if (name == "--caps") {
      s.caps_mib.clear();
      while (i < argc && argv[i][0] != '-') { s.caps_mib.push_back(count()); }
    } else if (name == "--steps") {
      s.steps = count();
    } else if (name == "--trace" && i < argc) {
      s.trace = argv[i++];
    } else if (name == "--nccl") {
      s.nccl = true;
    } else {
      throw contract_error{"overlap_bench: unknown argument " + std::string{name} +
                           "; the head of bench/overlap_bench.cu lists them"};
    }
  }
  expects(s.layers > 0 && s.elements > 0 && s.steps > 0 && !s.caps_mib.empty(),
          "overlap_bench: layers, elements, steps and caps must be positive");
  return s;
}

/// A point in a stream, with a time.
class time_mark {
 public:
  time_mark() { cuda::check(cudaEventCreate(&event_)); }
  time_mark(time_mark const&)            = delete;
  time_mark& operator=(time_mark const&) = delete;
  ~time_mark() { cudaEventDestroy(event_); }

  void record(cuda::stream const& on) { cuda::check(cudaEventRecord(event_, on.get())); }
  [[nodiscard]] cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_{};
};

[[nodiscard]] double milliseconds(cudaEvent_t begin, cudaEvent_t end) {
  auto ms = 0.0F;
  cuda::check(cudaEventElapsedTime(&ms, begin, end));
  return static_cast<double>(ms);
}

/// The median of f(), which enqueues work on `on`, in milliseconds of the device.
template <class F>
[[nodiscard]] double median_ms(cuda::device& d, cuda::stream& on, std::size_t steps, F f) {
  auto times = std::vector<double>{};
  f();  // warm
  d.sync(on);
  for (auto i = std::size_t{0}; i < steps; ++i) {
    auto begin = time_mark{};
    auto end   = time_mark{};
    begin.record(on);
    f();
    end.record(on);
    d.sync(on);
    times.push_back(milliseconds(begin.get(), end.get()));
  }
  auto const middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  return *middle;
}

/// The backward of all layers, last first.
class model {
 public:
  model(cuda::device& d, settings const& s) : settings_{s} {
    cuda::check(cudaDeviceGetAttribute(&processors_, cudaDevAttrMultiProcessorCount, d.index()));
    auto on             = d.make_stream();
    auto memory         = d.allocate(sizeof(float));
    auto* const one     = reinterpret_cast<float*>(memory.data());
    constexpr auto some = 20'000ULL;
    auto const time     = [&](unsigned long long rounds) {
      return 1e3 * median_ms(d, on, 5, [&] { launch(on, one, 1, rounds); });
    };
    if (s.layer_us <= 0) { return; }
    auto const slope = (time(2 * some) - time(some)) / some;  // microseconds a round
    rounds_          = static_cast<unsigned long long>(slope > 0 ? s.layer_us / slope : 0);
  }

  void layer(cuda::stream const& on, float* gradient) const {
    launch(on, gradient, settings_.elements, rounds_);
  }

 private:
  void launch(cuda::stream const& on, float* out, std::size_t n, unsigned long long rounds) const {
    layer_backward<float><<<static_cast<unsigned>(processors_), 256, 0, on.get()>>>(out, n, rounds);
    cuda::check(cudaGetLastError());
  }

  settings settings_;
  int processors_{1};
  unsigned long long rounds_{0};
};

[[nodiscard]] bucket_plan make_plan(settings const& s, std::size_t cap_mib) {
  auto list = std::vector<parameter>{};
  for (auto i = std::size_t{0}; i < s.layers; ++i) {
    list.push_back({.name = "layer" + std::to_string(i), .count = s.elements});
  }
  auto const cap = cap_mib << 20U;
  return bucket_plan{std::move(list), {.cap_bytes = cap, .first_cap_bytes = cap}};
}

struct trace_mark {
  std::string name;
  int thread;
  cudaEvent_t begin;
  cudaEvent_t end;
};

void write_trace(std::string const& path, cudaEvent_t zero, std::vector<trace_mark> const& marks) {
  auto file              = std::ofstream{path};
  auto const name_thread = [&](int thread, char const* name) {
    file << "{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":0,\"tid\":" << thread
         << ",\"args\":{\"name\":\"" << name << "\"}}";
  };
  file << "{\"traceEvents\":[";
  name_thread(0, "compute");
  file << ",\n";
  name_thread(1, "link (modelled)");
  for (auto const& m : marks) {
    file << ",\n{\"name\":\"" << m.name << "\",\"ph\":\"X\",\"pid\":0,\"tid\":" << m.thread
         << ",\"ts\":" << 1e3 * milliseconds(zero, m.begin)
         << ",\"dur\":" << 1e3 * milliseconds(m.begin, m.end) << "}";
  }
  file << "]}\n";
}

/// One mode and bucket size: with backward beside the reductions, and before them.
template <class Comm, class Clip>
void measure(cuda::device& d,
             Comm& comm,
             settings const& s,
             model const& work,
             std::size_t cap_mib,
             char const* name,
             Clip clip,
             double backward_ms) {
  auto buckets          = gradient_buckets{d, make_plan(s, cap_mib)};
  auto pipeline         = clip_allreduce{buckets, comm, clip};
  auto compute          = d.make_stream();
  auto const gradient   = [&](std::size_t i) { return buckets.template gradient<float>(i).data(); };
  auto const overlapped = [&] {
    pipeline.begin(compute);
    for (auto i = s.layers; i-- > 0;) {
      work.layer(compute, gradient(i));
      pipeline.ready(i, compute);
    }
    pipeline.finish(compute);
  };
  auto const in_turn = [&] {
    pipeline.begin(compute);
    for (auto i = s.layers; i-- > 0;) { work.layer(compute, gradient(i)); }
    for (auto i = s.layers; i-- > 0;) { pipeline.ready(i, compute); }
    pipeline.finish(compute);
  };
  auto const beside = median_ms(d, compute, s.steps, overlapped);
  auto const behind = median_ms(d, compute, s.steps, in_turn);
  if (comm.rank() == 0) {
    std::printf("| %-10s | %4zu | %3zu | %9.3f | %9.3f | %9.3f | %9.3f |\n",
                name,
                cap_mib,
                buckets.plan().buckets().size(),
                beside,
                beside - backward_ms,
                behind,
                behind - backward_ms);
    std::fflush(stdout);
  }
}

/// One step, with a time for each layer and each call of the link.
void trace(cuda::device& d, modelled_link& comm, settings const& s, model const& work) {
  auto buckets   = gradient_buckets{d, make_plan(s, s.caps_mib.front())};
  auto pipeline  = clip_allreduce{buckets, comm, clip::bucketwise{threshold::equal{1.0}}};
  auto compute   = d.make_stream();
  auto calls     = std::vector<modelled_link::mark>{};
  auto times     = std::vector<std::unique_ptr<time_mark>>{};
  auto marks     = std::vector<trace_mark>{};
  auto const now = [&] {
    times.push_back(std::make_unique<time_mark>());
    times.back()->record(compute);
    return times.back()->get();
  };
  comm.trace(&calls);
  auto* const zero = now();
  pipeline.begin(compute);
  for (auto i = s.layers; i-- > 0;) {
    auto* const begin = now();
    work.layer(compute, buckets.gradient<float>(i).data());
    marks.push_back({"backward of layer " + std::to_string(i), 0, begin, now()});
    pipeline.ready(i, compute);
  }
  pipeline.finish(compute);
  d.sync(compute);
  comm.trace(nullptr);
  for (auto const& c : calls) {
    marks.push_back({"all-reduce of " + std::to_string(c.bytes) + " bytes", 1, c.begin, c.end});
  }
  write_trace(s.trace, zero, marks);
  for (auto const& c : calls) {
    cudaEventDestroy(c.begin);
    cudaEventDestroy(c.end);
  }
}

template <class Comm>
void run(cuda::device& d, Comm& comm, settings const& s, char const* wire) {
  auto const work    = model{d, s};
  auto compute       = d.make_stream();
  auto const bytes   = s.elements * sizeof(float);
  auto memory        = d.allocate(s.layers * bytes);
  auto const all     = buffer_view{memory.data(), s.layers * s.elements, dtype::fp32};
  auto const layer   = [&](std::size_t i) { return all.subview(i * s.elements, s.elements); };
  auto const alone   = median_ms(d, compute, s.steps, [&] {
    for (auto i = s.layers; i-- > 0;) { work.layer(compute, layer(i).template as<float>().data()); }
  });
  auto const reduced = median_ms(d, compute, s.steps, [&] {
    for (auto i = s.layers; i-- > 0;) {
      comm.all_reduce(compute, layer(i), layer(i), reduction::average);
    }
  });
  if (comm.rank() == 0) {
    std::printf(
        "%s; %zu layers of %zu fp32; %d rank(s)\n", wire, s.layers, s.elements, comm.size());
    std::printf(
        "backward alone %.3f ms, all-reduce of every layer alone %.3f ms\n\n", alone, reduced);
    std::printf("| clip mode  | MiB  |  B  | step ms   | exposed   | no overlap | exposed   |\n");
    std::printf("| ---------- | ---- | --- | --------- | --------- | --------- | --------- |\n");
  }
  for (auto const cap : s.caps_mib) {
    measure(d, comm, s, work, cap, "none", clip::none{}, alone);
    measure(d, comm, s, work, cap, "after", clip::after{1.0}, alone);
    measure(d, comm, s, work, cap, "before", clip::before{1.0}, alone);
    measure(d, comm, s, work, cap, "bucketwise", clip::bucketwise{threshold::equal{1.0}}, alone);
  }
  if constexpr (std::same_as<Comm, modelled_link>) {
    if (!s.trace.empty()) { trace(d, comm, s, work); }
  }
}

void run(settings const& s) {
  if (!s.nccl) {
    auto d    = cuda::device{0};
    auto link = modelled_link{s.link};
    auto text = "wire MODELLED: " + std::to_string(s.link.latency_us) + " us and " +
                std::to_string(s.link.gigabytes_per_second) + " GB/s a call";
    run(d, link, s, text.c_str());
    return;
  }
  auto const environment = mpi::environment{};
  auto rank = 0, devices = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  cuda::check(cudaGetDeviceCount(&devices));
  auto d    = cuda::device{rank % devices};
  auto comm = nccl::from_mpi(d, MPI_COMM_WORLD);
  run(d, comm, s, "NCCL");
}

}  // namespace gradlane::bench

int main(int argc, char** argv) {
  try {
    gradlane::bench::run(gradlane::bench::parse(argc, argv));
  } catch (std::exception const& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}

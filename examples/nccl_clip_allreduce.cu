// SPDX-License-Identifier: Apache-2.0
// Gradients that kernels write are clipped bucket by bucket and summed by NCCL while backward goes
// on; the whole step is one CUDA graph: mpiexec -n 2 ./nccl_clip_allreduce, one GPU a rank.
#include <gradlane/cuda/device.cuh>
#include <gradlane/gradlane.hpp>
#include <gradlane/mpi/environment.hpp>
#include <gradlane/nccl/from_mpi.hpp>

#include <cuda_runtime_api.h>
#include <mpi.h>

#include <array>
#include <cstddef>
#include <iostream>
#include <span>
#include <string>
#include <vector>

constexpr auto layers = std::size_t{4};
constexpr auto size   = std::size_t{1} << 16U;  // of a layer

template <class T>  // a template: then its host part is not seen by other source files
__global__ void backward(T const* weight, T* gradient, T target) {
  auto const i = blockIdx.x * blockDim.x + threadIdx.x;
  gradient[i]  = weight[i] - target;  // of half the squared distance to the rank's target
}

template <class T>
__global__ void update(T* weight, T const* gradient, gradlane::step_status const* status) {
  auto const i = blockIdx.x * blockDim.x + threadIdx.x;
  if (status->skip == 0) { weight[i] -= T{0.5} * status->coefficient * gradient[i]; }
}

int main() {
  auto const environment = gradlane::mpi::environment{};
  auto rank = 0, devices = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  gradlane::cuda::check(cudaGetDeviceCount(&devices));
  auto device = gradlane::cuda::device{rank % devices};  // with more nodes: the rank on the node
  auto comm   = gradlane::nccl::from_mpi(device, MPI_COMM_WORLD);

  auto parameters = std::vector<gradlane::parameter>{};
  for (auto i = std::size_t{0}; i < layers; ++i) {
    parameters.push_back({.name = "layer" + std::to_string(i), .count = size});
  }
  auto const plan    = gradlane::bucket_plan{parameters, {.cap_bytes = size * 8}};  // two a bucket
  auto buckets       = gradlane::gradient_buckets{device, plan};
  auto clip          = gradlane::clip::bucketwise{gradlane::threshold::equal{1e4}};
  auto reduce        = gradlane::clip_allreduce{buckets, comm, clip};
  auto compute       = device.make_stream();
  auto memory        = device.allocate(layers * size * sizeof(float));
  auto* const weight = reinterpret_cast<float*>(memory.data());
  device.zero(compute, {memory.data(), layers * size, gradlane::dtype::fp32});

  auto const step = [&] {
    reduce.begin(compute);
    for (auto i = layers; i-- > 0;) {
      auto* const gradient = buckets.gradient<float>(i).data();
      backward<<<size / 256, 256, 0, compute.get()>>>(weight + i * size, gradient, 1.0F + rank);
      reduce.ready(i, compute);
    }
    reduce.finish(compute);
    for (auto i = std::size_t{0}; i < layers; ++i) {
      auto* const gradient = buckets.gradient<float>(i).data();
      update<<<size / 256, 256, 0, compute.get()>>>(weight + i * size, gradient, reduce.status());
    }
  };
  step();  // once as it is: NCCL connects the ranks
  device.sync(compute);

  auto graph = cudaGraph_t{};
  auto ready = cudaGraphExec_t{};
  gradlane::cuda::check(cudaStreamBeginCapture(compute.get(), cudaStreamCaptureModeThreadLocal));
  step();
  gradlane::cuda::check(cudaStreamEndCapture(compute.get(), &graph));
  gradlane::cuda::check(cudaGraphInstantiate(&ready, graph, 0));
  for (auto i = 0; i < 29; ++i) { gradlane::cuda::check(cudaGraphLaunch(ready, compute.get())); }

  auto first = std::array<float, 1>{};
  device.download(
      compute, {memory.data(), 1, gradlane::dtype::fp32}, std::as_writable_bytes(std::span{first}));
  device.sync(compute);
  comm.poll();  // failures that a graph met
  if (rank == 0) { std::cout << "weight " << first[0] << ", the mean of the targets\n"; }
  cudaGraphExecDestroy(ready);
  cudaGraphDestroy(graph);
}

// SPDX-License-Identifier: Apache-2.0
// bert_parity_cuda FOLDER [fp32|bf16|fp16]: the GPU's side of parity.py.
#include "../parity.hpp"  // for parity_main, run_parity
#include "device.hpp"     // for device

#include <gradlane/cuda/error.hpp>   // for check
#include <gradlane/cuda/stream.hpp>  // for stream
#include <gradlane/types.hpp>        // for bf16, fp16, stream_priority

#include <cuda_runtime_api.h>

#include <cstddef>      // for size_t
#include <filesystem>   // for path
#include <type_traits>  // for type_identity

int main(int argc, char** argv) {
  return bert::parity_main<float, gradlane::bf16, gradlane::fp16>(
      argc, argv, []<class Value>(std::type_identity<Value>, std::filesystem::path const& folder) {
        auto const stream = gradlane::cuda::stream{0, gradlane::stream_priority::normal};
        auto device       = bert::cuda::device<Value>{stream};
        bert::run_parity(folder, device, [&](void* to, void const* from, std::size_t bytes) {
          using gradlane::cuda::check;
          check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream.get()));
          check(cudaStreamSynchronize(stream.get()));
        });
      });
}

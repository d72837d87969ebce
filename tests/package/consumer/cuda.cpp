// SPDX-License-Identifier: Apache-2.0
#include <gradlane/cuda/error.hpp>   // for check
#include <gradlane/cuda/staged.hpp>  // for staged
#include <gradlane/gradlane.hpp>     // for expects

#include <cuda_runtime_api.h>

int main() {
  auto version = 0;
  gradlane::cuda::check(cudaRuntimeGetVersion(&version));
  gradlane::expects(version == CUDART_VERSION, "the runtime is that of the headers");
}

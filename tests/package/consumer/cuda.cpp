// SPDX-License-Identifier: Apache-2.0
#include <gradlane/gradlane.hpp>  // for expects

#include <cuda_runtime_api.h>

int main() {
  auto version = 0;
  gradlane::expects(cudaRuntimeGetVersion(&version) == cudaSuccess, "CUDA's runtime has a version");
  gradlane::expects(version == CUDART_VERSION, "it is that of the headers");
}

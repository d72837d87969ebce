// SPDX-License-Identifier: Apache-2.0
#include <cuda/runtime_calls.hpp>  // for calls
#include <cuda_runtime_api.h>

#include <dlfcn.h>

namespace {

/// The runtime's own function of that name.
template <class Function>
[[nodiscard]] Function* next(char const* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

}  // namespace

#define GRADLANE_COUNTED(counter, name, parameters, arguments)     \
  cudaError_t CUDARTAPI name parameters {                          \
    ++gradlane::test::calls.counter;                               \
    static auto* const real = next<cudaError_t parameters>(#name); \
    return real arguments;                                         \
  }

extern "C" {
GRADLANE_COUNTED(blocking, cudaDeviceSynchronize, (), ())
GRADLANE_COUNTED(blocking, cudaStreamSynchronize, (cudaStream_t s), (s))
GRADLANE_COUNTED(blocking, cudaEventSynchronize, (cudaEvent_t e), (e))
GRADLANE_COUNTED(queries, cudaStreamQuery, (cudaStream_t s), (s))
GRADLANE_COUNTED(queries, cudaEventQuery, (cudaEvent_t e), (e))
GRADLANE_COUNTED(allocations, cudaMalloc, (void** p, size_t n), (p, n))
GRADLANE_COUNTED(allocations, cudaFree, (void* p), (p))
GRADLANE_COUNTED(allocations, cudaHostAlloc, (void** p, size_t n, unsigned f), (p, n, f))
GRADLANE_COUNTED(allocations, cudaFreeHost, (void* p), (p))

cudaError_t CUDARTAPI cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned flags) {
  if (s == gradlane::test::calls.watched) { ++gradlane::test::calls.waits; }
  static auto* const real = next<decltype(cudaStreamWaitEvent)>("cudaStreamWaitEvent");
  return real(s, e, flags);
}
}

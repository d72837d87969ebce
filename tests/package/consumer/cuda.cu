// SPDX-License-Identifier: Apache-2.0
#include <gradlane/gradlane.hpp>  // for clip_factor

static_assert(__cplusplus >= 202002L, "gradlane::cuda asks for C++20");

template <class T>
__global__ void clip(T* x, double norm) {
  *x *= static_cast<T>(gradlane::clip_factor(norm, 1.0));
}

int main() { return &clip<float> == nullptr ? 1 : 0; }

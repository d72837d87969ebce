// SPDX-License-Identifier: Apache-2.0
#include <gradlane/gradlane.hpp>  // for expects

#include <nccl.h>

int main() {
  auto version = 0;
  gradlane::expects(ncclGetVersion(&version) == ncclSuccess, "NCCL has a version");
  gradlane::expects(version == NCCL_VERSION_CODE, "it is that of the header");
}

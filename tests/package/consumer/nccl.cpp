// SPDX-License-Identifier: Apache-2.0
#include <gradlane/gradlane.hpp>           // for expects
#include <gradlane/nccl/communicator.hpp>  // for communicator, check_version

#include <source_location>  // for source_location

int main() {
  gradlane::nccl::detail::check_version(std::source_location::current());
  gradlane::expects(gradlane::nccl::communicator::capabilities.premultiplied_sum, "NCCL scales");
}

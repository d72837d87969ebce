// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/error.hpp>  // for communication_error

namespace gradlane::local {

/// Ranks whose calls do not fit together: another operation, count, dtype, reduction or root.
/// Thrown on every rank, naming two of them and both calls.
class mismatch_error : public communication_error {
 public:
  using communication_error::communication_error;
};

/// The script told this rank to fail here.
class scripted_error : public communication_error {
 public:
  using communication_error::communication_error;
};

}  // namespace gradlane::local

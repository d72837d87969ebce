// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/nccl/error.hpp>  // for check, error

#include <nccl.h>

#include <source_location>  // for source_location
#include <string>           // for string, to_string

static_assert(NCCL_VERSION_CODE >= NCCL_VERSION(2, 18, 0),
              "gradlane::nccl needs NCCL 2.18 or newer, which has ncclCommSplit");

namespace gradlane::nccl {

/// "2.28.9" of NCCL's version code 22809
[[nodiscard]] inline std::string version_text(int code) {
  auto const unit = code < 10'000 ? 1'000 : 10'000;  // as up to 2.8
  return std::to_string(code / unit) + "." + std::to_string(code % unit / 100) + "." +
         std::to_string(code % 100);
}

namespace detail {

/// A library that is older than the header it was called by lacks functions, and misreads settings.
/// @throws error, which names both versions.
inline void check_version(int header, int library, std::source_location at) {
  constexpr auto unit = 10'000;
  if (library >= header && library / unit == header / unit) { return; }
  throw error{"nccl: the program was built with NCCL " + version_text(header) +
                  ", but runs with the library of NCCL " + version_text(library) +
                  ": let it find that of its header, or a newer one (LD_LIBRARY_PATH, or NCCL_ROOT "
                  "when it is configured)",
              ncclInvalidUsage,
              at};
}

inline void check_version(std::source_location at) {
  auto library = 0;
  check(ncclGetVersion(&library), "ncclGetVersion", at);
  check_version(NCCL_VERSION_CODE, library, at);
}

}  // namespace detail
}  // namespace gradlane::nccl

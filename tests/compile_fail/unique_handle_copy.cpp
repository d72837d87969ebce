// SPDX-License-Identifier: Apache-2.0
// A handle has one owner.
#include <gradlane/detail/unique_handle.hpp>  // for unique_handle

#include <utility>  // for move

struct traits {
  using handle_type = int;
  static int empty() noexcept { return -1; }
  static void destroy(int /*handle*/) noexcept {}
};
using owner = gradlane::detail::unique_handle<traits>;

#ifdef GRADLANE_RIGHT_USE
owner pass(owner& handle) { return std::move(handle); }
#else
owner pass(owner& handle) { return handle; }
#endif

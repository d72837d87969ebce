// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/concepts.hpp>              // for timeout
#include <gradlane/detail/deadline.hpp>       // for poll_until
#include <gradlane/detail/unique_handle.hpp>  // for unique_handle
#include <gradlane/error.hpp>                 // for contract_error, timeout_error
#include <gradlane/nccl/detail/channel.hpp>   // for state_of
#include <gradlane/nccl/detail/node.hpp>      // for describe_place
#include <gradlane/nccl/error.hpp>            // for error, is_error, text_of

#include <nccl.h>

#include <chrono>           // for duration
#include <source_location>  // for source_location
#include <string>           // for string, to_string
#include <string_view>      // for string_view

namespace gradlane::nccl::detail {

/// Aborts: for communicators that are not made yet.
struct comm_traits {
  using handle_type = ncclComm_t;
  [[nodiscard]] static handle_type empty() noexcept { return nullptr; }
  static void destroy(handle_type comm) noexcept { ncclCommAbort(comm); }
};
using unique_comm = gradlane::detail::unique_handle<comm_traits>;

[[nodiscard]] inline ncclConfig_t config_of(bool blocking) noexcept {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking     = blocking ? 1 : 0;
  return config;
}

/// What is being waited for, to say so.
struct bring_up {
  std::string_view call;
  int device_index;
  timeout deadline;
  std::source_location at;

  /// Returns once `comm`, whose call has returned `begun`, is ready.
  /// @throws contract_error where ranks share a GPU, error, timeout_error.
  void sync(ncclComm_t comm, ncclResult_t begun) const {
    auto state         = begun;
    auto const settled = [&] {
      if (state == ncclInProgress) { state = state_of(comm); }
      return state != ncclInProgress;
    };
    if (!gradlane::detail::poll_until(settled, deadline)) {
      auto const seconds = std::chrono::duration<double>{deadline}.count();
      throw timeout_error{std::string{call} + " has waited for the other ranks for " +
                              std::to_string(seconds) +
                              " s: all must make their communicators together",
                          at};
    }
    if (is_error(state)) { fail(state); }
  }

 private:
  [[noreturn]] void fail(ncclResult_t state) const {
    auto const text = std::string{call} + ": " + text_of(state);
    if (text.find("Duplicate GPU") != std::string::npos) {
      throw contract_error{text + "; this rank runs on " + describe_place(device_index) +
                               ". Give every rank of a host a device of its own: "
                               "cuda::device{rank among those of the host}",
                           at};
    }
    throw error{text, static_cast<int>(state), at};
  }
};

}  // namespace gradlane::nccl::detail

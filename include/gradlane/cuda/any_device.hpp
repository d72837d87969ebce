// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/host/progress.hpp>  // for progress_function, progress_registration

#include <concepts>    // for same_as
#include <functional>  // for function
#include <utility>     // for move

namespace gradlane::cuda {

/// What cuda::device is to communicators, so that these need no nvcc.
template <class D>
concept any_device = requires(D& d, host::progress_function f) {
  { d.index() } -> std::same_as<int>;
  { d.add_progress(std::move(f)) } -> std::same_as<host::progress_registration>;
};

/// Makes a device run a function while host threads wait for it.
using enlist_function = std::function<host::progress_registration(host::progress_function)>;

/// @param device  must outlive the result.
template <any_device Device>
[[nodiscard]] enlist_function enlister_of(Device& device) {
  return [&device](host::progress_function f) { return device.add_progress(std::move(f)); };
}

}  // namespace gradlane::cuda

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>  // for byte
#include <new>      // NOLINT(misc-include-cleaner): for placement new
#include <utility>  // for move

namespace gradlane::detail {

/// Never frees what `owner` holds, and empties it: some transport may still write to it.
template <class Owner>
void leave_for_ever(Owner& owner) noexcept {
  alignas(Owner) std::byte room[sizeof(Owner)];
  ::new (static_cast<void*>(room)) Owner(std::move(owner));  // whose life never ends
}

}  // namespace gradlane::detail

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>      // for uint64_t
#include <string_view>  // for string_view

namespace gradlane::detail {

/// 64-bit FNV-1a of texts and numbers: equal on every machine.
class fnv1a {
 public:
  /// The size goes first, so that no text can pass for two.
  void feed(std::string_view text) noexcept {
    step(text.size());
    for (auto const c : text) { step(static_cast<unsigned char>(c)); }
  }
  void feed(std::uint64_t number) noexcept {
    for (auto shift = 0U; shift < 64; shift += 8) { step((number >> shift) & 0xFFU); }
  }

  [[nodiscard]] std::uint64_t value() const noexcept { return value_; }

 private:
  void step(std::uint64_t piece) noexcept { value_ = (value_ ^ piece) * 0x100000001B3U; }

  std::uint64_t value_{0xCBF29CE484222325U};
};

}  // namespace gradlane::detail

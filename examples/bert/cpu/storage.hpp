// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/types.hpp>  // for bf16

#include <bit>      // for bit_cast
#include <cstdint>  // for uint32_t

namespace bert::cpu {

// Activations are stored as float or bf16 and computed on as float. These forms, member by member,
// are the ones of which g++ 12 makes vector code.

[[nodiscard]] inline float as_float(float const& from) { return from; }
[[nodiscard]] inline float as_float(gradlane::bf16 const& from) {
  return std::bit_cast<float>(std::uint32_t{from.bits} << 16U);
}

inline void store(float value, float& to) { to = value; }
inline void store(float value, gradlane::bf16& to) { to.bits = gradlane::bf16{value}.bits; }

}  // namespace bert::cpu

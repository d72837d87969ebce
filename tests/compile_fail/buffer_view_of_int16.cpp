// SPDX-License-Identifier: Apache-2.0
// Bits of a 16-bit float in an integer type have no dtype: gradlane::bf16 and fp16 have.
#include <gradlane/buffer_view.hpp>  // for buffer_view
#include <gradlane/types.hpp>        // for bf16

#include <cstdint>  // for int16_t
#include <span>     // for span

#ifdef GRADLANE_RIGHT_USE
using element_type = gradlane::bf16;
#else
using element_type = std::int16_t;
#endif

gradlane::buffer_view view(std::span<element_type> gradient) { return gradient; }

// SPDX-License-Identifier: Apache-2.0
// A view through which may be written is not made from elements that are const.
#include <gradlane/buffer_view.hpp>  // for buffer_view

#include <span>  // for span

#ifdef GRADLANE_RIGHT_USE
using element_type = float;
#else
using element_type = float const;
#endif

gradlane::buffer_view view(std::span<element_type> gradient) { return gradient; }

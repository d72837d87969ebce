// SPDX-License-Identifier: Apache-2.0
// Samples move as bytes: what owns memory elsewhere cannot be one of their arrays.
#include <gradlane/sample_window.hpp>  // for array_of

#include <cstdint>  // for int32_t
#include <string>   // for string

#ifdef GRADLANE_RIGHT_USE
using element_type = std::int32_t;
#else
using element_type = std::string;
#endif

gradlane::sample_array words() { return gradlane::array_of<element_type>("words"); }

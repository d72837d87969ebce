// SPDX-License-Identifier: Apache-2.0
#include <gradlane/gradlane.hpp>  // for bf16, dtype_of, name_of

static_assert(__cplusplus >= 202002L, "gradlane::core asks for C++20");

int main() { return gradlane::name_of(gradlane::dtype_of<gradlane::bf16>) == "bf16" ? 0 : 1; }

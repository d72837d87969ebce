// SPDX-License-Identifier: Apache-2.0
// What is sharded is a sum or an average: Adasum in its place would have been taken for a sum.
#include <gradlane/clip/policy.hpp>  // for sharded

#ifdef GRADLANE_RIGHT_USE
using join = gradlane::average::ranks;
#else
using join = gradlane::reduce::adasum;
#endif

template struct gradlane::reduce::sharded<join>;

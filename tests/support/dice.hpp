// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>  // for size_t
#include <cstdint>  // for uint64_t
#include <random>   // for mt19937_64

namespace gradlane::test {

/// Numbers of one seed, the same with every standard library.
class dice {
 public:
  explicit dice(std::uint64_t seed) : engine_{seed} {}
  std::size_t below(std::size_t bound) { return static_cast<std::size_t>(engine_() % bound); }

 private:
  std::mt19937_64 engine_;
};

}  // namespace gradlane::test

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/detail/mixed.hpp>  // for mixed

#include <chrono>   // for nanoseconds
#include <cstdint>  // for uint64_t
#include <vector>   // for vector

namespace gradlane::local {

/// What goes wrong in a world, and when: for tests of code that must cope.
///
/// A rank's calls (collectives, sends, receives, splits, over all its communicators) are numbered
/// from 0 in the order in which its host thread makes them. Everything here is a pure function of
/// (seed, rank, call), so that a run with the same script meets the same schedule again.
struct script {
  struct delay {
    int rank;
    std::uint64_t call;
    std::chrono::nanoseconds time;
  };
  struct fault {
    int rank;
    std::uint64_t call;
  };

  std::uint64_t seed{};
  /// Each arrival is put off by a time drawn from [0, max_delay).
  std::chrono::nanoseconds max_delay{};
  /// The ranks arrive at each collective one after the other, in an order drawn from the seed.
  bool reorder{};
  /// Arrivals put off by a given time, on top of max_delay.
  std::vector<delay> delays{};
  /// The rank's call throws scripted_error and its communicator stays failed; peers are not told.
  std::vector<fault> failures{};
  /// From this call on the rank arrives nowhere; its streams stand still until the group fails.
  std::vector<fault> deaths{};
};

}  // namespace gradlane::local

namespace gradlane::local::detail {

/// A mix of (seed, a, b): equal input gives equal output on every machine.
[[nodiscard]] constexpr std::uint64_t draw(std::uint64_t seed,
                                           std::uint64_t a,
                                           std::uint64_t b) noexcept {
  using gradlane::detail::mixed;
  return mixed(mixed(mixed(seed) ^ a) ^ b);
}

[[nodiscard]] inline std::chrono::nanoseconds delay_of(script const& s,
                                                       int rank,
                                                       std::uint64_t call) noexcept {
  auto total = std::chrono::nanoseconds{0};
  if (s.max_delay.count() > 0) {
    auto const bound = static_cast<std::uint64_t>(s.max_delay.count());
    auto const value = draw(s.seed, static_cast<std::uint64_t>(rank), call) % bound;
    total += std::chrono::nanoseconds{static_cast<std::int64_t>(value)};
  }
  for (auto const& d : s.delays) {
    if (d.rank == rank && d.call == call) { total += d.time; }
  }
  return total;
}

[[nodiscard]] inline bool fails_at(script const& s, int rank, std::uint64_t call) noexcept {
  for (auto const& f : s.failures) {
    if (f.rank == rank && f.call == call) { return true; }
  }
  return false;
}

[[nodiscard]] inline bool is_dead_at(script const& s, int rank, std::uint64_t call) noexcept {
  for (auto const& f : s.deaths) {
    if (f.rank == rank && f.call <= call) { return true; }
  }
  return false;
}

}  // namespace gradlane::local::detail

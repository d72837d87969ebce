// SPDX-License-Identifier: Apache-2.0
#pragma once

// What benchmarks over MPI share: the gradients of BERT-base, and rows that are measured in turns,
// so that ratios hold on a machine whose speed drifts.

#include <gradlane/buckets/parameter.hpp>  // for parameter

#include <mpi.h>

#include <algorithm>   // for sort
#include <chrono>      // for duration, steady_clock
#include <cstddef>     // for size_t
#include <functional>  // for function
#include <string>      // for string, to_string
#include <vector>      // for vector

namespace gradlane::bench {

/// Encoder layers of BERT-base as parameters of 7,087,872 elements in all each, and the embeddings,
/// scaled to `elements`.
[[nodiscard]] inline std::vector<parameter> bert_base(std::size_t elements) {
  auto result    = std::vector<parameter>{};
  auto const add = [&](double share) {
    auto const count = static_cast<std::size_t>(share / 109.5e6 * static_cast<double>(elements));
    result.push_back({.name  = std::string{"p"}.append(std::to_string(result.size())),
                      .count = count / 64 * 64 + 64});
  };
  add(23440896);
  add(393216);
  for (auto layer = 0; layer < 12; ++layer) {
    for (auto i = 0; i < 4; ++i) {
      add(589824);
      add(768);
    }
    add(2359296);
    add(3072);
    add(2359296);
    add(768);
  }
  add(590592);
  return result;
}

struct row {
  std::string name;
  std::function<void()> run;
  std::vector<double> seconds{};

  [[nodiscard]] double median() const {
    auto sorted = seconds;
    std::sort(sorted.begin(), sorted.end());
    return sorted[sorted.size() / 2];
  }
};

/// Runs all rows, one after the other, `repetitions` times after a first time that is not counted.
/// Collective: a row begins and ends on all ranks together.
inline void measure(std::vector<row>& rows, int repetitions) {
  for (auto turn = 0; turn <= repetitions; ++turn) {
    for (auto& r : rows) {
      MPI_Barrier(MPI_COMM_WORLD);
      auto const start = std::chrono::steady_clock::now();
      r.run();
      MPI_Barrier(MPI_COMM_WORLD);
      auto const end = std::chrono::steady_clock::now();
      if (turn > 0) { r.seconds.push_back(std::chrono::duration<double>{end - start}.count()); }
    }
  }
}

}  // namespace gradlane::bench

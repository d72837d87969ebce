// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../batch.hpp"  // for batch

#include <cstddef>  // for size_t
#include <cstdint>  // for uint32_t, uint64_t
#include <span>     // for span
#include <vector>   // for vector

namespace bert {

/// Sequences to train on, by a number that is the same on every rank.
class sample_source {
 public:
  sample_source()                                = default;
  sample_source(sample_source const&)            = delete;
  sample_source& operator=(sample_source const&) = delete;
  virtual ~sample_source()                       = default;

  [[nodiscard]] virtual std::size_t size() const = 0;

  /// Tokens of the sample, [CLS] and [SEP] included.
  [[nodiscard]] virtual std::size_t length(std::uint32_t sample) const = 0;

  /// Appends the sample as it looks in that epoch: the same bits on whichever rank, and thread.
  virtual void append(std::uint32_t sample, std::uint32_t epoch, batch& out) const = 0;

  /// How often each token occurs where it could be masked; as long as the largest needs.
  [[nodiscard]] virtual std::vector<std::uint64_t> count_tokens() const = 0;

  /// Differs for other data; checkpoints keep it, since sample numbers mean nothing without.
  [[nodiscard]] virtual std::uint64_t fingerprint() const = 0;
};

[[nodiscard]] inline batch make_batch(sample_source const& source,
                                      std::span<std::uint32_t const> samples,
                                      std::uint32_t epoch) {
  auto result = batch{};
  for (auto const sample : samples) { source.append(sample, epoch, result); }
  return result;
}

}  // namespace bert

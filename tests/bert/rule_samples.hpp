// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bert/batch.hpp>
#include <bert/data/sample_source.hpp>

#include <cstddef>  // for size_t
#include <cstdint>  // for int32_t, uint32_t, uint64_t
#include <vector>   // for vector

namespace bert::test {

/// Sequences of lengths 5 … 40 whose tokens follow a rule, so that there is something to learn.
class rule_samples final : public sample_source {
 public:
  explicit rule_samples(std::size_t count) : count_{count} {}
  [[nodiscard]] std::size_t size() const override { return count_; }
  [[nodiscard]] std::size_t length(std::uint32_t sample) const override {
    return 5 + sample * 7 % 36;
  }
  void append(std::uint32_t sample, std::uint32_t epoch, batch& out) const override {
    auto tokens = std::vector<std::int32_t>{};
    for (auto i = std::size_t{0}; i < length(sample); ++i) {
      tokens.push_back(static_cast<std::int32_t>(5 + (sample * 13 + i * (1 + sample % 3)) % 92));
    }
    auto positions = std::vector<std::int32_t>{};
    auto labels    = std::vector<std::int32_t>{};
    for (auto i = std::size_t{1 + (sample + epoch) % 4}; i < tokens.size(); i += 6) {
      positions.push_back(static_cast<std::int32_t>(i));
      labels.push_back(tokens[i]);
      tokens[i] = 4;
    }
    auto const segments = std::vector<std::int32_t>(tokens.size(), 0);
    out.append(sample, tokens, segments, positions, labels, sample % 2 == 0 ? 0 : 1);
  }
  [[nodiscard]] std::vector<std::uint64_t> count_tokens() const override { return {}; }
  [[nodiscard]] std::uint64_t fingerprint() const override { return count_; }

 private:
  std::size_t count_;
};

}  // namespace bert::test

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/detail/radix_sort.hpp>  // for radix_sort
#include <gradlane/error.hpp>              // for expects

#include <cstddef>  // for size_t
#include <cstdint>  // for uint32_t, uint64_t
#include <limits>   // for numeric_limits
#include <span>     // for span
#include <vector>   // for vector

namespace gradlane::balance {

/// How many sequences have a length.
struct length_count {
  std::uint32_t length{};  ///< in tokens
  std::uint64_t count{};

  friend bool operator==(length_count const&, length_count const&) = default;
};

/// The lengths of a data set, each with its count; of a size that grows with distinct lengths only.
class length_histogram {
 public:
  /// @param entries  by rising length; those that count nothing are left out.
  /// @throws contract_error for lengths that do not rise, and 2^63 tokens and more.
  explicit length_histogram(std::vector<length_count> entries) {
    for (std::size_t i = 1; i < entries.size(); ++i) {
      expects(entries[i - 1].length < entries[i].length,
              "length_histogram: lengths must rise from entry to entry");
    }
    for (auto const& e : entries) { add(e); }
  }

  /// @param lengths  of all sequences, fewer than 2^32.
  explicit length_histogram(std::span<std::uint32_t const> lengths) {
    expects(lengths.size() <= std::numeric_limits<std::uint32_t>::max(),
            "length_histogram: 2^32 lengths or more; count them first");
    auto order = std::vector<std::uint32_t>(lengths.size());
    for (std::size_t i = 0; i < order.size(); ++i) { order[i] = static_cast<std::uint32_t>(i); }
    gradlane::detail::radix_sort(order, [&](std::uint32_t i) { return lengths[i]; });
    for (std::size_t i = 0; i < order.size();) {
      auto const length = lengths[order[i]];
      auto next         = i;
      while (next < order.size() && lengths[order[next]] == length) { ++next; }
      add({length, next - i});
      i = next;
    }
  }

  /// By rising length, without empty ones.
  [[nodiscard]] std::span<length_count const> entries() const noexcept {
    return {entries_.data(), entries_.size()};
  }
  [[nodiscard]] std::uint64_t samples() const noexcept { return samples_; }
  [[nodiscard]] std::uint64_t tokens() const noexcept { return tokens_; }
  /// In tokens; 0 without samples.
  [[nodiscard]] double mean_length() const noexcept {
    return samples_ == 0 ? 0.0 : static_cast<double>(tokens_) / static_cast<double>(samples_);
  }

 private:
  void add(length_count entry) {
    if (entry.count == 0) { return; }
    constexpr auto most = std::uint64_t{1} << 63U;
    expects(entry.count < most - samples_ && entry.length <= (most - 1 - tokens_) / entry.count,
            "length_histogram: 2^63 tokens or more");
    samples_ += entry.count;
    tokens_ += entry.count * entry.length;
    entries_.push_back(entry);
  }

  std::vector<length_count> entries_;
  std::uint64_t samples_{};
  std::uint64_t tokens_{};
};

}  // namespace gradlane::balance

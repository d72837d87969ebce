// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/balance/deal.hpp>        // for assignment, bins, in_dealing_order, sample
#include <gradlane/balance/histogram.hpp>   // for length_histogram
#include <gradlane/detail/first_where.hpp>  // for first_where
#include <gradlane/error.hpp>               // for contract_error, expects

#include <cstddef>  // for size_t
#include <cstdint>  // for uint32_t, uint64_t, uint8_t
#include <span>     // for span
#include <string>   // for to_string
#include <utility>  // for move, swap
#include <vector>   // for vector

namespace gradlane::balance {

/// Which pack the next shorter sequence goes to.
enum class fitting : std::uint8_t {
  shortest_pack_first,  ///< the emptiest: packs hold few kinds of mixtures
  best_fit,             ///< the fullest that has room
};

/// How sequences are joined to packs of a fixed length.
struct pack_rules {
  std::uint32_t capacity{512};  ///< tokens of a pack
  std::size_t most{12};         ///< sequences in a pack
  fitting method{fitting::best_fit};
};

/// Packs that hold sequences of the same lengths.
struct pack_pattern {
  std::vector<std::uint32_t> lengths;  ///< longest first
  std::uint64_t count{};               ///< packs
};

/// Packs for a whole data set, by pattern.
struct packing {
  std::vector<pack_pattern> patterns;
  std::uint32_t capacity{};

  [[nodiscard]] std::uint64_t packs() const noexcept {
    auto sum = std::uint64_t{0};
    for (auto const& p : patterns) { sum += p.count; }
    return sum;
  }

  /// Tokens per place for one, in [0, 1]; 1 without packs.
  [[nodiscard]] double fullness() const noexcept {
    auto tokens = 0.0;
    for (auto const& p : patterns) {
      for (auto const length : p.lengths) {
        tokens += static_cast<double>(p.count) * static_cast<double>(length);
      }
    }
    auto const places = static_cast<double>(packs()) * static_cast<double>(capacity);
    return places > 0 ? tokens / places : 1.0;
  }
};

namespace detail {

/// Packs while they are filled.
class open_packs {
 public:
  explicit open_packs(pack_rules const& rules) : rules_{rules}, result_{{}, rules.capacity} {}

  /// Puts each of `count` sequences into a pack; from longer to shorter ones.
  void add(std::uint32_t length, std::uint64_t count) {
    while (count > 0) {
      auto const at = chosen_for(length);
      if (at == open_.size() || open_[at].room < length) {
        put_alone(length, count);
        return;
      }
      auto longer     = open_[at].pattern;
      auto const room = open_[at].room - length;
      longer.count    = count < longer.count ? count : longer.count;
      longer.lengths.push_back(length);
      count -= longer.count;
      open_[at].pattern.count -= longer.count;
      if (open_[at].pattern.count == 0) { remove(at); }
      put(std::move(longer), room);
    }
  }

  [[nodiscard]] packing closed() && {
    for (auto& o : open_) { result_.patterns.push_back(std::move(o.pattern)); }
    return std::move(result_);
  }

 private:
  struct with_room {
    pack_pattern pattern;
    std::uint32_t room{};  // tokens
  };

  /// The pattern to extend, or one that has no room, or none.
  [[nodiscard]] std::size_t chosen_for(std::uint32_t length) const {
    if (rules_.method == fitting::shortest_pack_first) {
      return open_.empty() ? 0 : open_.size() - 1;
    }
    return gradlane::detail::first_where(open_.size(),
                                         [&](std::size_t i) { return open_[i].room >= length; });
  }

  /// Into new packs, each with as many as it takes.
  void put_alone(std::uint32_t length, std::uint64_t count) {
    auto many = length > 0 ? rules_.capacity / length : count;
    if (many > rules_.most) { many = rules_.most; }
    auto const fill = [&](std::uint64_t packs, std::uint64_t each) {
      if (packs == 0 || each == 0) { return; }
      auto const used = static_cast<std::uint32_t>(each * length);
      put({std::vector<std::uint32_t>(each, length), packs}, rules_.capacity - used);
    };
    fill(count / many, many);
    fill(1, count % many);
  }

  void put(pack_pattern pattern, std::uint32_t room) {
    if (pattern.lengths.size() == rules_.most) {
      result_.patterns.push_back(std::move(pattern));
      return;
    }
    open_.push_back({std::move(pattern), room});
    for (auto i = open_.size() - 1; i > 0 && open_[i - 1].room > room; --i) {
      std::swap(open_[i - 1], open_[i]);
    }
  }

  void remove(std::size_t at) {
    for (; at + 1 < open_.size(); ++at) { std::swap(open_[at], open_[at + 1]); }
    open_.pop_back();
  }

  pack_rules rules_;
  packing result_;
  std::vector<with_room> open_;  // by rising room
};

}  // namespace detail

/// Joins the sequences of a data set to packs of at most capacity tokens, longest first.
///
/// Works on counts, so that its time depends on distinct lengths, not on the size of the data.
/// Source: Krell et al. 2021, "Efficient sequence packing without cross-contamination", arXiv
/// 2107.02027; best fit decreasing: Johnson, "Near-optimal bin packing algorithms", 1973.
/// @throws contract_error for a length above the capacity, and for rules that allow no sequence.
[[nodiscard]] inline packing pack(length_histogram const& lengths, pack_rules const& rules) {
  expects(rules.most > 0, "pack: a pack must be allowed at least one sequence");
  auto const entries = lengths.entries();
  if (!entries.empty() && entries.back().length > rules.capacity) {
    throw contract_error{"pack: a sequence of " + std::to_string(entries.back().length) +
                         " tokens fits no pack of " + std::to_string(rules.capacity)};
  }
  auto open = detail::open_packs{rules};
  for (auto i = entries.size(); i > 0; --i) {
    open.add(entries[i - 1].length, entries[i - 1].count);
  }
  return std::move(open).closed();
}

/// The same for given samples: those of pack p are bin(0, p) of the result.
///
/// Packs may be dealt like samples then, each with the sum of its lengths. Of equally long samples
/// the one with the smaller id is taken first, so that the order of the samples does not matter.
/// @throws as pack(histogram), and for 2^32 samples and more.
[[nodiscard]] inline assignment pack(std::span<sample const> samples, pack_rules const& rules) {
  auto lengths = std::vector<std::uint32_t>{};
  for (auto const& s : samples) { lengths.push_back(s.length); }
  auto const histogram = length_histogram{lengths};
  auto const packed    = pack(histogram, rules);
  auto const entries   = histogram.entries();
  auto const order     = detail::in_dealing_order(samples, dealing::lpt);
  auto next            = std::vector<std::size_t>(entries.size());  // place in `order`, by entry
  auto place           = std::size_t{0};
  for (auto e = entries.size(); e > 0; --e) {
    next[e - 1] = place;
    place += entries[e - 1].count;
  }
  auto const take = [&](std::uint32_t length) {
    auto const entry = gradlane::detail::first_where(
        entries.size(), [&](std::size_t e) { return entries[e].length >= length; });
    return order[next[entry]++];
  };
  auto packs = detail::bins{};
  for (auto const& pattern : packed.patterns) {
    for (std::uint64_t p = 0; p < pattern.count; ++p) {
      for (auto const length : pattern.lengths) { packs.order.push_back(take(length)); }
      packs.offsets.push_back(static_cast<std::uint32_t>(packs.order.size()));
    }
  }
  auto const count = packs.offsets.size() - 1;
  return {1, count, std::move(packs.order), std::move(packs.offsets)};
}

}  // namespace gradlane::balance

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/balance/cost.hpp>                 // for cost_model
#include <gradlane/balance/detail/even_out.hpp>      // for even_out
#include <gradlane/balance/detail/least_loaded.hpp>  // for least_loaded
#include <gradlane/detail/radix_sort.hpp>            // for radix_sort
#include <gradlane/detail/smaller.hpp>               // for smaller
#include <gradlane/error.hpp>                        // for expects

#include <cstddef>      // for size_t
#include <cstdint>      // for uint32_t, uint64_t
#include <limits>       // for numeric_limits
#include <span>         // for span
#include <string_view>  // for string_view
#include <utility>      // for move
#include <vector>       // for vector

namespace gradlane::balance {

/// What a deal knows of a sequence.
struct sample {
  std::uint64_t id{};      ///< its number in the data set: decides between equal lengths
  std::uint32_t length{};  ///< in tokens

  friend bool operator==(sample const&, sample const&) = default;
};

/// The order in which samples, longest first, go to parts.
enum class dealing : std::uint8_t {
  none,      ///< as they come: part 0 gets the first ones, without any sorting
  raster,    ///< 0 1 2 0 1 2: the first part gets the longest of every row
  snake,     ///< 0 1 2 2 1 0: every other row backwards
  lpt,       ///< to the part that costs least so far and is not full: all get equally many
  lpt_free,  ///< to the part that costs least so far, however many it has
};

[[nodiscard]] constexpr std::string_view name_of(dealing method) noexcept {
  switch (method) {
    case dealing::none:
      return "none";
    case dealing::raster:
      return "raster";
    case dealing::snake:
      return "snake";
    case dealing::lpt:
      return "lpt";
    case dealing::lpt_free:
      return "lpt_free";
  }
  return "unknown";
}

/// How samples are dealt. All ranks give the same values.
struct deal_rules {
  dealing method{dealing::lpt};
  std::size_t ranks{1};  ///< or ranks × micro-batches: the parts of a step
  std::size_t steps{1};  ///< that the samples are for: the window, shorter at an epoch's end
  cost_model cost{};     ///< for lpt and lpt_free
  /// lpt and lpt_free then exchange at most so many pairs among a step's ranks, and among steps:
  /// that halves what they leave at eight samples a rank and more.
  std::size_t swaps{16};

  /// @throws contract_error for no ranks, no steps, or more than 2^32 parts; a bad cost model.
  void check() const {
    constexpr auto most = std::numeric_limits<std::uint32_t>::max();
    expects(ranks > 0, "deal: there must be at least one rank");
    expects(steps > 0, "deal: there must be at least one step");
    expects(ranks <= most / steps, "deal: more than 2^32 parts");
    cost.check();
  }
};

/// Which samples each rank trains on in each step of a window.
class assignment {
 public:
  assignment(std::size_t steps,
             std::size_t ranks,
             std::vector<std::uint32_t> order,
             std::vector<std::uint32_t> offsets)
      : steps_{steps}, ranks_{ranks}, order_{std::move(order)}, offsets_{std::move(offsets)} {}

  [[nodiscard]] std::size_t steps() const noexcept { return steps_; }
  [[nodiscard]] std::size_t ranks() const noexcept { return ranks_; }

  /// Positions in the samples dealt: longest first, equals by id (dealing::none: as they came).
  /// Valid as long as the assignment.
  [[nodiscard]] std::span<std::uint32_t const> bin(std::size_t step, std::size_t rank) const {
    return between(step * ranks_ + rank, step * ranks_ + rank + 1);
  }

  /// The samples of all ranks in a step: bin(step, 0), bin(step, 1), …
  [[nodiscard]] std::span<std::uint32_t const> step(std::size_t step) const {
    return between(step * ranks_, (step + 1) * ranks_);
  }

  /// All samples; bin (step, rank) is [offsets()[b], offsets()[b + 1]) of it, b = step·ranks +
  /// rank.
  [[nodiscard]] std::span<std::uint32_t const> order() const noexcept {
    return {order_.data(), order_.size()};
  }
  [[nodiscard]] std::span<std::uint32_t const> offsets() const noexcept {
    return {offsets_.data(), offsets_.size()};
  }

 private:
  [[nodiscard]] std::span<std::uint32_t const> between(std::size_t first, std::size_t last) const {
    return order().subspan(offsets_[first], offsets_[last] - offsets_[first]);
  }

  std::size_t steps_;
  std::size_t ranks_;
  std::vector<std::uint32_t> order_;
  std::vector<std::uint32_t> offsets_;
};

namespace detail {

/// Deals samples to the part that costs least so far.
/// @param costs  of the samples, largest first.
/// @param equal  parts get equally many; where that is not possible, some get one more.
[[nodiscard]] inline std::vector<std::uint32_t> lpt_parts(std::span<double const> costs,
                                                          std::size_t parts,
                                                          bool equal) {
  auto result       = std::vector<std::uint32_t>(costs.size());
  auto open         = least_loaded{parts};
  auto const quota  = costs.size() / parts;
  auto one_more     = costs.size() % parts;  // parts that may yet get a sample above the quota
  auto const filled = [&] { return open.top_count() >= quota + (one_more > 0 ? 1 : 0); };
  for (std::size_t i = 0; i < costs.size(); ++i) {
    while (equal && filled()) { open.close_top(); }
    result[i] = open.top();
    if (equal && open.top_count() == quota) { --one_more; }
    open.give(costs[i]);
  }
  return result;
}

/// Deals samples to parts in turn; every other row backwards for a snake.
[[nodiscard]] inline std::vector<std::uint32_t> parts_in_rows(std::size_t count,
                                                              std::size_t parts,
                                                              bool snake) {
  auto result  = std::vector<std::uint32_t>(count);
  auto reverse = false;
  for (std::size_t begin = 0; begin < count; begin += parts) {
    auto const row = gradlane::detail::smaller(parts, count - begin);
    for (std::size_t i = 0; i < row; ++i) {
      result[begin + i] = static_cast<std::uint32_t>(reverse ? parts - 1 - i : i);
    }
    reverse = snake && !reverse;
  }
  return result;
}

/// Gives the first samples to the first part, and so on.
[[nodiscard]] inline std::vector<std::uint32_t> parts_in_blocks(std::size_t count,
                                                                std::size_t parts) {
  auto result = std::vector<std::uint32_t>{};
  result.reserve(count);
  for (std::size_t p = 0; p < parts; ++p) {
    auto const size = count / parts + (p < count % parts ? 1 : 0);
    result.resize(result.size() + size, static_cast<std::uint32_t>(p));
  }
  return result;
}

/// The part of each of `order`, which are positions in `samples`, in the order of dealing.
[[nodiscard]] inline std::vector<std::uint32_t> parts_of(std::span<sample const> samples,
                                                         std::span<std::uint32_t const> order,
                                                         std::size_t parts,
                                                         dealing method,
                                                         deal_rules const& rules) {
  if (parts == 1 || method == dealing::none) { return parts_in_blocks(order.size(), parts); }
  if (method == dealing::raster || method == dealing::snake) {
    return parts_in_rows(order.size(), parts, method == dealing::snake);
  }
  auto costs = std::vector<double>(order.size());
  for (std::size_t i = 0; i < order.size(); ++i) {
    costs[i] = rules.cost(samples[order[i]].length);
  }
  auto result = lpt_parts(costs, parts, method == dealing::lpt);
  if (rules.swaps > 0) { even_out{costs, result, parts}.run(rules.swaps); }
  return result;
}

/// Positions of the samples: longest first, equals by id; for dealing::none as they come.
[[nodiscard]] inline std::vector<std::uint32_t> in_dealing_order(std::span<sample const> samples,
                                                                 dealing method) {
  auto order   = std::vector<std::uint32_t>(samples.size());
  auto longest = std::uint32_t{0};
  for (std::size_t i = 0; i < samples.size(); ++i) {
    order[i] = static_cast<std::uint32_t>(i);
    if (samples[i].length > longest) { longest = samples[i].length; }
  }
  if (method == dealing::none) { return order; }
  gradlane::detail::radix_sort(order, [&](std::uint32_t i) { return samples[i].id; });
  gradlane::detail::radix_sort(order, [&](std::uint32_t i) { return longest - samples[i].length; });
  return order;
}

/// Samples sorted into consecutive bins.
struct bins {
  std::vector<std::uint32_t> order{};
  std::vector<std::uint32_t> offsets{0};  // of the bins in `order`, and its size

  [[nodiscard]] std::span<std::uint32_t const> operator[](std::size_t bin) const {
    return std::span{order}.subspan(offsets[bin], offsets[bin + 1] - offsets[bin]);
  }

  /// Appends `parts` bins; within each, samples keep their order.
  void append(std::span<std::uint32_t const> samples,
              std::span<std::uint32_t const> part,
              std::size_t parts) {
    auto next = std::vector<std::uint32_t>(parts);
    for (auto const p : part) { ++next[p]; }
    for (auto& place : next) {
      auto const begin = offsets.back();
      offsets.push_back(begin + place);
      place = begin;
    }
    order.resize(order.size() + samples.size());
    for (std::size_t i = 0; i < samples.size(); ++i) { order[next[part[i]]++] = samples[i]; }
  }
};

}  // namespace detail

/// Deals the samples of a window to its steps, then those of each step to the ranks.
///
/// Both by the method of the rules, except that steps always get equally many samples, to within
/// one. A pure function of the set of samples, whatever their order (but for dealing::none): every
/// rank that knows the same samples computes the same assignment. Which samples a step trains on
/// does not depend on the number of ranks, nor on how they share it.
///
/// Source: snake, Kim et al. 2024, arXiv 2402.02447, Figure 4; LPT, Graham, "Bounds on
/// multiprocessing timing anomalies", 1969.
/// @throws contract_error for bad rules, or 2^32 samples and more.
[[nodiscard]] inline assignment deal(std::span<sample const> samples, deal_rules const& rules) {
  rules.check();
  expects(samples.size() <= std::numeric_limits<std::uint32_t>::max(),
          "deal: 2^32 samples or more; deal smaller windows");
  auto const order    = detail::in_dealing_order(samples, rules.method);
  auto const of_steps = rules.method == dealing::lpt_free ? dealing::lpt : rules.method;
  auto by_step        = detail::bins{};
  by_step.append(
      order, detail::parts_of(samples, order, rules.steps, of_steps, rules), rules.steps);
  auto by_rank = detail::bins{};
  for (std::size_t s = 0; s < rules.steps; ++s) {
    auto const step = by_step[s];
    by_rank.append(
        step, detail::parts_of(samples, step, rules.ranks, rules.method, rules), rules.ranks);
  }
  return {rules.steps, rules.ranks, std::move(by_rank.order), std::move(by_rank.offsets)};
}

}  // namespace gradlane::balance

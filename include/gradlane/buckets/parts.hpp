// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/buckets/plan.hpp>           // for bucket_layout, bucket_plan
#include <gradlane/detail/sorted_indices.hpp>  // for sorted
#include <gradlane/element_range.hpp>          // for element_range
#include <gradlane/error.hpp>                  // for contract_error

#include <algorithm>  // for max, max_element
#include <cmath>      // for abs
#include <cstddef>    // for size_t
#include <cstdint>    // for uint8_t
#include <span>       // for span
#include <string>     // for string, to_string
#include <vector>     // for vector

namespace gradlane {

/// What the ranks of a sharded reduction own.
enum class shard_by : std::uint8_t {
  elements,   ///< part r of W equal parts of each bucket; see bucket_options::pad_to
  parameters  ///< whole parameters, for optimizers that need them, such as LAMB
};

namespace detail {

/// Part `rank` of `ranks` equal parts of `count` elements.
[[nodiscard]] constexpr element_range equal_part(std::size_t count, int rank, int ranks) noexcept {
  auto const size  = count / static_cast<std::size_t>(ranks);
  auto const begin = static_cast<std::size_t>(rank) * size;
  return {.begin = begin, .end = begin + size};
}

/// @throws contract_error where a bucket does not fall into that many equal parts.
/// @param whom  "ranks", or which ones.
inline void check_parts(bucket_plan const& plan, std::size_t parts, std::string const& whom) {
  for (auto b = std::size_t{0}; b < plan.buckets().size(); ++b) {
    auto const count = plan.buckets()[b].count;
    if (count % parts == 0) { continue; }
    throw contract_error{"bucket " + std::to_string(b) + " has " + std::to_string(count) +
                         " elements, which are no equal parts for " + std::to_string(parts) + " " +
                         whom + "; set bucket_options::pad_to to a multiple of that"};
  }
}

}  // namespace detail

/// The parts of a plan's buckets that each rank owns. Pure: equal on all ranks.
///
/// A bucket's parts lie in it back to back, in rank order; they cover it, gaps included.
///
/// By whole parameters: buckets are gone through in the order of their largest parameters, largest
/// first. Each is cut between parameters, nearest to where it would fill up those ranks that own
/// least so far to one level, like water. So a rank owns, in all buckets together, at most 1/W of
/// the elements and one parameter more, and a bucket is spread over as many ranks as its parameters
/// and that balance allow: who owned it alone would receive from all others at once.
class bucket_parts {
 public:
  /// @throws contract_error by elements, where a bucket does not fall into equal parts.
  bucket_parts(bucket_plan const& plan, int ranks, shard_by by)
      : ranks_{static_cast<std::size_t>(ranks)} {
    if (by == shard_by::elements) { detail::check_parts(plan, ranks_, "ranks"); }
    for (auto const& layout : plan.buckets()) {
      for (auto r = 0; r < ranks; ++r) {
        counts_.push_back(by == shard_by::elements ? layout.count / ranks_ : 0);
      }
    }
    if (by == shard_by::parameters) { cut(plan); }
  }

  /// By rank: the elements of its part of a bucket.
  [[nodiscard]] std::span<std::size_t const> counts(std::size_t bucket) const {
    return std::span{counts_}.subspan(bucket * ranks_, ranks_);
  }

  [[nodiscard]] element_range part(std::size_t bucket, int rank) const {
    auto const all = counts(bucket);
    auto const own = static_cast<std::size_t>(rank);
    auto begin     = std::size_t{0};
    for (auto const count : all.first(own)) { begin += count; }
    return {.begin = begin, .end = begin + all[own]};
  }

 private:
  void cut(bucket_plan const& plan) {
    auto largest = std::vector<std::size_t>(plan.buckets().size());  // parameter of a bucket
    for (auto b = std::size_t{0}; b < largest.size(); ++b) {
      for (auto const p : plan.buckets()[b].parameters) {
        largest[b] = std::max(largest[b], plan.slot(p)->count);
      }
    }
    auto owned       = std::vector<double>(ranks_);  // elements, exactly
    auto const order = detail::sorted(detail::indices(largest.size()),
                                      [&](auto a, auto b) { return largest[a] > largest[b]; });
    for (auto const b : order) { cut(plan, b, owned); }
  }

  /// The level up to which `amount` fills those that own least.
  [[nodiscard]] static double level(std::vector<double> const& owned, double amount) {
    auto result = amount + *std::max_element(owned.begin(), owned.end());
    for (auto before = result + 1; result < before;) {
      before     = result;
      auto sum   = amount;
      auto below = 0.0;
      for (auto const own : owned) {
        if (own >= before) { continue; }
        sum += own;
        below += 1.0;
      }
      result = sum / below;
    }
    return result;
  }

  void cut(bucket_plan const& plan, std::size_t b, std::vector<double>& owned) {
    auto const& layout = plan.buckets()[b];
    auto const full    = level(owned, static_cast<double>(layout.payload));
    auto next          = std::size_t{0};  // parameter
    auto before        = 0.0;             // elements of the parameters before it
    auto begin         = std::size_t{0};  // of the rank's part
    auto wanted        = 0.0;             // elements up to the end of the rank's part
    for (auto r = std::size_t{0}; r < ranks_; ++r) {
      wanted += std::max(0.0, full - owned[r]);
      auto const last  = r + 1 == ranks_;
      auto const first = before;
      while (next < layout.parameters.size()) {
        auto const size = static_cast<double>(plan.slot(layout.parameters[next])->count);
        if (!last && std::abs(before + size - wanted) >= std::abs(before - wanted)) { break; }
        before += size;
        ++next;
      }
      owned[r] += before - first;
      auto const end = next < layout.parameters.size() ? plan.slot(layout.parameters[next])->offset
                                                       : layout.count;
      counts_[b * ranks_ + r] = end - begin;
      begin                   = end;
    }
  }

  std::size_t ranks_;
  std::vector<std::size_t> counts_;  // (buckets, ranks)
};

}  // namespace gradlane

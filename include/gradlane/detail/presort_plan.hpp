// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/balance/deal.hpp>       // for assignment, sample
#include <gradlane/detail/radix_sort.hpp>  // for radix_sort
#include <gradlane/sample_window.hpp>      // for array_rows, dealt_samples, sample_array

#include <cstddef>   // for size_t
#include <cstdint>   // for int32_t, uint32_t, uint64_t
#include <limits>    // for numeric_limits
#include <optional>  // for optional
#include <span>      // for span
#include <string>    // for string, to_string
#include <vector>    // for vector

// Which bytes of which sample go where: pure functions of what all ranks know.
namespace gradlane::detail {

/// The samples of all ranks in a window, back to back by rank.
struct group_samples {
  std::vector<balance::sample> samples{};
  std::vector<std::vector<std::uint32_t>> counts{};  // by counted array: of each sample
  std::vector<std::size_t> first{};                  // (ranks + 1) of each rank

  [[nodiscard]] std::size_t ranks() const noexcept { return first.size() - 1; }
};

/// Bytes of one array of one sample: at `from` in what they are taken from, at `to` in what takes
/// them.
struct sample_piece {
  std::size_t array;
  std::size_t from;
  std::size_t to;
  std::size_t bytes;
};

/// What a rank does with a window.
struct presort_plan {
  dealt_samples result;
  std::vector<std::vector<std::size_t>> first_row;  // of the result, by array: (batches + 1)
  std::vector<std::size_t> send;                    // bytes to each rank
  std::vector<std::size_t> receive;                 // bytes from each rank
  std::vector<sample_piece> outgoing;               // own arrays ▶ what is sent, rank by rank
  std::vector<sample_piece> kept;                   // own arrays ▶ result
  std::vector<sample_piece> incoming;               // what is received, rank by rank ▶ result
  std::size_t moved_samples{};                      // over all ranks
  std::uint64_t moved{};                            // bytes over all ranks
};

/// Makes the plan of one rank. All ranks make theirs from the same samples and assignment.
///
/// Part p = m · ranks + r of a step is rank r's micro-step m. What rank s sends to rank r are its
/// samples in the order in which r's batches want them, and of each sample all arrays.
class presort_planner {
 public:
  presort_planner(group_samples const& group,
                  balance::assignment const& dealt,
                  std::span<sample_array const> arrays,
                  std::size_t rank)
      : group_{group}, dealt_{dealt}, arrays_{arrays}, rank_{rank} {
    find_holders();
    find_counted();
  }

  [[nodiscard]] presort_plan plan() {
    auto result = presort_plan{};
    result.send.assign(group_.ranks(), 0);
    result.receive.assign(group_.ranks(), 0);
    count_bytes(result);
    place_own(result);
    place_outgoing(result);
    return result;
  }

  /// The first batch of any rank whose rows an int32 cannot count, as text.
  [[nodiscard]] std::optional<std::string> oversized_batch() const {
    constexpr auto most = static_cast<std::uint64_t>(std::numeric_limits<std::int32_t>::max());
    auto problem        = std::optional<std::string>{};
    for (auto step = std::size_t{0}; step < dealt_.steps() && !problem; ++step) {
      for (auto part = std::size_t{0}; part < dealt_.ranks() && !problem; ++part) {
        for (auto const& list : lists_) {
          auto sum = std::uint64_t{0};
          for (auto const i : dealt_.bin(step, part)) { sum += rows_in(list, i); }
          if (sum > most) {
            problem = "rank " + std::to_string(part % group_.ranks()) + " would have " +
                      std::to_string(sum) + " rows of '" + list.name + "' in step " +
                      std::to_string(step) + " of the window";
          }
        }
      }
    }
    return problem;
  }

 private:
  /// Rows that are counted up: of tokens, or of a counted array.
  struct row_list {
    std::string name;
    std::vector<std::uint32_t> const* counts{};  // null: lengths
  };

  void find_holders() {
    holder_.reserve(group_.samples.size());
    for (auto r = std::size_t{0}; r < group_.ranks(); ++r) {
      for (auto i = group_.first[r]; i < group_.first[r + 1]; ++i) { holder_.push_back(r); }
    }
  }

  void find_counted() {
    lists_.push_back({.name = "tokens"});
    for (auto const& array : arrays_) {
      auto list = std::size_t{0};
      if (array.rows == array_rows::counted) {
        list = lists_.size();
        lists_.push_back({.name = array.name, .counts = &group_.counts[list - 1]});
      }
      list_of_.push_back(array.rows == array_rows::per_sample ? none : list);
    }
  }

  [[nodiscard]] std::uint32_t rows_in(row_list const& list, std::size_t sample) const {
    return list.counts == nullptr ? group_.samples[sample].length : (*list.counts)[sample];
  }
  [[nodiscard]] std::size_t rows(std::size_t array, std::size_t sample) const {
    return list_of_[array] == none ? 1 : rows_in(lists_[list_of_[array]], sample);
  }
  [[nodiscard]] std::size_t bytes(std::size_t array, std::size_t sample) const {
    return rows(array, sample) * arrays_[array].row_bytes;
  }
  [[nodiscard]] std::size_t bytes(std::size_t sample) const {
    auto sum = std::size_t{0};
    for (auto a = std::size_t{0}; a < arrays_.size(); ++a) { sum += bytes(a, sample); }
    return sum;
  }
  [[nodiscard]] std::size_t micro_steps() const { return dealt_.ranks() / group_.ranks(); }

  /// Calls use(sample) for what a rank gets, batch by batch; end_batch() after each.
  template <class Use, class EndBatch>
  void for_each_of(std::size_t rank, Use use, EndBatch end_batch) const {
    for (auto step = std::size_t{0}; step < dealt_.steps(); ++step) {
      for (auto m = std::size_t{0}; m < micro_steps(); ++m) {
        for (auto const i : dealt_.bin(step, m * group_.ranks() + rank)) { use(std::size_t{i}); }
        end_batch();
      }
    }
  }

  void count_bytes(presort_plan& out) const {
    for (auto r = std::size_t{0}; r < group_.ranks(); ++r) {
      for_each_of(
          r,
          [&](std::size_t i) {
            auto const holder = holder_[i];
            if (holder == r) { return; }
            auto const size = bytes(i);
            ++out.moved_samples;
            out.moved += size;
            if (holder == rank_) { out.send[r] += size; }
            if (r == rank_) { out.receive[holder] += size; }
          },
          [] {});
    }
  }

  /// The result, and where each of its samples comes from.
  void place_own(presort_plan& out) const {
    auto const own     = own_offsets();
    auto received      = starts_of(out.receive);
    auto to            = std::vector<std::size_t>(arrays_.size());  // bytes so far
    auto row           = std::vector<std::size_t>(arrays_.size());  // rows so far
    auto filled        = std::vector<std::int32_t>(lists_.size());  // rows of the batch so far
    auto& result       = out.result;
    result.micro_steps = micro_steps();
    result.rows.assign(lists_.size(), {0});
    for (auto const list : list_of_) {
      result.rows_of.push_back(list == none ? lists_.size() : list);
    }
    out.first_row.assign(arrays_.size(), {0});
    for_each_of(
        rank_,
        [&](std::size_t i) {
          result.ids.push_back(group_.samples[i].id);
          result.lengths.push_back(group_.samples[i].length);
          for (auto l = std::size_t{0}; l < lists_.size(); ++l) {
            filled[l] += static_cast<std::int32_t>(rows_in(lists_[l], i));
            result.rows[l].push_back(filled[l]);
          }
          auto const holder = holder_[i];
          for (auto a = std::size_t{0}; a < arrays_.size(); ++a) {
            auto const size = bytes(a, i);
            if (holder == rank_) {
              out.kept.push_back({a, own[a][i - group_.first[rank_]], to[a], size});
            } else {
              out.incoming.push_back({a, received[holder], to[a], size});
              received[holder] += size;
            }
            to[a] += size;
            row[a] += rows(a, i);
          }
        },
        [&] {
          result.first.push_back(result.ids.size());
          for (auto& list : result.rows) { list.push_back(0); }  // where the next batch begins
          filled.assign(lists_.size(), 0);
          for (auto a = std::size_t{0}; a < arrays_.size(); ++a) {
            out.first_row[a].push_back(row[a]);
          }
        });
    for (auto& list : result.rows) { list.pop_back(); }
  }

  void place_outgoing(presort_plan& out) const {
    auto const own = own_offsets();
    auto to        = std::size_t{0};
    for (auto r = std::size_t{0}; r < group_.ranks(); ++r) {
      if (r == rank_) { continue; }
      for_each_of(
          r,
          [&](std::size_t i) {
            if (holder_[i] != rank_) { return; }
            for (auto a = std::size_t{0}; a < arrays_.size(); ++a) {
              auto const size = bytes(a, i);
              out.outgoing.push_back({a, own[a][i - group_.first[rank_]], to, size});
              to += size;
            }
          },
          [] {});
    }
  }

  /// Where each of this rank's own samples begins, by array, in bytes.
  [[nodiscard]] std::vector<std::vector<std::size_t>> own_offsets() const {
    auto result = std::vector<std::vector<std::size_t>>(arrays_.size());
    for (auto a = std::size_t{0}; a < arrays_.size(); ++a) {
      auto at = std::size_t{0};
      for (auto i = group_.first[rank_]; i < group_.first[rank_ + 1]; ++i) {
        result[a].push_back(at);
        at += bytes(a, i);
      }
    }
    return result;
  }

  [[nodiscard]] static std::vector<std::size_t> starts_of(std::vector<std::size_t> const& sizes) {
    auto result = std::vector<std::size_t>{};
    auto at     = std::size_t{0};
    for (auto const size : sizes) {
      result.push_back(at);
      at += size;
    }
    return result;
  }

  static constexpr std::size_t none = ~std::size_t{0};

  group_samples const& group_;
  balance::assignment const& dealt_;
  std::span<sample_array const> arrays_;
  std::size_t rank_;
  std::vector<std::size_t> holder_;   // by sample: the rank that submitted it
  std::vector<row_list> lists_;       // [0] tokens, then the counted arrays
  std::vector<std::size_t> list_of_;  // by array: into lists_; none: one row a sample
};

/// An id that occurs twice, with the ranks that submitted it, as text.
[[nodiscard]] inline std::optional<std::string> repeated_id(group_samples const& group) {
  auto order = std::vector<std::uint32_t>(group.samples.size());
  for (auto i = std::size_t{0}; i < order.size(); ++i) { order[i] = static_cast<std::uint32_t>(i); }
  auto const id = [&](std::uint32_t i) { return group.samples[i].id; };
  radix_sort(order, id);
  for (auto k = std::size_t{1}; k < order.size(); ++k) {
    if (id(order[k - 1]) != id(order[k])) { continue; }
    auto const holder = [&](std::uint32_t i) {
      auto r = std::size_t{0};
      while (group.first[r + 1] <= i) { ++r; }
      return std::to_string(r);
    };
    return "sample " + std::to_string(id(order[k])) + " was submitted twice, by rank " +
           holder(order[k - 1]) + " and by rank " + holder(order[k]);
  }
  return std::nullopt;
}

}  // namespace gradlane::detail

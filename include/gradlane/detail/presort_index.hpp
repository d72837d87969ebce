// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/balance/deal.hpp>           // for sample
#include <gradlane/buffer_view.hpp>            // for buffer_view
#include <gradlane/concepts.hpp>               // for communicator_for, device, timeout
#include <gradlane/detail/exchange.hpp>        // for upload_all
#include <gradlane/detail/failure.hpp>         // for failure
#include <gradlane/detail/fnv1a.hpp>           // for fnv1a
#include <gradlane/detail/leave_for_ever.hpp>  // for leave_for_ever
#include <gradlane/detail/presort_plan.hpp>    // for group_samples
#include <gradlane/error.hpp>                  // for contract_error, plan_mismatch_error
#include <gradlane/sample_window.hpp>          // for array_rows, sample_array, sample_window
#include <gradlane/types.hpp>                  // for dtype

#include <cstddef>          // for byte, size_t
#include <cstdint>          // for uint32_t, uint64_t
#include <optional>         // for optional
#include <source_location>  // for source_location
#include <span>             // for as_bytes, as_writable_bytes, span
#include <string>           // for string, to_string
#include <utility>          // for move
#include <vector>           // for vector

namespace gradlane::detail {

/// Whether a rank's window is what it says it is. The functions give what is wrong, as text.
class window_check {
 public:
  window_check(sample_window const& window,
               std::span<sample_array const> arrays,
               std::size_t rank,
               std::size_t ranks)
      : window_{window}, arrays_{arrays}, rank_{rank}, ranks_{ranks} {}

  [[nodiscard]] std::optional<std::string> find_fault() const {
    if (auto fault = index_fault()) { return fault; }
    if (auto fault = counts_fault()) { return fault; }
    auto counted = std::size_t{0};
    for (auto a = std::size_t{0}; a < arrays_.size(); ++a) {
      auto const rows = own_rows(arrays_[a].rows, counted);
      if (window_.arrays[a].size() != rows * arrays_[a].row_bytes) {
        return "array '" + arrays_[a].name + "' has " + number(window_.arrays[a].size()) +
               " bytes, " + number(rows) + " rows of " + number(arrays_[a].row_bytes) +
               " were said to be there";
      }
    }
    return std::nullopt;
  }

 private:
  [[nodiscard]] static std::string number(std::size_t n) { return std::to_string(n); }

  [[nodiscard]] std::optional<std::string> index_fault() const {
    auto const samples = window_.ids.size();
    if (window_.steps == 0) { return "a window needs at least one step"; }
    if (window_.lengths.size() != samples) {
      return "there are " + number(samples) + " ids and " + number(window_.lengths.size()) +
             " lengths";
    }
    if (window_.per_rank.empty()) { return std::nullopt; }
    if (window_.per_rank.size() != ranks_) {
      return "per_rank has " + number(window_.per_rank.size()) + " entries for " + number(ranks_) +
             " ranks";
    }
    for (auto const count : window_.per_rank) {  // else their sum might wrap around
      if (count > samples) {
        return "per_rank gives a rank " + number(count) + " samples, there are " + number(samples) +
               " ids";
      }
    }
    if (auto const sum = held_before(ranks_); sum != samples) {
      return "per_rank sums up to " + number(sum) + ", there are " + number(samples) + " ids";
    }
    return std::nullopt;
  }

  [[nodiscard]] std::optional<std::string> counts_fault() const {
    if (window_.arrays.size() != arrays_.size()) {
      return "there are " + number(window_.arrays.size()) + " arrays, the presort was made for " +
             number(arrays_.size());
    }
    auto counted = std::size_t{0};
    for (auto const& array : arrays_) { counted += array.rows == array_rows::counted ? 1 : 0; }
    if (window_.counts.size() != counted) {
      return "there are counts for " + number(window_.counts.size()) + " arrays, " +
             number(counted) + " are counted";
    }
    for (auto const& counts : window_.counts) {
      if (counts.size() != window_.ids.size()) {
        return "there are " + number(window_.ids.size()) + " ids and " + number(counts.size()) +
               " counts";
      }
    }
    return std::nullopt;
  }

  /// Samples of the ranks before one.
  [[nodiscard]] std::size_t held_before(std::size_t rank) const {
    auto sum = std::size_t{0};
    for (auto const count : window_.per_rank.first(rank)) { sum += count; }
    return sum;
  }

  /// Rows of an array of this rank's samples. @param counted  counted arrays so far
  [[nodiscard]] std::size_t own_rows(array_rows kind, std::size_t& counted) const {
    auto const shared = !window_.per_rank.empty();
    auto const begin  = shared ? held_before(rank_) : 0;
    auto const count  = shared ? window_.per_rank[rank_] : window_.ids.size();
    if (kind == array_rows::per_sample) { return count; }
    auto const each = kind == array_rows::per_token ? window_.lengths : window_.counts[counted++];
    auto sum        = std::size_t{0};
    for (auto const rows : each.subspan(begin, count)) { sum += rows; }
    return sum;
  }

  sample_window const& window_;
  std::span<sample_array const> arrays_;
  std::size_t rank_;
  std::size_t ranks_;
};

/// What each rank says of its window before anything else: words of 64 bits.
struct window_header {
  std::uint64_t number{};  // of the window
  std::uint64_t steps{};
  std::uint64_t is_wrong{};  // the rank's own samples or arrays do not fit together
  std::uint64_t shared{};    // hash of the index where it is shared; 0: it is not
  std::uint64_t samples{};   // of the rank

  static constexpr std::size_t words = 5;
};
static_assert(sizeof(window_header) == window_header::words * sizeof(std::uint64_t));

/// Tells every rank which samples all ranks have in a window: two small gathers, or, where a length
/// index is shared, one that makes sure that it is the same everywhere.
template <device Device, communicator_for<Device> Comm>
class presort_index {
 public:
  using stream = typename Device::stream;

  /// @param arrays  must outlive this.
  presort_index(Device& device, Comm& comm, std::vector<sample_array> const& arrays)
      : device_{device}, comm_{comm}, arrays_{arrays}, headers_(ranks()) {}

  /// Copies what the window says, and enqueues the gather of headers.
  void announce(stream& on, sample_window const& window, std::uint64_t number) {
    auto fault = window_check{window, arrays_, rank(), ranks()}.find_fault();
    fault_     = fault ? std::move(*fault) : std::string{};
    exchanged_ = 0;
    shared_    = !window.per_rank.empty();
    group_     = {};
    if (fault_.empty()) { take(window); }
    auto const own = window_header{.number   = number,
                                   .steps    = window.steps,
                                   .is_wrong = fault_.empty() ? 0U : 1U,
                                   .shared   = shared_ ? hash() : 0,
                                   .samples  = shared_ ? 0 : group_.samples.size()};
    fit(ranks() * sizeof(window_header));
    auto const all  = buffer_view{memory_.data(), ranks() * window_header::words, dtype::uint64};
    auto const mine = all.subview(rank() * window_header::words, window_header::words);
    upload_all(device_, on, std::as_bytes(std::span{&own, 1}), mine.data());
    gather(on, mine, all, {}, std::as_writable_bytes(std::span{headers_}));
  }

  /// Whether the gather under way is done; never blocks.
  [[nodiscard]] bool is_there() const { return device_.is_done(arrived_); }
  void sync(timeout deadline) { device_.sync(arrived_, deadline); }

  /// Once headers are there: the same on every rank, but for the text of who is at fault.
  [[nodiscard]] std::optional<failure> find_fault() const {
    auto const here     = std::source_location::current();
    auto const wrong_on = [&](std::size_t r, std::string const& how) {
      return failure::of<contract_error>("presort: the window of rank " + std::to_string(r) +
                                             " does not fit together" + how + "; nothing was moved",
                                         here);
    };
    if (!fault_.empty()) { return wrong_on(rank(), ": " + fault_); }
    for (auto r = std::size_t{0}; r < ranks(); ++r) {
      if (headers_[r].is_wrong != 0) { return wrong_on(r, ", its own error says how"); }
    }
    auto const differ = [&](char const* what, std::uint64_t window_header::* word) {
      auto problem = std::optional<failure>{};
      for (auto r = std::size_t{1}; r < ranks() && !problem; ++r) {
        if (headers_[r].*word == headers_[0].*word) { continue; }
        problem = failure::of<plan_mismatch_error>(
            "presort: ranks submitted different windows: " + std::string{what} + " is " +
                std::to_string(headers_[0].*word) + " on rank 0, " +
                std::to_string(headers_[r].*word) + " on rank " + std::to_string(r) +
                "; nothing was moved",
            here);
      }
      return problem;
    };
    if (auto problem = differ("its number", &window_header::number)) { return problem; }
    if (auto problem = differ("the number of steps", &window_header::steps)) { return problem; }
    return differ("the hash of the shared length index (0: none)", &window_header::shared);
  }

  /// Once headers are there and right: enqueues the gather of ids, lengths and counts.
  /// @return whether there is something to gather; else group() is there.
  [[nodiscard]] bool describe(stream& on) {
    if (shared_) { return false; }
    auto counts  = std::vector<std::size_t>{};
    auto before  = std::size_t{0};
    auto total   = std::size_t{0};
    group_.first = {0};
    for (auto r = std::size_t{0}; r < ranks(); ++r) {
      if (r == rank()) { before = total; }
      auto const samples = static_cast<std::size_t>(headers_[r].samples);
      group_.first.push_back(group_.first.back() + samples);
      total += counts.emplace_back(samples * words_each());
    }
    if (ranks() == 1) { return false; }
    if (total == 0) { return false; }
    auto const words = to_words();
    fit(total * sizeof(std::uint32_t));
    words_.resize(total);
    auto const all  = buffer_view{memory_.data(), total, dtype::uint32};
    auto const mine = all.subview(before, words.size());
    upload_all(device_, on, std::as_bytes(std::span{words}), mine.data());
    gather(on, mine, all, counts, std::as_writable_bytes(std::span{words_}));
    return true;
  }

  /// Once that gather is there: makes group() whole.
  void collect() {
    auto const total = group_.first.back();
    group_.samples.clear();
    for (auto& list : group_.counts) { list.clear(); }
    for (auto i = std::size_t{0}; i < total; ++i) {
      auto const* const w = words_.data() + i * words_each();
      group_.samples.push_back({.id = w[0] | std::uint64_t{w[1]} << 32U, .length = w[2]});
      for (auto c = std::size_t{0}; c < group_.counts.size(); ++c) {
        group_.counts[c].push_back(w[3 + c]);
      }
    }
  }

  [[nodiscard]] group_samples const& group() const noexcept { return group_; }

  /// Bytes that all ranks together received for this window.
  [[nodiscard]] std::uint64_t exchanged_bytes() const noexcept { return exchanged_; }

  void leave_memory() noexcept {
    leave_for_ever(memory_);
    leave_for_ever(headers_);
    leave_for_ever(words_);
  }

 private:
  [[nodiscard]] std::size_t rank() const noexcept { return static_cast<std::size_t>(comm_.rank()); }
  [[nodiscard]] std::size_t ranks() const noexcept {
    return static_cast<std::size_t>(comm_.size());
  }
  [[nodiscard]] std::size_t words_each() const noexcept { return 3 + group_.counts.size(); }

  void take(sample_window const& window) {
    group_.first = {0};
    for (auto const count : window.per_rank) {
      group_.first.push_back(group_.first.back() + count);
    }
    for (auto i = std::size_t{0}; i < window.ids.size(); ++i) {
      group_.samples.push_back({.id = window.ids[i], .length = window.lengths[i]});
    }
    for (auto const& list : window.counts) { group_.counts.emplace_back(list.begin(), list.end()); }
  }

  /// Never 0.
  [[nodiscard]] std::uint64_t hash() const {
    auto sum = fnv1a{};
    for (auto const first : group_.first) { sum.feed(std::uint64_t{first}); }
    for (auto const& s : group_.samples) {
      sum.feed(s.id);
      sum.feed(std::uint64_t{s.length});
    }
    for (auto const& list : group_.counts) {
      for (auto const count : list) { sum.feed(std::uint64_t{count}); }
    }
    return sum.value() | 1U;
  }

  [[nodiscard]] std::vector<std::uint32_t> to_words() const {
    auto words = std::vector<std::uint32_t>{};
    words.reserve(group_.samples.size() * words_each());
    for (auto i = std::size_t{0}; i < group_.samples.size(); ++i) {
      auto const& s = group_.samples[i];
      words.push_back(static_cast<std::uint32_t>(s.id));
      words.push_back(static_cast<std::uint32_t>(s.id >> 32U));
      words.push_back(s.length);
      for (auto const& list : group_.counts) { words.push_back(list[i]); }
    }
    return words;
  }

  void gather(stream& on,
              buffer_view mine,
              buffer_view all,
              std::vector<std::size_t> const& counts,
              std::span<std::byte> host) {
    if (counts.empty()) {
      comm_.all_gather(on, mine, all);
    } else {
      comm_.all_gather_v(on, mine, all, counts);
    }
    device_.download(on, all, host);
    device_.record(arrived_, on);
    exchanged_ += std::uint64_t{all.size_bytes()} * (ranks() - 1);
  }

  /// Nothing uses the memory of the window before any more.
  void fit(std::size_t bytes) {
    if (bytes > memory_.size()) { memory_ = device_.allocate(bytes + bytes / 8); }
  }

  Device& device_;
  Comm& comm_;
  std::vector<sample_array> const& arrays_;
  std::string fault_;  // of this rank's own window; empty: none
  bool shared_{false};
  std::uint64_t exchanged_{0};
  group_samples group_;
  std::vector<window_header> headers_;  // by rank; written by the stream
  std::vector<std::uint32_t> words_;    // of all samples; written by the stream
  typename Device::buffer memory_{device_.allocate(0)};
  typename Device::event arrived_{device_.make_event()};
};

}  // namespace gradlane::detail

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/buckets/parameter.hpp>      // for parameter
#include <gradlane/detail/fnv1a.hpp>           // for fnv1a
#include <gradlane/detail/sorted_indices.hpp>  // for indices, sorted
#include <gradlane/error.hpp>                  // for contract_error, expects
#include <gradlane/types.hpp>                  // for dtype, is_floating, name_of, size_of

#include <array>        // for array
#include <bit>          // for has_single_bit
#include <cstddef>      // for size_t
#include <cstdint>      // for uint64_t
#include <limits>       // for numeric_limits
#include <optional>     // for optional
#include <span>         // for span
#include <string>       // for string, to_string
#include <string_view>  // for string_view
#include <utility>      // for move
#include <vector>       // for vector

namespace gradlane {

/// How parameters are gathered into buckets. All ranks give the same values.
struct bucket_options {
  std::size_t cap_bytes{std::size_t{25} << 20U};       ///< of a bucket; at least 1
  std::size_t first_cap_bytes{std::size_t{1} << 20U};  ///< of the first, so that it starts early
  std::size_t alignment_bytes{256};  ///< of each gradient in its bucket; a power of two, >= 8
  std::size_t pad_to{1};             ///< bucket sizes are multiples of this many elements
};

/// Where a gradient lies: elements [offset, offset + count) of a bucket.
struct bucket_slot {
  std::size_t bucket{};
  std::size_t offset{};
  std::size_t count{};
};

/// One bucket: gradients of one dtype, reduced by one collective.
struct bucket_layout {
  dtype type{dtype::fp32};
  std::size_t count{};                    ///< elements, with alignment gaps and padding
  std::size_t payload{};                  ///< elements of gradients alone
  std::size_t marks{};                    ///< ready() calls that complete it in a step
  std::vector<std::size_t> parameters{};  ///< owners of the slots, in the order of their offsets
};

/// Assigns gradients to buckets in the order in which backward completes them.
///
/// The order is the reverse of the forward order given, or one that was observed. Each dtype fills
/// buckets of its own; a bucket is closed when the next gradient would exceed the cap, so one
/// larger than the cap stands alone. Buckets are numbered in the order of their completion. Tied
/// parameters share the slot of the one they are tied to, complete at the last mark of them all.
/// Frozen and empty parameters have no slot. Pure: equal input gives an equal plan on all ranks.
class bucket_plan {
 public:
  /// @param parameters  in forward order.
  /// @throws contract_error for an empty or repeated name, a dtype that is not floating, no uses,
  ///   a tie to an unknown, tied or different parameter, sizes that overflow, bad options.
  explicit bucket_plan(std::vector<parameter> parameters, bucket_options options = {})
      : parameters_{std::move(parameters)}, options_{options} {
    check_options();
    check_parameters();
    build(reverse_order());
  }

  /// The same parameters and options, in an order that was observed.
  /// @param completion_order  every parameter that owns a slot, once.
  /// @throws contract_error where it is not that.
  [[nodiscard]] bucket_plan reordered(std::span<std::size_t const> completion_order) const {
    auto seen       = std::vector<bool>(parameters_.size());
    auto const owns = [&](std::size_t i) {
      return i < parameters_.size() && slots_[i] && owners_[i] == i;
    };
    for (auto const owner : completion_order) {
      expects(owns(owner) && !seen[owner],
              "bucket_plan: a completion order names each parameter that owns a slot once");
      seen[owner] = true;
    }
    expects(completion_order.size() == order_.size(),
            "bucket_plan: a completion order names every parameter that owns a slot");
    auto copy = *this;
    copy.build(completion_order);
    return copy;
  }

  [[nodiscard]] std::span<parameter const> parameters() const noexcept {
    return {parameters_.data(), parameters_.size()};
  }
  [[nodiscard]] std::span<bucket_layout const> buckets() const noexcept {
    return {buckets_.data(), buckets_.size()};
  }
  [[nodiscard]] bucket_options const& options() const noexcept { return options_; }

  /// The order in which gradients are expected to be complete, as indices of slot owners: with the
  /// parameters and options it is the whole plan, so that a checkpoint may keep it.
  [[nodiscard]] std::span<std::size_t const> completion_order() const noexcept {
    return {order_.data(), order_.size()};
  }

  /// Elements of all gradients, tied ones once.
  [[nodiscard]] std::size_t payload() const noexcept {
    auto sum = std::size_t{0};
    for (auto const& bucket : buckets_) { sum += bucket.payload; }
    return sum;
  }

  /// The slot of a parameter: none for frozen and empty ones, the owner's for tied ones.
  /// @throws contract_error for an index that no parameter has.
  [[nodiscard]] std::optional<bucket_slot> const& slot(std::size_t parameter) const {
    check_index(parameter);
    return slots_[parameter];
  }

  /// The parameter whose slot `parameter` uses: itself unless it is tied.
  [[nodiscard]] std::size_t owner(std::size_t parameter) const {
    check_index(parameter);
    return owners_[parameter];
  }

  /// @throws contract_error for a name that no parameter has.
  [[nodiscard]] std::size_t index_of(std::string_view name) const {
    if (auto const found = find(name)) { return *found; }
    throw contract_error{"bucket_plan: no parameter is named '" + std::string{name} + "'"};
  }

  /// @throws contract_error, naming the index and the count, for an index that no parameter has.
  void check_index(std::size_t parameter) const {
    if (parameter >= parameters_.size()) {
      throw contract_error{"bucket_plan: parameter " + std::to_string(parameter) +
                           " does not exist; there are " + std::to_string(parameters_.size())};
    }
  }

  /// What ranks must agree on for one parameter, as a line to compare and to show.
  [[nodiscard]] std::string signature(std::size_t parameter) const {
    check_index(parameter);
    auto const& p = parameters_[parameter];
    auto text     = quoted(p.name) + " " + std::to_string(p.count) + " x " +
                std::string{name_of(p.type)} + ", uses " + std::to_string(p.uses);
    if (!p.trainable) { text += ", frozen"; }
    if (!p.tied_to.empty()) { text += ", tied to '" + p.tied_to + "'"; }
    return text;
  }

  /// The caps, alignment and padding, as text.
  [[nodiscard]] std::string describe_options() const {
    return "cap " + std::to_string(options_.cap_bytes) + " B, first cap " +
           std::to_string(options_.first_cap_bytes) + " B, alignment " +
           std::to_string(options_.alignment_bytes) + " B, padded to a multiple of " +
           std::to_string(options_.pad_to);
  }

  /// 64-bit FNV-1a over all signatures, slots, the options and `policy`.
  [[nodiscard]] std::uint64_t hash(std::string_view policy = {}) const {
    auto sum = detail::fnv1a{};
    for (auto i = std::size_t{0}; i < parameters_.size(); ++i) {
      sum.feed(signature(i));
      if (auto const& s = slots_[i]) {
        sum.feed(std::to_string(s->bucket) + ":" + std::to_string(s->offset));
      }
    }
    sum.feed(describe_options());
    sum.feed(policy);
    return sum.value();
  }

  /// A table of the buckets for people.
  [[nodiscard]] std::string describe() const {
    auto text = "bucket_plan: " + std::to_string(buckets_.size()) + " buckets, " +
                std::to_string(parameters_.size()) + " parameters, " + std::to_string(payload()) +
                " elements (" + describe_options() + ")\n";
    for (auto b = std::size_t{0}; b < buckets_.size(); ++b) {
      auto const& bucket = buckets_[b];
      text += "  bucket " + std::to_string(b) + ": " + std::to_string(bucket.payload) + " x " +
              std::string{name_of(bucket.type)} + ", " +
              std::to_string(bucket.count * size_of(bucket.type)) + " B, " + name_list(b) + "\n";
    }
    return text;
  }

  /// The parameters of a bucket, for messages: "'a'" or "'a' ... 'z' (5 parameters)".
  [[nodiscard]] std::string name_list(std::size_t bucket) const {
    auto const& held = buckets_.at(bucket).parameters;
    auto text        = quoted(parameters_[held.front()].name);
    if (held.size() > 1) {
      text += " ... '" + parameters_[held.back()].name + "' (" + std::to_string(held.size()) +
              " parameters)";
    }
    return text;
  }

 private:
  [[nodiscard]] static std::string quoted(std::string const& name) {
    return std::string{"'"}.append(name).append("'");
  }

  [[nodiscard]] static std::size_t round_up(std::size_t value, std::size_t multiple) noexcept {
    return (value + multiple - 1) / multiple * multiple;
  }

  void check_options() const {
    expects(options_.cap_bytes > 0 && options_.first_cap_bytes > 0,
            "bucket_plan: cap_bytes and first_cap_bytes must be at least 1");
    constexpr auto most = std::size_t{1} << 30U;  // so that no size overflows
    expects(std::has_single_bit(options_.alignment_bytes) && options_.alignment_bytes >= 8 &&
                options_.alignment_bytes <= most,
            "bucket_plan: alignment_bytes must be a power of two from 8 to 2^30");
    expects(options_.pad_to > 0 && options_.pad_to <= most,
            "bucket_plan: pad_to must be from 1 to 2^30");
  }

  /// Fills by_name_ and owners_ too.
  void check_parameters() {
    constexpr auto limit = std::numeric_limits<std::size_t>::max() >> 8U;
    auto total           = std::size_t{0};
    for (auto i = std::size_t{0}; i < parameters_.size(); ++i) {
      auto const& p = parameters_[i];
      if (p.name.empty()) { refuse(i, "has no name"); }
      if (!is_floating(p.type)) {
        refuse(i,
               "is " + std::string{name_of(p.type)} + "; gradients are fp32, fp64, bf16 or fp16");
      }
      if (p.uses == 0) { refuse(i, "has uses 0; say trainable = false where no gradient comes"); }
      if (p.count > limit - total) { refuse(i, "makes the sum of all counts overflow"); }
      total += p.count;
    }
    sort_names();
    for (auto const& p : parameters_) { owners_.push_back(owner_of(p)); }
  }

  [[noreturn]] void refuse(std::size_t i, std::string const& why) const {
    throw contract_error{"bucket_plan: parameter " + std::to_string(i) + " '" +
                         parameters_[i].name + "' " + why};
  }

  void sort_names() {
    by_name_ = detail::sorted(
        detail::indices(parameters_.size()),
        [&](std::size_t a, std::size_t b) { return parameters_[a].name < parameters_[b].name; });
    for (auto k = std::size_t{1}; k < by_name_.size(); ++k) {
      if (parameters_[by_name_[k]].name != parameters_[by_name_[k - 1]].name) { continue; }
      refuse(by_name_[k], "has the same name as parameter " + std::to_string(by_name_[k - 1]));
    }
  }

  [[nodiscard]] std::optional<std::size_t> find(std::string_view name) const {
    auto first = std::size_t{0};
    auto last  = by_name_.size();
    while (first < last) {
      auto const middle = first + (last - first) / 2;
      auto const order  = name.compare(parameters_[by_name_[middle]].name);
      if (order == 0) { return by_name_[middle]; }
      if (order < 0) {
        last = middle;
      } else {
        first = middle + 1;
      }
    }
    return std::nullopt;
  }

  /// The index of the parameter whose slot `p` uses.
  [[nodiscard]] std::size_t owner_of(parameter const& p) const {
    if (p.tied_to.empty()) { return *find(p.name); }
    auto const fail = [&](std::string const& what) {
      throw contract_error{"bucket_plan: '" + p.name + "' is tied to '" + p.tied_to + "', " + what};
    };
    auto const found = find(p.tied_to);
    if (!found) { fail("which does not exist"); }
    auto const& other = parameters_[*found];
    if (!other.tied_to.empty()) { fail("which is tied itself; tie all to one parameter"); }
    if (other.count != p.count || other.type != p.type || other.trainable != p.trainable) {
      fail("which differs in count, dtype or trainable");
    }
    return *found;
  }

  /// Slot owners by the reverse of the forward order; tied ones stand where their first use in
  /// forward does, since backward completes them there.
  [[nodiscard]] std::vector<std::size_t> reverse_order() const {
    auto order = std::vector<std::size_t>{};
    auto seen  = std::vector<bool>(parameters_.size());
    for (auto i = std::size_t{0}; i < parameters_.size(); ++i) {
      auto const& p = parameters_[i];
      if (seen[owners_[i]] || !p.trainable || p.count == 0) { continue; }
      seen[owners_[i]] = true;
      order.push_back(owners_[i]);
    }
    return {order.rbegin(), order.rend()};
  }

  void build(std::span<std::size_t const> completion_order) {
    order_.assign(completion_order.begin(), completion_order.end());
    buckets_.clear();
    slots_.assign(parameters_.size(), std::nullopt);
    auto open      = std::array<std::optional<std::size_t>, 4>{};  // by dtype: index of a bucket
    auto completed = std::vector<std::size_t>{};  // by bucket: position of its last gradient
    for (auto position = std::size_t{0}; position < completion_order.size(); ++position) {
      auto const owner = completion_order[position];
      auto const& p    = parameters_[owner];
      auto const width = size_of(p.type);
      auto& current    = open.at(static_cast<std::size_t>(p.type));
      auto offset      = std::size_t{0};
      if (current) {
        auto const cap = *current == 0 ? options_.first_cap_bytes : options_.cap_bytes;
        offset         = round_up(buckets_[*current].count, options_.alignment_bytes / width);
        if ((offset + p.count) * width > cap) { current.reset(); }
      }
      if (!current) {
        current = buckets_.size();
        offset  = 0;
        buckets_.push_back({.type = p.type});
        completed.push_back(position);
      }
      auto& bucket = buckets_[*current];
      bucket.count = offset + p.count;
      bucket.payload += p.count;
      bucket.parameters.push_back(owner);
      completed[*current] = position;
      slots_[owner]       = bucket_slot{.bucket = *current, .offset = offset, .count = p.count};
    }
    number_by_completion(completed);
    for (auto& bucket : buckets_) { bucket.count = round_up(bucket.count, options_.pad_to); }
    for (auto i = std::size_t{0}; i < parameters_.size(); ++i) {
      slots_[i] = slots_[owners_[i]];
      if (slots_[i]) { buckets_[slots_[i]->bucket].marks += parameters_[i].uses; }
    }
  }

  void number_by_completion(std::span<std::size_t const> completed) {
    auto const order =
        detail::sorted(detail::indices(buckets_.size()),
                       [&](std::size_t a, std::size_t b) { return completed[a] < completed[b]; });
    auto sorted = std::vector<bucket_layout>{};
    for (auto const old : order) {
      for (auto const owner : buckets_[old].parameters) { slots_[owner]->bucket = sorted.size(); }
      sorted.push_back(std::move(buckets_[old]));
    }
    buckets_ = std::move(sorted);
  }

  std::vector<parameter> parameters_;
  bucket_options options_;
  std::vector<std::size_t> by_name_;               // indices of parameters, sorted by name
  std::vector<std::size_t> owners_;                // by parameter
  std::vector<std::optional<bucket_slot>> slots_;  // by parameter
  std::vector<std::size_t> order_;                 // slot owners as they become complete
  std::vector<bucket_layout> buckets_;
};

}  // namespace gradlane

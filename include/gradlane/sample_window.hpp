// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/error.hpp>  // for contract_error, expects

#include <cstddef>          // for byte, size_t
#include <cstdint>          // for int32_t, uint8_t, uint32_t, uint64_t
#include <source_location>  // for source_location
#include <span>             // for span
#include <string>           // for string, to_string
#include <string_view>      // for string_view
#include <type_traits>      // for is_trivially_copyable_v
#include <utility>          // for move
#include <vector>           // for vector

namespace gradlane {

/// How many rows of an array belong to a sample.
enum class array_rows : std::uint8_t {
  per_token,   ///< as many as it has tokens: token ids, segments
  per_sample,  ///< one: a label
  counted,     ///< as many as a count says that goes with it: masked positions
};

[[nodiscard]] constexpr std::string_view name_of(array_rows rows) noexcept {
  switch (rows) {
    case array_rows::per_token:
      return "per token";
    case array_rows::per_sample:
      return "per sample";
    case array_rows::counted:
      return "counted";
  }
  return "unknown";
}

/// What samples consist of: one of the arrays that move with them.
struct sample_array {
  std::string name;
  std::size_t row_bytes{};
  array_rows rows{array_rows::per_token};
};

/// An array whose rows are `width` elements of T.
template <class T>
[[nodiscard]] sample_array array_of(std::string name,
                                    array_rows rows   = array_rows::per_token,
                                    std::size_t width = 1) {
  static_assert(std::is_trivially_copyable_v<T>, "array_of: samples are moved as bytes");
  return {.name = std::move(name), .row_bytes = width * sizeof(T), .rows = rows};
}

/// The samples of the next steps, as a rank submits them to a presort.
struct sample_window {
  std::size_t steps{1};                      ///< to deal them to; the same on all ranks
  std::span<std::uint64_t const> ids{};      ///< (n) numbers of their own, over all ranks
  std::span<std::uint32_t const> lengths{};  ///< (n) tokens; 0 is legal
  /// One list a `counted` array, in their order: (n) rows of each sample.
  std::vector<std::span<std::uint32_t const>> counts{};
  /// Where a length index is shared: how many samples each rank holds. `ids`, `lengths` and
  /// `counts` are then those of all ranks, back to back by rank, the same on all of them, and are
  /// not exchanged. Empty: they are of this rank's samples.
  std::span<std::size_t const> per_rank{};
  /// This rank's samples, by array: its rows, sample after sample, in device memory.
  std::vector<std::span<std::byte const>> arrays{};
};

namespace detail {

/// A rank's part of a dealt window: samples batch by batch, on the host. Batch
/// b = step · micro_steps + micro_step has the samples [first[b], first[b + 1]).
struct dealt_samples {
  std::size_t micro_steps{1};
  std::vector<std::size_t> first{0};              // (batches + 1)
  std::vector<std::uint64_t> ids{};               // (n)
  std::vector<std::uint32_t> lengths{};           // (n)
  std::vector<std::vector<std::int32_t>> rows{};  // (n + batches) cumulative rows, from 0 in each
                                                  // batch: [0] of tokens, then of counted arrays
  std::vector<std::size_t> rows_of{};             // by array: into rows; per_sample: rows.size()

  /// None also in what was moved from.
  [[nodiscard]] std::size_t batches() const noexcept {
    return first.empty() ? 0 : first.size() - 1;
  }
};

/// Where the same lies in device memory.
struct dealt_memory {
  std::uint64_t* ids{};                               // (n)
  std::vector<std::int32_t*> rows{};                  // (n + batches), as above
  std::vector<std::byte*> arrays{};                   // batch by batch
  std::vector<std::size_t> row_bytes{};               // by array
  std::vector<std::vector<std::size_t>> first_row{};  // by array: (batches + 1)
};

}  // namespace detail

/// A rank's samples of one micro-step, without padding: sample after sample.
///
/// Cumulative lengths are int32, as attention kernels take them: what they cannot count is refused.
/// A view: valid as long as the presorted_window that it is of.
class presorted_batch {
 public:
  presorted_batch(detail::dealt_samples const& samples,
                  detail::dealt_memory const& memory,
                  std::size_t batch) noexcept
      : samples_{&samples}, memory_{&memory}, batch_{batch} {}

  [[nodiscard]] std::size_t size() const noexcept { return first(1) - first(0); }
  [[nodiscard]] bool empty() const noexcept { return size() == 0; }
  [[nodiscard]] std::size_t tokens() const noexcept {
    return static_cast<std::size_t>(starts().back());
  }

  // --- in host memory

  /// (size) global ids, longest sample first.
  [[nodiscard]] std::span<std::uint64_t const> ids() const noexcept {
    return {samples_->ids.data() + first(0), size()};
  }
  /// (size + 1) cumulative lengths: 0 … tokens().
  [[nodiscard]] std::span<std::int32_t const> starts() const noexcept { return rows(0); }
  /// (size + 1) cumulative rows of an array that is per token or counted.
  [[nodiscard]] std::span<std::int32_t const> row_starts(std::size_t array) const {
    return rows(list_of(array));
  }

  // --- in device memory, in stream order

  /// The rows of an array, which may be written to.
  /// @throws contract_error where rows are not made of Ts.
  template <class T>
  [[nodiscard]] std::span<T> array(
      std::size_t index, std::source_location at = std::source_location::current()) const {
    static_assert(std::is_trivially_copyable_v<T>, "array: samples were moved as bytes");
    expects(index < memory_->arrays.size(), "presorted_batch: no such array", at);
    auto const row = memory_->row_bytes[index];
    if (row % sizeof(T) != 0) {
      throw contract_error{"presorted_batch: rows of array " + std::to_string(index) + " have " +
                               std::to_string(row) + " bytes, elements asked for " +
                               std::to_string(sizeof(T)),
                           at};
    }
    auto const& rows = memory_->first_row[index];
    auto* const data = memory_->arrays[index] + rows[batch_] * row;
    return {reinterpret_cast<T*>(data), (rows[batch_ + 1] - rows[batch_]) * row / sizeof(T)};
  }
  [[nodiscard]] std::span<std::uint64_t> device_ids() const noexcept {
    return {memory_->ids + first(0), size()};
  }
  [[nodiscard]] std::span<std::int32_t> device_starts() const noexcept { return device_rows(0); }
  [[nodiscard]] std::span<std::int32_t> device_row_starts(std::size_t array) const {
    return device_rows(list_of(array));
  }

 private:
  [[nodiscard]] std::size_t first(std::size_t more) const noexcept {
    return samples_->first[batch_ + more];
  }
  [[nodiscard]] std::span<std::int32_t const> rows(std::size_t list) const noexcept {
    return {samples_->rows[list].data() + first(0) + batch_, size() + 1};
  }
  [[nodiscard]] std::span<std::int32_t> device_rows(std::size_t list) const noexcept {
    return {memory_->rows[list] + first(0) + batch_, size() + 1};
  }
  [[nodiscard]] std::size_t list_of(std::size_t array) const {
    expects(array < samples_->rows_of.size() && samples_->rows_of[array] < samples_->rows.size(),
            "presorted_batch: row_starts is of arrays that are per token or counted");
    return samples_->rows_of[array];
  }

  detail::dealt_samples const* samples_;
  detail::dealt_memory const* memory_;
  std::size_t batch_;
};

/// What moved for a window. Bytes are those of rows, and of what says which samples there are.
struct presort_traffic {
  std::size_t samples{};        ///< of all ranks
  std::size_t moved_samples{};  ///< that changed owner, over all ranks
  std::uint64_t sent{};         ///< bytes that this rank sent of its samples
  std::uint64_t moved{};        ///< the same over all ranks
  std::uint64_t described{};    ///< bytes of lengths, ids and counts that all ranks received
};

/// A rank's part of a window that a presort has dealt: numbers of its own, and views of the
/// presort's device memory, which end when the window is released.
class presorted_window {
 public:
  /// Empty.
  presorted_window() = default;
  presorted_window(detail::dealt_samples samples,
                   detail::dealt_memory memory,
                   presort_traffic const& traffic)
      : samples_{std::move(samples)}, memory_{std::move(memory)}, traffic_{traffic} {}

  /// As many as the window's steps.
  [[nodiscard]] std::size_t steps() const noexcept {
    return samples_.batches() / samples_.micro_steps;
  }
  [[nodiscard]] std::size_t micro_steps() const noexcept { return samples_.micro_steps; }

  /// @throws contract_error where there is no such step or micro-step.
  [[nodiscard]] presorted_batch batch(
      std::size_t step,
      std::size_t micro_step  = 0,
      std::source_location at = std::source_location::current()) const {
    expects(step < steps() && micro_step < micro_steps(),
            "presorted_window: no such step or micro-step",
            at);
    return {samples_, memory_, step * micro_steps() + micro_step};
  }

  [[nodiscard]] presort_traffic const& traffic() const noexcept { return traffic_; }

 private:
  detail::dealt_samples samples_;
  detail::dealt_memory memory_;
  presort_traffic traffic_;
};

}  // namespace gradlane

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../batch.hpp"       // for batch
#include "../errors.hpp"      // for input_error
#include "sample_source.hpp"  // for make_batch, sample_source

#include <gradlane/concepts.hpp>       // for device
#include <gradlane/host/device.hpp>    // for device
#include <gradlane/sample_window.hpp>  // for array_of, presorted_batch, sample_array, sample_window
#include <gradlane/types.hpp>          // for dtype

#include <algorithm>  // for copy, fill
#include <cstddef>    // for byte, size_t
#include <cstdint>    // for int32_t, uint32_t, uint64_t
#include <span>       // for as_bytes, as_writable_bytes, span
#include <string>     // for to_string
#include <vector>     // for vector

namespace bert {

/// A sample as a presort moves it: three arrays of a row a token, and one of a row a sample.
enum sample_part : std::size_t { tokens, segments, labels, next };

/// No label: the token is not to be predicted.
inline constexpr auto no_label = std::int32_t{-1};

[[nodiscard]] inline std::vector<gradlane::sample_array> sample_parts() {
  using gradlane::array_of;
  return {array_of<std::int32_t>("tokens"),
          array_of<std::int32_t>("segments"),
          array_of<std::int32_t>("labels"),
          array_of<std::int32_t>("next", gradlane::array_rows::per_sample)};
}

/// Copies a batch of what a presort gave a rank to the host, behind the work on `stream`. Blocks.
template <gradlane::device Device>
[[nodiscard]] batch sync_to_batch(Device& device,
                                  typename Device::stream& stream,
                                  gradlane::presorted_batch const& dealt) {
  auto result = batch{};
  if (dealt.empty()) { return result; }
  auto known         = std::vector<std::int32_t>{};
  auto const copy_of = [&](sample_part part, std::vector<std::int32_t>& to) {
    auto const from = dealt.array<std::int32_t>(part);
    to.resize(from.size());
    device.download(
        stream,
        {reinterpret_cast<std::byte*>(from.data()), from.size_bytes(), gradlane::dtype::uint8},
        std::as_writable_bytes(std::span{to}));
  };
  copy_of(tokens, result.tokens);
  copy_of(segments, result.segments);
  copy_of(labels, known);
  copy_of(next, result.next);
  device.sync(stream);
  result.starts.assign(dealt.starts().begin(), dealt.starts().end());
  for (auto const id : dealt.ids()) { result.samples.push_back(static_cast<std::uint32_t>(id)); }
  for (auto row = std::size_t{0}; row < known.size(); ++row) {
    if (known[row] == no_label) { continue; }
    result.predicted.push_back(static_cast<std::int32_t>(row));
    result.labels.push_back(known[row]);
  }
  return result;
}

/// Reads this rank's part of a window, as one does who has files of its own, on a stream of its
/// own, so that training goes on meanwhile. Holds one window at a time.
class window_reader {
 public:
  window_reader(sample_source const& data,
                gradlane::host::device& lane,
                std::size_t rank,
                std::size_t ranks)
      : data_{data}, lane_{lane}, rank_{rank}, ranks_{ranks}, stream_{lane.make_stream()} {}

  /// Begins to read: rank r's part is the r-th of equal ones. What is read is there, and the
  /// window's lists valid, until the next call, before which the window must have been taken.
  /// @param samples  of all ranks, by number.
  [[nodiscard]] gradlane::sample_window begin(std::span<std::uint32_t const> samples,
                                              std::uint32_t epoch,
                                              std::size_t steps) {
    make_index(samples);
    auto const begin = samples.size() * rank_ / ranks_;
    auto const end   = samples.size() * (rank_ + 1) / ranks_;
    own_.assign(samples.begin() + static_cast<std::ptrdiff_t>(begin),
                samples.begin() + static_cast<std::ptrdiff_t>(end));
    auto count = std::size_t{0};
    for (auto i = begin; i < end; ++i) { count += lengths_[i]; }
    tokens_.resize(count);
    segments_.resize(count);
    labels_.resize(count);
    next_.resize(own_.size());
    lane_.enqueue(stream_, [this, epoch] { read(epoch); });
    return {.steps    = steps,
            .ids      = ids_,
            .lengths  = lengths_,
            .per_rank = per_rank_,
            .arrays   = {std::as_bytes(std::span{tokens_}),
                         std::as_bytes(std::span{segments_}),
                         std::as_bytes(std::span{labels_}),
                         std::as_bytes(std::span{next_})}};
  }

  /// On which it reads.
  [[nodiscard]] gradlane::host::stream& stream() { return stream_; }

 private:
  /// Every rank can tell the length of every sample without reading it.
  void make_index(std::span<std::uint32_t const> samples) {
    ids_.assign(samples.begin(), samples.end());
    lengths_.clear();
    for (auto const sample : samples) {
      lengths_.push_back(static_cast<std::uint32_t>(data_.length(sample)));
    }
    per_rank_.clear();
    for (auto r = std::size_t{0}; r < ranks_; ++r) {
      per_rank_.push_back(samples.size() * (r + 1) / ranks_ - samples.size() * r / ranks_);
    }
  }

  void read(std::uint32_t epoch) {
    auto const all = make_batch(data_, own_, epoch);
    if (all.tokens.size() != tokens_.size()) {
      throw input_error{"the samples have " + std::to_string(all.tokens.size()) +
                        " tokens, their lengths add up to " + std::to_string(tokens_.size())};
    }
    std::copy(all.tokens.begin(), all.tokens.end(), tokens_.begin());
    std::copy(all.segments.begin(), all.segments.end(), segments_.begin());
    std::copy(all.next.begin(), all.next.end(), next_.begin());
    std::fill(labels_.begin(), labels_.end(), no_label);
    for (auto p = std::size_t{0}; p < all.predicted.size(); ++p) {
      labels_[static_cast<std::size_t>(all.predicted[p])] = all.labels[p];
    }
  }

  sample_source const& data_;
  gradlane::host::device& lane_;
  std::size_t rank_;
  std::size_t ranks_;
  std::vector<std::uint64_t> ids_;      // of all ranks
  std::vector<std::uint32_t> lengths_;  // of all ranks
  std::vector<std::size_t> per_rank_;
  std::vector<std::uint32_t> own_;      // samples of this rank's part
  std::vector<std::int32_t> tokens_;    // (T) of them, written by the stream
  std::vector<std::int32_t> segments_;  // (T)
  std::vector<std::int32_t> labels_;    // (T) no_label where nothing is predicted
  std::vector<std::int32_t> next_;      // (B)
  gradlane::host::stream stream_;       // last: drains first
};

}  // namespace bert

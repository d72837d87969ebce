// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../model.hpp"  // for losses

#include <gradlane/buffer_view.hpp>  // for buffer_view
#include <gradlane/concepts.hpp>     // for timeout
#include <gradlane/error.hpp>        // for expects
#include <gradlane/host/device.hpp>  // for device
#include <gradlane/types.hpp>        // for reduction

#include <algorithm>  // for copy, max
#include <array>      // for array
#include <cstddef>    // for size_t
#include <memory>     // for make_unique, unique_ptr
#include <span>       // for span
#include <utility>    // for move

namespace bert {

/// Means over all that all ranks computed.
struct mean_losses {
  double masked_lm              = 0;
  double masked_lm_accuracy     = 0;
  double next_sentence          = 0;
  double next_sentence_accuracy = 0;
  std::size_t predictions       = 0;
};

/// Sums of at most `capacity` numbers over the ranks, beside the gradients: blocking, in fp64.
///
/// A rank that does not come in time makes the call throw timeout_error, and all that follow fail.
template <class Comm>
class rank_totals {
 public:
  static constexpr std::size_t capacity = 8;

  /// @param comm  of its own, since the pipeline keeps the gradients' to itself.
  /// @param patience  with other ranks.
  rank_totals(gradlane::host::device& lane, Comm comm, gradlane::timeout patience)
      : lane_{lane}, comm_{std::move(comm)}, stream_{lane.make_stream()} {
    comm_.set_deadline(patience);
  }

  void sync_sum(std::span<double> values) { reduce(values, gradlane::reduction::sum); }
  void sync_max(std::span<double> values) { reduce(values, gradlane::reduction::max); }

  /// No rank goes on before all have come here.
  void sync_meet() {
    auto nothing = std::array{0.0};
    sync_sum(nothing);
  }

  /// Losses as sums over ranks, divided by the counts over ranks: never a mean of means.
  [[nodiscard]] mean_losses sync_mean(losses const& own) {
    auto sums = std::array{own.masked_lm,
                           static_cast<double>(own.predictions),
                           static_cast<double>(own.correct),
                           own.next_sentence,
                           static_cast<double>(own.sequences),
                           static_cast<double>(own.next_correct)};
    sync_sum(sums);
    auto const [masked_lm, predictions, correct, next, sequences, next_correct] = sums;
    auto const each = std::max(predictions, 1.0);
    auto const pair = std::max(sequences, 1.0);
    return {.masked_lm              = masked_lm / each,
            .masked_lm_accuracy     = correct / each,
            .next_sentence          = next / pair,
            .next_sentence_accuracy = next_correct / pair,
            .predictions            = static_cast<std::size_t>(predictions)};
  }

 private:
  void reduce(std::span<double> values, gradlane::reduction operation) {
    gradlane::expects(values.size() <= capacity, "rank_totals: too many numbers");
    auto const shared = std::span{memory_->data(), values.size()};
    std::ranges::copy(values, shared.begin());
    try {
      comm_.all_reduce(stream_, shared, shared, operation);
      lane_.sync(stream_);
    } catch (...) {
      comm_.abort();
      if constexpr (Comm::capabilities.writes_after_failure) {
        static_cast<void>(memory_.release());  // which may still be written to
        memory_ = std::make_unique<numbers>();
      }
      throw;
    }
    std::ranges::copy(shared, values.begin());
  }

  using numbers = std::array<double, capacity>;

  gradlane::host::device& lane_;
  Comm comm_;
  std::unique_ptr<numbers> memory_ = std::make_unique<numbers>();
  gradlane::host::stream stream_;
};

}  // namespace bert

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/balance/sample_order.hpp>  // for sample_order
#include <gradlane/detail/smaller.hpp>        // for smaller
#include <gradlane/error.hpp>                 // for contract_error, expects

#include <cstddef>  // for size_t
#include <cstdint>  // for uint32_t, uint64_t, uint8_t
#include <span>     // for span
#include <string>   // for string, to_string
#include <utility>  // for move
#include <vector>   // for vector

namespace gradlane::balance {

/// What becomes of the samples at the end of an epoch that fill no batch.
enum class leftovers : std::uint8_t {
  ragged,  ///< they are a smaller batch
  keep,    ///< the next epoch begins in their batch
};

/// Where a sampler stands; the same on all ranks, and with any number of ranks.
struct sampler_state {
  std::uint64_t epoch{};
  std::uint64_t cursor{};  ///< samples of the epoch that have been given; below those it has
  std::uint64_t batch{};   ///< size of batches
  std::uint64_t order{};   ///< sample_order::fingerprint()

  friend bool operator==(sampler_state const&, sampler_state const&) = default;
};

/// The samples of one step over all ranks.
struct global_batch {
  std::span<std::uint32_t const> samples;  ///< valid until the sampler's next call
  std::uint64_t epoch{};                   ///< of the first sample
  std::uint64_t cursor{};                  ///< position of the first sample in its epoch
  std::uint64_t epoch_size{};              ///< samples in every epoch

  /// The epoch of samples[i]: leftovers::keep may have several in a batch.
  [[nodiscard]] std::uint64_t epoch_of(std::size_t i) const noexcept {
    return epoch + (cursor + i) / epoch_size;
  }
};

/// Cuts an endless row of epochs into batches: each sample once an epoch, over all ranks.
///
/// Every rank owns an equal one and takes its share of each batch: samples [rank · n, (rank + 1) ·
/// n) of ranks · n, or what deal() gives it. So batches do not depend on the number of ranks, as
/// long as they are equally large. Not thread-safe.
class sampler {
 public:
  /// @param batch  samples of all ranks together.
  /// @throws contract_error for an order without samples, and for a batch of 0.
  sampler(sample_order order, std::size_t batch, leftovers rest = leftovers::ragged)
      : order_{std::move(order)}, rest_{rest}, samples_(batch) {
    expects(order_.size() > 0, "sampler: there are no samples");
    expects(batch > 0, "sampler: a batch must have at least one sample");
  }

  [[nodiscard]] global_batch next() {
    auto const epoch  = epoch_;
    auto const cursor = cursor_;
    auto left         = std::span{samples_};
    take(left);
    while (rest_ == leftovers::keep && !left.empty()) { take(left); }
    auto const count = samples_.size() - left.size();
    return {{samples_.data(), count}, epoch, cursor, order_.size()};
  }

  /// Steps that an epoch takes; with leftovers::keep without the one it shares with the next.
  [[nodiscard]] std::uint64_t steps_per_epoch() const noexcept {
    auto const full = order_.size() / samples_.size();
    return rest_ == leftovers::ragged && full * samples_.size() < order_.size() ? full + 1 : full;
  }

  [[nodiscard]] sampler_state state() const noexcept {
    return {epoch_, cursor_, samples_.size(), order_.fingerprint()};
  }

  /// Goes to where another sampler stood: the next batch is the one it would have given, but for
  /// how the epoch ends where it treats leftovers otherwise.
  ///
  /// At the beginning of an epoch batches may have another size, as they do where another number
  /// of ranks keeps its local batches; inside one they may not.
  /// @throws contract_error, and leaves the sampler as it is, for another order, for another batch
  ///   size inside an epoch, and for a cursor that the epoch does not have.
  void restore(sampler_state const& state) {
    expects(state.order == order_.fingerprint(),
            "sampler: the state is of another order; give the same data, seed, strata and quotas");
    if (state.cursor >= order_.size()) {
      throw contract_error{"sampler: the state stands at sample " + std::to_string(state.cursor) +
                           " of an epoch that has " + std::to_string(order_.size())};
    }
    if (state.cursor != 0 && state.batch != samples_.size()) {
      throw contract_error{"sampler: the state was saved inside epoch " +
                           std::to_string(state.epoch) + " with batches of " +
                           std::to_string(state.batch) + " samples over all ranks, not " +
                           std::to_string(samples_.size()) +
                           "; keep their size, or change it at the beginning of an epoch"};
    }
    epoch_  = state.epoch;
    cursor_ = state.cursor;
  }

 private:
  /// Fills the front of `out` from what is left of the epoch, and leaves the rest.
  void take(std::span<std::uint32_t>& out) {
    auto const count = gradlane::detail::smaller(out.size(), order_.size() - cursor_);
    order_.fill(epoch_, cursor_, out.first(count));
    out = out.subspan(count);
    cursor_ += count;
    if (cursor_ < order_.size()) { return; }
    ++epoch_;
    cursor_ = 0;
  }

  sample_order order_;
  leftovers rest_;
  std::vector<std::uint32_t> samples_;  // of the batch given last
  std::uint64_t epoch_{};
  std::uint64_t cursor_{};
};

}  // namespace gradlane::balance

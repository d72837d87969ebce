// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../errors.hpp"  // for input_error
#include "random.hpp"     // for random_stream, shuffle

#include <algorithm>  // for min
#include <cstddef>    // for size_t
#include <cstdint>    // for uint32_t, uint64_t
#include <numeric>    // for iota
#include <span>       // for span
#include <string>     // for to_string
#include <vector>     // for vector

namespace bert {

/// Where a sampler stands; the same on every rank, and with any number of ranks.
struct sampler_state {
  std::uint32_t epoch  = 0;
  std::uint64_t cursor = 0;  // samples of the epoch that have been given

  friend bool operator==(sampler_state const&, sampler_state const&) = default;
};

/// The samples of one step, over all ranks.
struct global_batch {
  std::span<std::uint32_t const> samples;  // valid until the next call of the sampler
  std::uint32_t epoch;
};

/// The order in which samples are trained on: every one exactly once an epoch.
///
/// The order of an epoch depends on (seed, epoch, number of samples) alone. The last batch of an
/// epoch holds what is left. All ranks own an equal one and take their shares by deal().
class sampler {
 public:
  /// @throws input_error if there is no sample, or the batch size is 0.
  sampler(std::size_t samples, std::size_t batch_size, std::uint32_t seed)
      : order_(samples), batch_size_{batch_size}, seed_{seed} {
    if (samples == 0) { throw input_error{"the text is too short: it makes not one sample"}; }
    if (batch_size == 0) { throw input_error{"the batch size must be positive"}; }
    shuffle_epoch();
  }

  [[nodiscard]] global_batch next() {
    if (state_.cursor == order_.size()) {
      state_ = {state_.epoch + 1, 0};
      shuffle_epoch();
    }
    auto const begin = static_cast<std::size_t>(state_.cursor);
    auto const count = std::min(batch_size_, order_.size() - begin);
    state_.cursor += count;
    return {std::span{order_}.subspan(begin, count), state_.epoch};
  }

  [[nodiscard]] sampler_state const& state() const { return state_; }

  /// Goes to where a sampler of the same samples and seed stood.
  /// @throws input_error if these samples have no such place.
  void restore(sampler_state const& state) {
    if (state.cursor > order_.size()) {
      throw input_error{"the checkpoint stands at sample " + std::to_string(state.cursor) +
                        " of an epoch, the data have only " + std::to_string(order_.size())};
    }
    state_ = state;
    shuffle_epoch();
  }

  [[nodiscard]] std::size_t steps_per_epoch() const {
    return (order_.size() + batch_size_ - 1) / batch_size_;
  }

 private:
  void shuffle_epoch() {
    std::iota(order_.begin(), order_.end(), 0U);
    auto random = random_stream{seed_, draw::order, state_.epoch, 0};
    shuffle(order_, random);
  }

  std::vector<std::uint32_t> order_;
  std::size_t batch_size_;
  std::uint32_t seed_;
  sampler_state state_;
};

}  // namespace bert

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "batch.hpp"  // for batch, batch_shape

#include <gradlane/error.hpp>  // for expects

#include <algorithm>  // for max, min
#include <bit>        // for bit_floor
#include <cstddef>    // for size_t
#include <cstdint>    // for int32_t

namespace bert {

namespace detail {

/// The next multiple of the largest power of two that is at most n / `parts`: less than a 1 / parts
/// more, and `parts` sizes between a power of two and the next.
[[nodiscard]] constexpr std::size_t rounded_up(std::size_t n, std::size_t parts) {
  auto const step = std::max(std::bit_floor(n) / parts, std::size_t{1});
  return (n + step - 1) / step * step;
}

}  // namespace detail

/// A shape, out of few, that pad() can bring any of some batches to: at most a sixteenth more
/// tokens than the largest has, an eighth more predictions and sequences, and never none of them.
/// @param shape   the most that any of the batches has of each.
/// @param fewest  tokens that any of them has.
/// @param longest  sequence, of the filler too.
[[nodiscard]] constexpr batch_shape rounded_up(batch_shape const& shape,
                                               std::size_t fewest,
                                               std::size_t longest) {
  constexpr auto least_tokens = std::size_t{64};
  constexpr auto least        = std::size_t{8};
  auto const tokens           = detail::rounded_up(std::max(shape.tokens, least_tokens), 16);
  auto const filler           = (tokens - fewest + longest - 1) / longest;
  return {.tokens      = tokens,
          .sequences   = detail::rounded_up(std::max(shape.sequences + filler, least), 8),
          .predictions = detail::rounded_up(std::max(shape.predictions, least), 8)};
}

/// Fills a batch up to a shape, for devices that do the same work over and over only for batches of
/// one shape: sequences of token 0, as many as the tokens need, then sequences without any; and
/// predictions and next-sentence labels of -1. Losses and gradients are those of the batch: filler
/// adds zeros to sums.
/// @param longest  sequence of filler.
/// @throws gradlane::contract_error where the shape is too small.
[[nodiscard]] inline batch pad(batch b, batch_shape const& shape, std::size_t longest) {
  auto const has = b.shape();
  gradlane::expects(longest > 0 && has.tokens <= shape.tokens && has.sequences <= shape.sequences &&
                        has.predictions <= shape.predictions,
                    "pad: the batch is larger than the shape");
  if (b.starts.empty()) { b.starts.push_back(0); }
  b.next.resize(has.sequences, -1);  // a batch without labels gets such as count for nothing
  b.tokens.resize(shape.tokens, 0);
  b.segments.resize(shape.tokens, 0);
  auto end = has.tokens;
  for (auto s = has.sequences; s < shape.sequences; ++s) {
    end += std::min(longest, shape.tokens - end);
    b.starts.push_back(static_cast<std::int32_t>(end));
  }
  gradlane::expects(end == shape.tokens, "pad: the shape has too few sequences for its tokens");
  b.samples.resize(shape.sequences, 0);
  b.next.resize(shape.sequences, -1);
  b.predicted.resize(shape.predictions, -1);
  b.labels.resize(shape.predictions, -1);
  return b;
}

}  // namespace bert

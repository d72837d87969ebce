// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/balance/histogram.hpp>  // for length_histogram
#include <gradlane/error.hpp>              // for contract_error, expects

#include <bert/attention/philox.hpp>
#include <bert/batch.hpp>
#include <bert/config.hpp>

#include <algorithm>  // for max, min
#include <cstddef>    // for size_t
#include <cstdint>    // for int32_t, uint32_t
#include <span>       // for span
#include <string>     // for string
#include <vector>     // for vector

namespace bert::bench {

/// The lengths of the sequences that a step computes, and how much of each is text.
struct workload {
  std::vector<std::size_t> computed;
  std::vector<std::size_t> text;  // at most `computed`; the rest is padding

  [[nodiscard]] std::size_t tokens() const {  // of text
    auto sum = std::size_t{0};
    for (auto const n : text) { sum += n; }
    return sum;
  }
};

/// The lengths in the middles of `count` equal shares of a distribution, none above `longest`.
[[nodiscard]] inline std::vector<std::size_t> quantiles(
    gradlane::balance::length_histogram const& of, std::size_t count, std::size_t longest) {
  gradlane::expects(of.samples() > 0, "bert::bench: the histogram counts no sequences");
  auto result = std::vector<std::size_t>{};
  auto below  = 0.0;
  for (auto const& entry : of.entries()) {
    below += static_cast<double>(entry.count) / static_cast<double>(of.samples());
    while (result.size() < count &&
           static_cast<double>(result.size()) + 0.5 <= below * static_cast<double>(count)) {
      result.push_back(std::min(std::size_t{entry.length}, longest));
    }
  }
  result.resize(count, longest);  // should rounding have left one out
  return result;
}

/// `full`: all as long as the model takes. `natural`: as they are distributed. `padded`: these, all
/// computed at the length of the longest, as programs do that know no packed batches.
/// @throws gradlane::contract_error for another name.
[[nodiscard]] inline workload make_workload(std::string const& name,
                                            gradlane::balance::length_histogram const& lengths,
                                            std::size_t sequences,
                                            std::size_t longest) {
  if (name == "full") {
    auto const all = std::vector<std::size_t>(sequences, longest);
    return {all, all};
  }
  auto const natural = quantiles(lengths, sequences, longest);
  if (name == "natural") { return {natural, natural}; }
  gradlane::expects(name == "padded", "bert::bench: workloads are full, natural and padded");
  auto most = std::size_t{0};
  for (auto const n : natural) { most = std::max(most, n); }
  return {std::vector<std::size_t>(sequences, most), natural};
}

/// A batch of noise, in which 15 % of what is text is predicted.
/// @param first_sample  samples are numbered from here on.
[[nodiscard]] inline batch make_batch(model_config const& config,
                                      workload const& of,
                                      std::uint32_t first_sample) {
  auto data = batch{};
  for (auto s = 0U; s < of.computed.size(); ++s) {
    auto ids       = std::vector<std::int32_t>(of.computed[s]);
    auto predicted = std::vector<std::int32_t>{};
    auto labels    = std::vector<std::int32_t>{};
    for (auto i = 0U; i < ids.size(); ++i) {
      auto const random = philox({first_sample + s, i, 0, 0}, 1, 2);
      ids[i]            = static_cast<std::int32_t>(1 + random.x % (config.vocab_size - 1));
      if (i < of.text[s] && random.y % 100 < 15) {
        predicted.push_back(static_cast<std::int32_t>(i));
        labels.push_back(ids[i]);
      }
    }
    data.append(first_sample + s, ids, std::vector<std::int32_t>(ids.size()), predicted, labels, 0);
  }
  return data;
}

/// Floating-point operations that forward and backward of a model must do for text of these
/// lengths: those of the matrix products, backward counted as twice forward. Padding, what is
/// computed again, and everything that is not a product count nothing.
///
/// A token: 2 (4 H² + 2 H I) and, for its scores, 4 n H a layer. A prediction: 2 (H² + H V). A
/// sequence: 2 (H² + 2 H).
[[nodiscard]] inline double model_flops(model_config const& config,
                                        std::span<std::size_t const> lengths,
                                        std::size_t predictions) {
  auto const h      = static_cast<double>(config.hidden_size);
  auto const i      = static_cast<double>(config.intermediate_size);
  auto const v      = static_cast<double>(config.vocab_size);
  auto const layers = static_cast<double>(config.num_hidden_layers);
  auto forward      = static_cast<double>(predictions) * 2 * (h * h + h * v);
  for (auto const length : lengths) {
    auto const n = static_cast<double>(length);
    forward += n * layers * (2 * (4 * h * h + 2 * h * i) + 4 * n * h) + 2 * (h * h + 2 * h);
  }
  return 3 * forward;
}

}  // namespace bert::bench

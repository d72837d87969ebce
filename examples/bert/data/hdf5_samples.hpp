// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sample_source.hpp"  // for sample_source

#include <cstddef>     // for size_t
#include <cstdint>     // for uint8_t, uint16_t, uint64_t
#include <filesystem>  // for path
#include <span>        // for span
#include <vector>      // for vector

namespace bert {

/// Samples of MLPerf's and DeepLearningExamples' HDF5 files, whose masks were drawn beforehand.
///
/// Two forms are told apart by their datasets, and may be mixed:
///
///     fixed     input_ids, input_mask, segment_ids [N, S], masked_lm_positions, masked_lm_ids
///               [N, P], next_sentence_labels [N]; a position of 0 stands for no prediction
///     variable  the same without input_mask, each row of its own length; labels [N]
///
/// All samples are read at once and held without padding: 2 bytes a token, 4 bytes a prediction
/// and 40 bytes a sample. Numbers run through the files in the order given.
class hdf5_samples final : public sample_source {
 public:
  /// @param vocab_size  of the model: ids must be below; at most 65536.
  /// @throws input_error if there is no sample, or one that the model cannot take;
  ///         damaged_file_error naming the file and what it lacks; file_system_error.
  hdf5_samples(std::span<std::filesystem::path const> files,
               std::size_t vocab_size,
               std::size_t max_length);

  [[nodiscard]] std::size_t size() const override { return samples_.size(); }
  [[nodiscard]] std::size_t length(std::uint32_t sample) const override {
    return samples_[sample].length;
  }
  /// The same in every epoch.
  void append(std::uint32_t sample, std::uint32_t epoch, batch& out) const override;
  /// Of the unmasked text, without the first and last token of a sample.
  [[nodiscard]] std::vector<std::uint64_t> count_tokens() const override;
  [[nodiscard]] std::uint64_t fingerprint() const override { return fingerprint_; }

  /// One sample on its way from a file.
  struct row {
    std::vector<std::int32_t> ids;
    std::vector<std::int32_t> segments;
    std::vector<std::int32_t> positions;
    std::vector<std::int32_t> labels;
    std::int32_t next = 0;
  };

 private:
  struct place {
    std::uint64_t tokens;       // the first one's place
    std::uint64_t predictions;  // the first one's place
    std::uint16_t length;
    std::uint16_t second;  // where the second segment begins
    std::uint16_t predicted;
    std::uint8_t next;
  };

  void add(row const& from);

  std::vector<place> samples_;
  std::vector<std::uint16_t> tokens_;
  std::vector<std::uint16_t> positions_;
  std::vector<std::uint16_t> labels_;
  std::uint64_t fingerprint_ = 0;
};

/// Of directories all files that end in .hdf5 and .h5, as find_files() has it.
[[nodiscard]] std::vector<std::filesystem::path> find_hdf5_files(
    std::span<std::filesystem::path const> inputs);

}  // namespace bert

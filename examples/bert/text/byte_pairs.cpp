// SPDX-License-Identifier: Apache-2.0
#include "byte_pairs.hpp"

#include "../errors.hpp"  // for input_error

#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>

#include <algorithm>      // for min
#include <unordered_map>  // for unordered_map

namespace bert {

namespace {

/// What SentencePiece's trainer reads from.
class line_iterator final : public sentencepiece::SentenceIterator {
 public:
  explicit line_iterator(std::string_view text) : rest_{text} { take(); }
  [[nodiscard]] bool done() const override { return done_; }
  void Next() override { take(); }
  [[nodiscard]] std::string const& value() const override { return line_; }
  [[nodiscard]] sentencepiece::util::Status status() const override { return {}; }

 private:
  void take() {
    done_ = rest_.empty();
    line_ = rest_.substr(0, rest_.find('\n'));
    rest_.remove_prefix(std::min(line_.size() + 1, rest_.size()));
  }

  std::string_view rest_;
  std::string line_;
  bool done_ = false;
};

}  // namespace

std::string learn_byte_pairs(std::string_view words, std::size_t size) {
  auto lines        = line_iterator{words};
  auto model        = std::string{};
  auto const status = sentencepiece::SentencePieceTrainer::Train(
      std::unordered_map<std::string, std::string>{{"model_type", "bpe"},
                                                   {"vocab_size", std::to_string(size)},
                                                   {"hard_vocab_limit", "false"},
                                                   {"input_format", "tsv"},
                                                   {"normalization_rule_name", "identity"},
                                                   {"character_coverage", "1.0"},
                                                   {"split_by_unicode_script", "false"},
                                                   {"split_by_number", "false"},
                                                   {"num_threads", "1"},
                                                   {"minloglevel", "3"}},
      &lines,
      &model);
  auto reader       = sentencepiece::SentencePieceProcessor{};
  auto const loaded = status.ok() ? reader.LoadFromSerializedProto(model) : status;
  if (!loaded.ok()) {
    throw input_error{"a vocabulary cannot be learned from this text: " + loaded.ToString()};
  }
  auto result = std::string{};
  for (auto id = 0; id < reader.GetPieceSize(); ++id) {
    if (!reader.IsControl(id) && !reader.IsUnknown(id)) { result += reader.IdToPiece(id) + "\n"; }
  }
  return result;
}

}  // namespace bert

// SPDX-License-Identifier: Apache-2.0
#include "corpus.hpp"

#include "../data/make_cache.hpp"        // for open_token_cache, text_settings
#include "../data/text_samples.hpp"      // for text_samples
#include "../errors.hpp"                 // for input_error
#include "../text/sources.hpp"           // for find_text_files, split_sources
#include "../text/train_vocabulary.hpp"  // for count_words, train_vocabulary

#ifdef BERT_HAS_HDF5
#include "../data/hdf5_samples.hpp"  // for find_hdf5_files, hdf5_samples
#endif

#include <algorithm>  // for max, sort
#include <string>     // for string
#include <thread>     // for thread

namespace bert {

namespace {

/// Where Debian and Ubuntu install the manual of PostgreSQL: the newest, if any.
[[nodiscard]] std::vector<std::filesystem::path> default_text() {
  auto found      = std::vector<std::filesystem::path>{};
  auto const docs = std::filesystem::path{"/usr/share/doc"};
  auto problem    = std::error_code{};
  for (auto const& entry : std::filesystem::directory_iterator{docs, problem}) {
    auto const name = entry.path().filename().string();
    if (name.starts_with("postgresql-doc-") && std::filesystem::exists(entry.path() / "html")) {
      found.push_back(entry.path() / "html");
    }
  }
  if (found.empty()) {
    throw input_error{
        "there is no --text, and the default, the manual in Debian's package postgresql-doc, is "
        "not installed: name text files, or install that package"};
  }
  std::sort(found.begin(), found.end());
  return {found.back()};
}

[[nodiscard]] vocabulary open_vocabulary(command_line const& wanted,
                                         std::vector<std::filesystem::path> const& files,
                                         std::size_t threads) {
  if (!wanted.vocabulary.empty()) { return read_vocabulary(wanted.vocabulary); }
  auto const kept = wanted.output / "vocab.txt";
  if (std::filesystem::exists(kept)) { return read_vocabulary(kept); }
  auto const words   = count_words(split_sources(files), text_settings{}.letters, threads);
  auto const learned = train_vocabulary(words, wanted.vocabulary_size);
  write_vocabulary(learned, kept);
  return learned;
}

[[nodiscard]] corpus open_text(command_line const& wanted) {
  auto const threads = std::size_t{std::max(std::thread::hardware_concurrency(), 1U)};
  auto const files   = find_text_files(wanted.text.empty() ? default_text() : wanted.text);
  std::filesystem::create_directories(wanted.output);
  auto const pieces = open_vocabulary(wanted, files, threads);
  auto const tokens = std::make_shared<token_cache const>(
      open_token_cache(files, text_settings{}, pieces, wanted.output / "tokens.cache", threads));
  auto pairs       = pair_settings{};
  pairs.max_length = wanted.max_length;
  pairs.seed       = wanted.training.seed;
  auto const part  = [&](data_part which) {
    return std::make_unique<text_samples>(tokens, pieces, pairs, which);
  };
  return {.training        = part(data_part::training),
          .held_out        = part(data_part::held_out),
          .vocabulary_size = pieces.size(),
          .vocabulary      = pieces.to_text(),
          .summary         = std::to_string(files.size()) + " text files, " +
                     std::to_string(tokens->tokens()) + " tokens, " +
                     std::to_string(pieces.size()) + " pieces"};
}

#ifdef BERT_HAS_HDF5
[[nodiscard]] corpus open_hdf5(command_line const& wanted, std::size_t vocabulary_limit) {
  if (wanted.hdf5_held_out.empty()) {
    throw input_error{"--hdf5 needs --hdf5-held-out too: files to evaluate on"};
  }
  std::filesystem::create_directories(wanted.output);
  auto const open = [&](std::vector<std::filesystem::path> const& inputs) {
    return std::make_unique<hdf5_samples>(
        find_hdf5_files(inputs), vocabulary_limit, wanted.max_length);
  };
  auto result     = corpus{};
  result.training = open(wanted.hdf5);
  result.held_out = open(wanted.hdf5_held_out);
  result.summary  = "HDF5 files with masks of their own";
  return result;
}
#else
[[nodiscard]] corpus open_hdf5(command_line const& /*wanted*/, std::size_t /*vocabulary_limit*/) {
  throw input_error{
      "--hdf5: this program was built without HDF5; install libhdf5-dev and build it "
      "again"};
}
#endif

}  // namespace

corpus open_corpus(command_line const& wanted, std::size_t vocabulary_limit) {
  return wanted.hdf5.empty() ? open_text(wanted) : open_hdf5(wanted, vocabulary_limit);
}

}  // namespace bert

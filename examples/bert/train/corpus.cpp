// SPDX-License-Identifier: Apache-2.0
#include "corpus.hpp"

#include "../errors.hpp"                 // for input_error
#include "../text/sources.hpp"           // for find_text_files, split_sources
#include "../text/train_vocabulary.hpp"  // for count_words, train_vocabulary

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

}  // namespace

corpus open_corpus(command_line const& wanted) {
  auto const threads = std::max(std::thread::hardware_concurrency(), 1U);
  auto result        = corpus{};
  result.files       = find_text_files(wanted.text.empty() ? default_text() : wanted.text);
  std::filesystem::create_directories(wanted.output);
  result.pieces    = std::make_unique<vocabulary>(open_vocabulary(wanted, result.files, threads));
  result.tokens    = std::make_shared<token_cache const>(open_token_cache(
      result.files, text_settings{}, *result.pieces, wanted.output / "tokens.cache", threads));
  auto pairs       = pair_settings{};
  pairs.max_length = wanted.max_length;
  pairs.seed       = wanted.training.seed;
  auto const open  = [&](data_part part) {
    return std::make_unique<text_samples>(result.tokens, *result.pieces, pairs, part);
  };
  result.training = open(data_part::training);
  result.held_out = open(data_part::held_out);
  return result;
}

}  // namespace bert

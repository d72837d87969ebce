// SPDX-License-Identifier: Apache-2.0
#include "make_cache.hpp"

#include "../errors.hpp"          // for input_error
#include "../parallel_for.hpp"    // for parallel_for
#include "../text/sources.hpp"    // for split_sources, fingerprint
#include "../text/wordpiece.hpp"  // for wordpiece

#include <condition_variable>  // for condition_variable
#include <mutex>               // for mutex, unique_lock
#include <string>              // for to_string
#include <vector>              // for vector

namespace bert {

namespace {

[[nodiscard]] token_documents tokenize(text_source const& source,
                                       document_rule rule,
                                       wordpiece& encoder) {
  auto result = token_documents{};
  for (auto const& document : read_documents(source, rule)) {
    auto const before = result.sentence_ends.size();
    for (auto const& sentence : document.sentences) {
      auto const begin = result.tokens.size();
      encoder.encode(sentence, result.tokens);
      if (result.tokens.size() > begin) { result.sentence_ends.push_back(result.tokens.size()); }
    }
    auto const after = result.sentence_ends.size();
    if (after > before) { result.document_ends.push_back(after); }
  }
  return result;
}

/// Lets threads in one after another, by number; no more than one piece to a thread waits.
class turnstile {
 public:
  template <class Work>
  void pass(std::size_t number, Work const& work) {
    auto lock = std::unique_lock{mutex_};
    changed_.wait(lock, [&] { return next_ == number || closed_; });
    if (closed_) { return; }
    work();
    ++next_;
    changed_.notify_all();
  }

  void close() {
    auto const lock = std::unique_lock{mutex_};
    closed_         = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t next_ = 0;
  bool closed_      = false;
};

}  // namespace

token_cache_key cache_key(std::span<std::filesystem::path const> files,
                          text_settings const& settings,
                          vocabulary const& pieces) {
  auto sum = checksum{};
  sum.add(fingerprint(files));
  sum.add(static_cast<std::uint64_t>(settings.letters));
  sum.add(static_cast<std::uint64_t>(settings.documents));
  return {sum.value(), pieces.fingerprint()};
}

void make_token_cache(std::span<std::filesystem::path const> files,
                      text_settings const& settings,
                      vocabulary const& pieces,
                      std::filesystem::path const& cache,
                      std::size_t threads) {
  auto const sources = split_sources(files);
  auto writer        = token_cache_writer{cache, pieces.size(), cache_key(files, settings, pieces)};
  auto encoders      = std::vector<wordpiece>(threads, wordpiece{pieces, settings.letters});
  auto turns         = turnstile{};
  auto tokens        = std::size_t{0};
  parallel_for(sources.size(), threads, [&](std::size_t i, std::size_t thread) {
    try {
      auto const piece = tokenize(sources[i], settings.documents, encoders[thread]);
      turns.pass(i, [&] {
        writer.add(piece);
        tokens += piece.tokens.size();
      });
    } catch (...) {
      turns.close();
      throw;
    }
  });
  if (tokens == 0) {
    throw input_error{"the text is empty: there is no word in " + std::to_string(files.size()) +
                      " file(s), the first of which is " +
                      (files.empty() ? "missing" : files.front().string())};
  }
  writer.finish();
}

token_cache open_token_cache(std::span<std::filesystem::path const> files,
                             text_settings const& settings,
                             vocabulary const& pieces,
                             std::filesystem::path const& cache,
                             std::size_t threads) {
  if (std::filesystem::exists(cache)) {
    auto found = token_cache{cache};
    if (found.key() == cache_key(files, settings, pieces)) { return found; }
  }
  make_token_cache(files, settings, pieces, cache, threads);
  return token_cache{cache};
}

}  // namespace bert

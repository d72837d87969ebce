// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../text/documents.hpp"   // for document_rule
#include "../text/vocabulary.hpp"  // for vocabulary
#include "../text/words.hpp"       // for letter_case
#include "token_cache.hpp"         // for token_cache, token_cache_key

#include <cstddef>     // for size_t
#include <filesystem>  // for path
#include <span>        // for span

namespace bert {

/// How text is read; a change of any makes caches stale.
struct text_settings {
  letter_case letters     = letter_case::lower;
  document_rule documents = document_rule::file;
};

[[nodiscard]] token_cache_key cache_key(std::span<std::filesystem::path const> files,
                                        text_settings const& settings,
                                        vocabulary const& pieces);

/// Tokenizes the files on several threads into a cache, in the order of the files.
///
/// The file does not depend on `threads`; memory is a few megabytes to a thread.
/// @throws input_error if there is no word in all of the text; file_system_error.
void make_token_cache(std::span<std::filesystem::path const> files,
                      text_settings const& settings,
                      vocabulary const& pieces,
                      std::filesystem::path const& cache,
                      std::size_t threads);

/// Opens the cache, made first where it is absent or stale.
/// @throws as make_token_cache() and token_cache do; a file that is no whole cache is left alone.
[[nodiscard]] token_cache open_token_cache(std::span<std::filesystem::path const> files,
                                           text_settings const& settings,
                                           vocabulary const& pieces,
                                           std::filesystem::path const& cache,
                                           std::size_t threads);

}  // namespace bert

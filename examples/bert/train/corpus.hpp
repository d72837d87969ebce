// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../data/make_cache.hpp"    // for open_token_cache, text_settings
#include "../data/text_samples.hpp"  // for text_samples
#include "../text/vocabulary.hpp"    // for vocabulary
#include "command_line.hpp"          // for command_line

#include <filesystem>  // for path
#include <memory>      // for shared_ptr, unique_ptr
#include <vector>      // for vector

namespace bert {

/// The text of a run: its vocabulary, and samples of what is trained on and what is held out.
struct corpus {
  std::vector<std::filesystem::path> files;
  std::unique_ptr<vocabulary> pieces;
  std::shared_ptr<token_cache const> tokens;
  std::unique_ptr<text_samples> training;
  std::unique_ptr<text_samples> held_out;
};

/// Opens the corpus of a run: vocabulary and token cache lie in its output directory, and are made
/// there first where they are absent or stale. Ranks that open it after one has made it only read.
/// @throws input_error for text that is missing, empty or too short, file_error for bad files.
[[nodiscard]] corpus open_corpus(command_line const& wanted);

}  // namespace bert

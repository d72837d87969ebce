// SPDX-License-Identifier: Apache-2.0
#include "vocabulary.hpp"

#include "../checksum.hpp"  // for checksum
#include "../errors.hpp"    // for input_error
#include "../files.hpp"     // for read_file, pending_file

#include <algorithm>  // for max
#include <limits>     // for numeric_limits
#include <utility>    // for move

namespace bert {

namespace {

[[nodiscard]] bool is_continuation(std::string_view piece) {
  return piece.size() > 2 && piece.starts_with("##");
}

}  // namespace

vocabulary::vocabulary(std::vector<std::string> pieces, std::string const& origin)
    : pieces_{std::move(pieces)} {
  if (pieces_.size() > std::numeric_limits<std::int32_t>::max()) {
    throw input_error{origin + ": has more pieces than ids can count"};
  }
  for (auto i = std::size_t{0}; i < pieces_.size(); ++i) {
    auto const& piece = pieces_[i];
    auto const line   = ", line " + std::to_string(i + 1);
    if (piece.empty()) { throw input_error{origin + line + ": is empty, must be a piece"}; }
    auto const continues = is_continuation(piece);
    auto const text      = std::string_view{piece}.substr(continues ? 2 : 0);
    auto& known          = continues ? continues_ : begins_;
    if (!known.emplace(text, static_cast<std::int32_t>(i)).second) {
      throw input_error{origin + line + ": the piece '" + piece + "' comes twice"};
    }
    longest_ = std::max(longest_, text.size());
  }
  auto const special = [&](char const* piece) {
    auto const id = find(piece);
    if (!id) {
      throw input_error{origin + ": lacks " + piece +
                        "; a BERT vocabulary has one piece to a line, [PAD] [UNK] [CLS] [SEP] "
                        "[MASK] among them"};
    }
    return *id;
  };
  pad_       = special("[PAD]");
  unknown_   = special("[UNK]");
  classify_  = special("[CLS]");
  separator_ = special("[SEP]");
  mask_      = special("[MASK]");
}

std::optional<std::int32_t> vocabulary::find(std::string_view piece) const {
  auto const continues = is_continuation(piece);
  return find(piece.substr(continues ? 2 : 0), continues);
}

std::optional<std::int32_t> vocabulary::find(std::string_view text, bool continues) const {
  auto const& known = continues ? continues_ : begins_;
  auto const found  = known.find(text);
  return found == known.end() ? std::nullopt : std::optional{found->second};
}

std::uint64_t vocabulary::fingerprint() const {
  auto result = checksum{};
  result.add(to_text());
  return result.value();
}

std::string vocabulary::to_text() const {
  auto result = std::string{};
  for (auto const& piece : pieces_) { result.append(piece).append(1, '\n'); }
  return result;
}

vocabulary read_vocabulary(std::filesystem::path const& file) {
  auto const text = read_file(file);
  auto pieces     = std::vector<std::string>{};
  for (auto begin = std::size_t{0}; begin < text.size();) {
    auto const end = std::min(text.find('\n', begin), text.size());
    auto line      = text.substr(begin, end - begin);
    if (line.ends_with('\r')) { line.pop_back(); }
    pieces.push_back(std::move(line));
    begin = end + 1;
  }
  return vocabulary{std::move(pieces), "vocabulary " + file.string()};
}

void write_vocabulary(vocabulary const& pieces, std::filesystem::path const& file) {
  auto out = pending_file{file};
  out.file().write(pieces.to_text());
  out.publish();
}

void expect_fits(vocabulary const& pieces, std::size_t vocab_size) {
  if (pieces.size() > vocab_size) {
    throw input_error{"the vocabulary has " + std::to_string(pieces.size()) +
                      " pieces, but the model only " + std::to_string(vocab_size) +
                      " embeddings: set the model's vocab_size to at least that, or give the "
                      "vocabulary that it was made for"};
  }
}

}  // namespace bert

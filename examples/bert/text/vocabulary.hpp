// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>        // for size_t
#include <cstdint>        // for int32_t, uint64_t
#include <filesystem>     // for path
#include <functional>     // for equal_to
#include <optional>       // for optional
#include <string>         // for string
#include <string_view>    // for string_view
#include <unordered_map>  // for unordered_map
#include <vector>         // for vector

namespace bert {

/// The pieces of BERT's WordPiece, by id; those that continue a word begin with ##.
class vocabulary {
 public:
  /// @param pieces  [PAD] [UNK] [CLS] [SEP] [MASK] among them, at any place.
  /// @param origin  names where they come from in messages.
  /// @throws input_error if one of those five is missing, a piece is empty or comes twice, or
  ///         there are more than 2^31 - 1.
  explicit vocabulary(std::vector<std::string> pieces, std::string const& origin = "vocabulary");

  [[nodiscard]] std::size_t size() const { return pieces_.size(); }
  [[nodiscard]] std::string const& piece(std::int32_t id) const {
    return pieces_[static_cast<std::size_t>(id)];
  }
  [[nodiscard]] std::optional<std::int32_t> find(std::string_view piece) const;
  /// Of a piece that begins a word, or of one that continues it, given without its ##.
  [[nodiscard]] std::optional<std::int32_t> find(std::string_view text, bool continues) const;

  [[nodiscard]] std::int32_t pad() const { return pad_; }
  [[nodiscard]] std::int32_t unknown() const { return unknown_; }
  [[nodiscard]] std::int32_t classify() const { return classify_; }
  [[nodiscard]] std::int32_t separator() const { return separator_; }
  [[nodiscard]] std::int32_t mask() const { return mask_; }
  [[nodiscard]] bool is_special(std::int32_t id) const {
    return id == pad_ || id == unknown_ || id == classify_ || id == separator_ || id == mask_;
  }

  /// Bytes of the longest piece without its ##.
  [[nodiscard]] std::size_t longest() const { return longest_; }
  /// Differs for any other list of pieces.
  [[nodiscard]] std::uint64_t fingerprint() const;
  /// As vocab.txt has it: one piece to a line, line n is id n.
  [[nodiscard]] std::string to_text() const;

 private:
  struct text_hash {
    using is_transparent = void;
    [[nodiscard]] std::size_t operator()(std::string_view text) const {
      return std::hash<std::string_view>{}(text);
    }
  };
  using index = std::unordered_map<std::string, std::int32_t, text_hash, std::equal_to<>>;

  std::vector<std::string> pieces_;
  index begins_;
  index continues_;
  std::size_t longest_    = 0;
  std::int32_t pad_       = 0;
  std::int32_t unknown_   = 0;
  std::int32_t classify_  = 0;
  std::int32_t separator_ = 0;
  std::int32_t mask_      = 0;
};

/// Reads a vocab.txt. @throws file_system_error, or input_error as the constructor does.
[[nodiscard]] vocabulary read_vocabulary(std::filesystem::path const& file);

/// Writes a vocab.txt, whole or not at all. @throws file_system_error
void write_vocabulary(vocabulary const& pieces, std::filesystem::path const& file);

/// @throws input_error unless a model with `vocab_size` embeddings can take all ids.
void expect_fits(vocabulary const& pieces, std::size_t vocab_size);

}  // namespace bert

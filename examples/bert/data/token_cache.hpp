// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../checksum.hpp"  // for checksum
#include "../files.hpp"     // for mapped_file, output_file, pending_file

#include <cstddef>     // for size_t, byte
#include <cstdint>     // for int32_t, uint64_t
#include <filesystem>  // for path
#include <optional>    // for optional
#include <span>        // for span
#include <vector>      // for vector

namespace bert {

/// What a cache was made from; one with another key is stale.
struct token_cache_key {
  std::uint64_t text       = 0;  // fingerprint of files and of how they are read
  std::uint64_t vocabulary = 0;

  friend bool operator==(token_cache_key const&, token_cache_key const&) = default;
};

/// Tokenized documents in memory, back to back.
struct token_documents {
  std::vector<std::int32_t> tokens;
  std::vector<std::uint64_t> sentence_ends;  // in tokens, ascending
  std::vector<std::uint64_t> document_ends;  // in sentences, ascending
};

/// Elements [begin, end) of something flat.
struct index_range {
  std::uint64_t begin;
  std::uint64_t end;

  [[nodiscard]] std::uint64_t size() const { return end - begin; }
  friend bool operator==(index_range const&, index_range const&) = default;
};

/// Tokenized text in a file: documents of sentences of tokens, read by mapping it.
///
///     header        magic, version, bytes of a token, key, three sizes, checksums
///     tokens        2 or 4 bytes each, padded to 8
///     sentence ends 8 bytes each, in tokens
///     document ends 8 bytes each, in sentences
///
/// Little-endian. No sentence and no document is empty.
class token_cache {
 public:
  /// Reads the whole file once, to compare its checksum.
  /// @throws damaged_file_error if it is truncated, damaged, or no cache of this version;
  ///         file_system_error if it is not there.
  explicit token_cache(std::filesystem::path const& path);

  [[nodiscard]] token_cache_key const& key() const { return key_; }
  [[nodiscard]] std::size_t tokens() const { return token_count_; }
  [[nodiscard]] std::size_t sentences() const { return sentence_ends_.size(); }
  [[nodiscard]] std::size_t documents() const { return document_ends_.size(); }

  /// The tokens of a sentence, and the sentences of a document.
  [[nodiscard]] index_range sentence(std::size_t index) const {
    return {index == 0 ? 0 : sentence_ends_[index - 1], sentence_ends_[index]};
  }
  [[nodiscard]] index_range document(std::size_t index) const {
    return {index == 0 ? 0 : document_ends_[index - 1], document_ends_[index]};
  }

  /// Appends tokens to `out`.
  void copy(index_range range, std::vector<std::int32_t>& out) const;

 private:
  mapped_file file_;
  token_cache_key key_;
  std::size_t token_bytes_ = 0;
  std::size_t token_count_ = 0;
  std::span<std::byte const> tokens_;
  std::span<std::uint64_t const> sentence_ends_;
  std::span<std::uint64_t const> document_ends_;
};

/// Writes a cache file in pieces; nothing has its name before it is whole and on the disk.
///
/// Every function throws file_system_error.
class token_cache_writer {
 public:
  /// @param vocab_size  more than any token; decides whether a token takes 2 bytes or 4.
  token_cache_writer(std::filesystem::path const& path,
                     std::size_t vocab_size,
                     token_cache_key key);
  token_cache_writer(token_cache_writer const&)            = delete;
  token_cache_writer& operator=(token_cache_writer const&) = delete;
  ~token_cache_writer();

  /// Appends documents; their ends count from the beginning of `more`.
  void add(token_documents const& more);
  void finish();

 private:
  void append(std::span<std::byte const> bytes);
  void append_file(output_file const& part);

  token_cache_key key_;
  std::size_t token_bytes_;
  pending_file out_;
  output_file sentences_;
  output_file documents_;
  checksum sum_;
  std::uint64_t token_count_    = 0;
  std::uint64_t sentence_count_ = 0;
  std::uint64_t document_count_ = 0;
  std::vector<std::byte> bytes_;
};

}  // namespace bert

// SPDX-License-Identifier: Apache-2.0
#include "token_cache.hpp"

#include "../errors.hpp"  // for damaged_file_error

#include <array>         // for array
#include <cstring>       // for memcpy
#include <system_error>  // for error_code
#include <type_traits>   // for is_trivially_copyable_v

namespace bert {

namespace {

struct cache_header {
  std::array<char, 8> magic{'G', 'L', 'T', 'O', 'K', 'E', 'N', 'S'};
  std::uint32_t version     = 1;
  std::uint32_t token_bytes = 0;
  std::uint64_t text        = 0;
  std::uint64_t vocabulary  = 0;
  std::uint64_t tokens      = 0;
  std::uint64_t sentences   = 0;
  std::uint64_t documents   = 0;
  std::uint64_t payload_sum = 0;
  std::uint64_t header_sum  = 0;  // of all above
};
static_assert(sizeof(cache_header) == 72 && std::is_trivially_copyable_v<cache_header>);

[[nodiscard]] std::uint64_t sum_of(cache_header const& header) {
  auto sum = checksum{};
  sum.add(std::as_bytes(std::span{&header, 1}).first(offsetof(cache_header, header_sum)));
  return sum.value();
}

[[nodiscard]] std::uint64_t padded(std::uint64_t bytes) { return (bytes + 7) / 8 * 8; }

[[nodiscard]] std::filesystem::path with(std::filesystem::path path, char const* suffix) {
  return path += suffix;
}

[[noreturn]] void fail(std::filesystem::path const& path, std::string_view what) {
  throw damaged_file_error{path,
                           std::string{"is no whole token cache: "} + std::string{what} +
                               "; delete it, and it is made anew from the text"};
}

[[nodiscard]] cache_header read_header(std::filesystem::path const& path,
                                       std::span<std::byte const> bytes) {
  auto result = cache_header{};
  if (bytes.size() < sizeof result) { fail(path, "it is shorter than the header"); }
  std::memcpy(&result, bytes.data(), sizeof result);
  if (result.magic != cache_header{}.magic) {
    throw damaged_file_error{path,
                             "is no token cache but some other file; choose another name for the "
                             "cache, or move the file away"};
  }
  if (result.version != cache_header{}.version) { fail(path, "it has another version"); }
  if (sum_of(result) != result.header_sum) { fail(path, "its header is damaged"); }
  if (result.token_bytes != 2 && result.token_bytes != 4) { fail(path, "its header is wrong"); }
  return result;
}

template <class T>
[[nodiscard]] std::span<T const> view_as(std::span<std::byte const> bytes) {
  return {reinterpret_cast<T const*>(bytes.data()), bytes.size() / sizeof(T)};
}

}  // namespace

token_cache::token_cache(std::filesystem::path const& path) : file_{path} {
  auto const bytes         = file_.bytes();
  auto const header        = read_header(path, bytes);
  auto const payload       = bytes.subspan(sizeof header);
  auto const token_size    = header.tokens * header.token_bytes;
  auto const sentence_size = header.sentences * sizeof(std::uint64_t);
  auto const document_size = header.documents * sizeof(std::uint64_t);
  if (payload.size() != padded(token_size) + sentence_size + document_size) {
    fail(path, "it is truncated");
  }
  auto sum = checksum{};
  sum.add(payload);
  if (sum.value() != header.payload_sum) { fail(path, "its content is damaged"); }
  key_           = {header.text, header.vocabulary};
  token_bytes_   = header.token_bytes;
  token_count_   = header.tokens;
  tokens_        = payload.first(token_size);
  sentence_ends_ = view_as<std::uint64_t>(payload.subspan(padded(token_size), sentence_size));
  document_ends_ = view_as<std::uint64_t>(payload.last(document_size));
}

void token_cache::copy(index_range range, std::vector<std::int32_t>& out) const {
  auto const bytes = tokens_.subspan(range.begin * token_bytes_, range.size() * token_bytes_);
  if (token_bytes_ == 2) {
    auto const narrow = view_as<std::uint16_t>(bytes);
    out.insert(out.end(), narrow.begin(), narrow.end());
  } else {
    auto const wide = view_as<std::int32_t>(bytes);
    out.insert(out.end(), wide.begin(), wide.end());
  }
}

token_cache_writer::token_cache_writer(std::filesystem::path const& path,
                                       std::size_t vocab_size,
                                       token_cache_key key)
    : key_{key},
      token_bytes_{vocab_size <= 65536 ? std::size_t{2} : std::size_t{4}},
      out_{path},
      sentences_{with(path, ".sentences.partial")},
      documents_{with(path, ".documents.partial")} {
  auto const header = cache_header{};
  out_.file().write(std::as_bytes(std::span{&header, 1}));
}

token_cache_writer::~token_cache_writer() {
  auto ignored = std::error_code{};
  for (auto const* part : {&sentences_, &documents_}) {
    std::filesystem::remove(part->path(), ignored);
  }
}

void token_cache_writer::add(token_documents const& more) {
  bytes_.resize(more.tokens.size() * token_bytes_);
  if (token_bytes_ == 2) {
    for (auto i = std::size_t{0}; i < more.tokens.size(); ++i) {
      auto const narrow = static_cast<std::uint16_t>(more.tokens[i]);
      std::memcpy(bytes_.data() + 2 * i, &narrow, 2);
    }
  } else if (!bytes_.empty()) {
    std::memcpy(bytes_.data(), more.tokens.data(), bytes_.size());
  }
  append(bytes_);
  auto const shifted = [&](std::vector<std::uint64_t> ends, std::uint64_t by, output_file& file) {
    for (auto& end : ends) { end += by; }
    file.write(std::as_bytes(std::span{ends}));
  };
  shifted(more.sentence_ends, token_count_, sentences_);
  shifted(more.document_ends, sentence_count_, documents_);
  token_count_ += more.tokens.size();
  sentence_count_ += more.sentence_ends.size();
  document_count_ += more.document_ends.size();
}

void token_cache_writer::finish() {
  auto const token_size = token_count_ * token_bytes_;
  bytes_.assign(padded(token_size) - token_size, std::byte{});
  append(bytes_);
  append_file(sentences_);
  append_file(documents_);
  auto header        = cache_header{};
  header.token_bytes = static_cast<std::uint32_t>(token_bytes_);
  header.text        = key_.text;
  header.vocabulary  = key_.vocabulary;
  header.tokens      = token_count_;
  header.sentences   = sentence_count_;
  header.documents   = document_count_;
  header.payload_sum = sum_.value();
  header.header_sum  = sum_of(header);
  out_.file().rewrite(0, std::as_bytes(std::span{&header, 1}));
  out_.publish();
}

void token_cache_writer::append(std::span<std::byte const> bytes) {
  sum_.add(bytes);
  out_.file().write(bytes);
}

void token_cache_writer::append_file(output_file const& part) {
  auto const content = mapped_file{part.path()};
  append(content.bytes());
}

}  // namespace bert

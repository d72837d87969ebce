// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/error.hpp>  // for error

#include <fcntl.h>  // for open
#include <nlohmann/json.hpp>
#include <unistd.h>  // for write, fsync, close, unlink

#include <bit>            // for endian
#include <cerrno>         // for errno
#include <cstddef>        // for size_t, byte
#include <cstdint>        // for uint64_t
#include <cstdio>         // for rename
#include <cstring>        // for memcpy, strerror
#include <filesystem>     // for path
#include <fstream>        // for ifstream
#include <map>            // for map
#include <span>           // for span, as_bytes
#include <string>         // for string
#include <system_error>   // for error_code
#include <unordered_map>  // for unordered_map
#include <utility>        // for move, swap
#include <vector>         // for vector

namespace bert {

static_assert(std::endian::native == std::endian::little, "safetensors files are little-endian");

/// A file that is no safetensors file, or one that was damaged or cut short.
class damaged_file_error : public gradlane::error {
 public:
  using error::error;
};

/// A file that the system would not let us read or write: absent, no permission, disk full.
class file_error : public gradlane::error {
 public:
  using error::error;
};

/// One tensor on its way into a file, by Hugging Face's name of its type: F32, BF16, I64, U8 …
struct tensor_out {
  std::string name;
  std::string type;
  std::vector<std::size_t> shape;
  std::span<std::byte const> bytes;
};

[[nodiscard]] inline tensor_out float_tensor(std::string name,
                                             std::vector<std::size_t> shape,
                                             std::span<float const> values) {
  return {std::move(name), "F32", std::move(shape), std::as_bytes(values)};
}

namespace detail {

/// 0 for a type that the format does not know.
[[nodiscard]] inline std::size_t bytes_of_type(std::string const& type) {
  static constexpr struct {
    char const* name;
    std::size_t bytes;
  } types[] = {{"F64", 8},
               {"F32", 4},
               {"F16", 2},
               {"BF16", 2},
               {"I64", 8},
               {"I32", 4},
               {"I16", 2},
               {"I8", 1},
               {"U64", 8},
               {"U32", 4},
               {"U16", 2},
               {"U8", 1},
               {"BOOL", 1}};
  for (auto const& known : types) {
    if (type == known.name) { return known.bytes; }
  }
  return 0;
}

/// A file under a temporary name beside its target, removed unless it is published.
class pending_file {
 public:
  explicit pending_file(std::filesystem::path target) : target_{std::move(target)} {
    temporary_ = target_;
    temporary_ += ".partial";
    descriptor_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (descriptor_ < 0) { fail("cannot be created"); }
  }
  pending_file(pending_file&&)            = delete;
  pending_file& operator=(pending_file&&) = delete;
  ~pending_file() {
    if (descriptor_ >= 0) {
      ::close(descriptor_);
      ::unlink(temporary_.c_str());
    }
  }

  void write(std::span<std::byte const> bytes) {
    while (!bytes.empty()) {
      auto const written = ::write(descriptor_, bytes.data(), bytes.size());
      if (written < 0 && errno == EINTR) { continue; }
      if (written < 0) { fail("cannot be written"); }
      bytes = bytes.subspan(static_cast<std::size_t>(written));
    }
  }

  /// Once the data is on the disk, the file takes its name, in place of any older one.
  void publish() {
    if (::fsync(descriptor_) != 0) { fail("cannot be written"); }
    if (std::rename(temporary_.c_str(), target_.c_str()) != 0) { fail("cannot be renamed to"); }
    ::close(descriptor_);
    descriptor_       = -1;
    auto const folder = target_.has_parent_path() ? target_.parent_path() : ".";
    auto const handle = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (handle >= 0) {  // best effort: not every file system can sync a folder
      ::fsync(handle);
      ::close(handle);
    }
  }

 private:
  [[noreturn]] void fail(char const* what) const {
    throw file_error{target_.string() + ": " + what + ": " + std::strerror(errno)};
  }

  std::filesystem::path target_;
  std::filesystem::path temporary_;
  int descriptor_ = -1;
};

}  // namespace detail

/// Writes a safetensors file whole or not at all: a crash leaves the older file, if there was one.
/// @param metadata  strings for the header's __metadata__; transformers wants {"format": "pt"}.
/// @throws file_error with the system's reason, disk full among them.
inline void write_safetensors(std::filesystem::path const& file,
                              std::span<tensor_out const> tensors,
                              std::map<std::string, std::string> const& metadata = {
                                  {"format", "pt"}}) {
  auto header = nlohmann::ordered_json{};
  if (!metadata.empty()) { header["__metadata__"] = metadata; }
  auto offset = std::size_t{0};
  for (auto const& tensor : tensors) {
    auto count = detail::bytes_of_type(tensor.type);
    for (auto const extent : tensor.shape) { count *= extent; }
    gradlane::expects(count == tensor.bytes.size() && !header.contains(tensor.name),
                      "write_safetensors: shape and bytes of " + tensor.name +
                          " disagree, its type is unknown, or its name comes twice");
    header[tensor.name] = {{"dtype", tensor.type},
                           {"shape", tensor.shape},
                           {"data_offsets", {offset, offset + count}}};
    offset += count;
  }
  auto text = header.is_null() ? std::string{"{}"} : header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // so that the data is aligned
  auto const length = std::uint64_t{text.size()};

  auto out = detail::pending_file{file};
  out.write(std::as_bytes(std::span{&length, 1}));
  out.write(std::as_bytes(std::span<char const>{text}));
  for (auto const& tensor : tensors) { out.write(tensor.bytes); }
  out.publish();
}

/// A safetensors file, checked when it is opened: its header, and that the tensors tile the data.
class safetensors {
 public:
  struct entry {
    std::string type;
    std::vector<std::size_t> shape;
    std::size_t begin;  // in the data
    std::size_t end;
  };

  /// @throws file_error if the file cannot be read, damaged_file_error if it is not intact.
  explicit safetensors(std::filesystem::path file) : file_{std::move(file)} {
    auto problem    = std::error_code{};
    auto const size = std::filesystem::file_size(file_, problem);
    stream_.open(file_, std::ios::binary);
    if (problem || !stream_) { throw file_error{file_.string() + ": cannot be opened"}; }
    auto length = std::uint64_t{0};
    stream_.read(reinterpret_cast<char*>(&length), sizeof length);
    if (!stream_ || size < sizeof length) { damaged("is shorter than a header"); }
    if (length > 100'000'000 || length > size - sizeof length) {
      damaged("ends inside its header, or is no safetensors file");
    }
    auto text = std::string(static_cast<std::size_t>(length), '\0');
    stream_.read(text.data(), static_cast<std::streamsize>(length));
    if (!stream_) { damaged("ends inside its header"); }
    data_      = sizeof length + static_cast<std::size_t>(length);
    data_size_ = static_cast<std::size_t>(size) - data_;
    try {
      parse(nlohmann::json::parse(text));
    } catch (nlohmann::json::exception const&) {
      damaged("has a header that cannot be understood");
    }
    check_tiling();
  }

  [[nodiscard]] std::unordered_map<std::string, entry> const& entries() const { return entries_; }
  [[nodiscard]] std::map<std::string, std::string> const& metadata() const { return metadata_; }
  [[nodiscard]] bool contains(std::string const& name) const { return entries_.contains(name); }

  /// @throws damaged_file_error if there is no tensor of that name.
  [[nodiscard]] entry const& at(std::string const& name) const {
    auto const found = entries_.find(name);
    if (found == entries_.end()) { damaged("has no tensor " + name); }
    return found->second;
  }

  /// Reads a tensor whose type and shape are known to the caller.
  /// @throws damaged_file_error if it is absent or of another type or shape.
  template <class T>
  void read(std::string const& name,
            std::string const& type,
            std::vector<std::size_t> const& shape,
            std::span<T> into) {
    auto const& e = at(name);
    if (e.type != type || e.shape != shape) {
      damaged("has " + describe(name, e) + " where " + describe(name, {type, shape, 0, 0}) +
              " is wanted");
    }
    gradlane::expects(into.size_bytes() == e.end - e.begin,
                      "safetensors: the target for " + name + " has the wrong size");
    stream_.clear();
    stream_.seekg(static_cast<std::streamoff>(data_ + e.begin));
    stream_.read(reinterpret_cast<char*>(into.data()),
                 static_cast<std::streamsize>(into.size_bytes()));
    if (!stream_) { damaged("cannot be read at tensor " + name); }
  }

 private:
  [[noreturn]] void damaged(std::string const& what) const {
    throw damaged_file_error{file_.string() + ": " + what};
  }

  [[nodiscard]] static std::string describe(std::string const& name, entry const& e) {
    auto text = name + " of type " + e.type + " and shape (";
    for (auto i = std::size_t{0}; i < e.shape.size(); ++i) {
      text += (i == 0 ? "" : ", ") + std::to_string(e.shape[i]);
    }
    return text + ")";
  }

  void parse(nlohmann::json const& header) {
    for (auto const& [name, value] : header.items()) {
      if (name == "__metadata__") {
        metadata_ = value.get<std::map<std::string, std::string>>();
        continue;
      }
      auto e = entry{value.at("dtype").get<std::string>(),
                     value.at("shape").get<std::vector<std::size_t>>(),
                     value.at("data_offsets").at(0).get<std::size_t>(),
                     value.at("data_offsets").at(1).get<std::size_t>()};
      if (!holds(e)) { damaged("contradicts itself about tensor " + name); }
      entries_.emplace(name, std::move(e));
    }
  }

  /// Whether type and shape say the same size as the offsets, which lie inside the data.
  [[nodiscard]] bool holds(entry const& e) const {
    if (e.begin > e.end) { return false; }
    if (e.end > data_size_) { damaged("ends before its last tensor"); }
    auto count = detail::bytes_of_type(e.type);
    if (count == 0) { return false; }
    for (auto const extent : e.shape) {
      if (extent != 0 && count > data_size_ / extent) { return false; }
      count *= extent;
    }
    return count == e.end - e.begin;
  }

  void check_tiling() const {
    auto parts = std::map<std::size_t, std::size_t>{};
    for (auto const& [name, e] : entries_) {
      if (e.begin != e.end && !parts.emplace(e.begin, e.end).second) {
        damaged("has tensors that overlap");
      }
    }
    auto place = std::size_t{0};
    for (auto const& [begin, end] : parts) {
      if (begin != place) { damaged("has tensors that overlap or leave a gap"); }
      place = end;
    }
    if (place != data_size_) { damaged("has data after its last tensor"); }
  }

  std::filesystem::path file_;
  std::ifstream stream_;
  std::size_t data_      = 0;  // offset in the file
  std::size_t data_size_ = 0;
  std::unordered_map<std::string, entry> entries_;
  std::map<std::string, std::string> metadata_;
};

}  // namespace bert

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "errors.hpp"  // for damaged_file_error, file_system_error
#include "files.hpp"   // for mapped_file, pending_file

#include <gradlane/error.hpp>  // for expects

#include <nlohmann/json.hpp>

#include <bit>            // for endian
#include <cstddef>        // for size_t, byte
#include <cstdint>        // for uint64_t
#include <cstring>        // for memcpy
#include <filesystem>     // for path
#include <map>            // for map
#include <span>           // for span, as_bytes
#include <string>         // for string
#include <unordered_map>  // for unordered_map
#include <utility>        // for move
#include <vector>         // for vector

namespace bert {

static_assert(std::endian::native == std::endian::little, "safetensors files are little-endian");

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

}  // namespace detail

/// Writes a safetensors file whole or not at all: a crash leaves the older file, if there was one.
/// @param metadata  strings for the header's __metadata__; transformers wants {"format": "pt"}.
/// @throws file_system_error with the system's reason, disk full among them.
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

  auto out = pending_file{file};
  out.file().write(std::as_bytes(std::span{&length, 1}));
  out.file().write(text);
  for (auto const& tensor : tensors) { out.file().write(tensor.bytes); }
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

  /// @throws file_system_error if the file cannot be read, damaged_file_error if it is not intact.
  explicit safetensors(std::filesystem::path path) : path_{std::move(path)}, file_{path_} {
    auto const bytes = file_.bytes();
    auto length      = std::uint64_t{0};
    if (bytes.size() < sizeof length) { damaged("is shorter than a header"); }
    std::memcpy(&length, bytes.data(), sizeof length);
    if (length > 100'000'000 || length > bytes.size() - sizeof length) {
      damaged("ends inside its header, or is no safetensors file");
    }
    auto const* text = reinterpret_cast<char const*>(bytes.data() + sizeof length);
    data_            = bytes.subspan(sizeof length + static_cast<std::size_t>(length));
    try {
      parse(nlohmann::json::parse(text, text + length));
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
            std::span<T> into) const {
    auto const& e = at(name);
    if (e.type != type || e.shape != shape) {
      damaged("has " + describe(name, e) + " where " + describe(name, {type, shape, 0, 0}) +
              " is wanted");
    }
    gradlane::expects(into.size_bytes() == e.end - e.begin,
                      "safetensors: the target for " + name + " has the wrong size");
    if (!into.empty()) { std::memcpy(into.data(), data_.data() + e.begin, into.size_bytes()); }
  }

 private:
  [[noreturn]] void damaged(std::string const& what) const {
    throw damaged_file_error{path_, what};
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
    if (e.end > data_.size()) { damaged("ends before its last tensor"); }
    auto count = detail::bytes_of_type(e.type);
    if (count == 0) { return false; }
    for (auto const extent : e.shape) {
      if (extent != 0 && count > data_.size() / extent) { return false; }
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
    if (place != data_.size()) { damaged("has data after its last tensor"); }
  }

  std::filesystem::path path_;
  mapped_file file_;
  std::span<std::byte const> data_;  // behind the header
  std::unordered_map<std::string, entry> entries_;
  std::map<std::string, std::string> metadata_;
};

}  // namespace bert

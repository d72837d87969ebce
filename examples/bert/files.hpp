// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>      // for size_t, byte
#include <cstdint>      // for uint64_t
#include <filesystem>   // for path
#include <span>         // for span
#include <string>       // for string
#include <string_view>  // for string_view
#include <utility>      // for exchange

namespace bert {

/// Sole owner of an open file of the operating system.
class file_handle {
 public:
  file_handle() = default;
  explicit file_handle(int descriptor) noexcept : descriptor_{descriptor} {}
  file_handle(file_handle&& other) noexcept : descriptor_{std::exchange(other.descriptor_, -1)} {}
  file_handle& operator=(file_handle&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  file_handle(file_handle const&)            = delete;
  file_handle& operator=(file_handle const&) = delete;
  ~file_handle();

  [[nodiscard]] int get() const noexcept { return descriptor_; }

 private:
  int descriptor_ = -1;
};

/// A file that is written from its beginning. Nothing is promised to be on the disk before sync().
///
/// Every function throws file_system_error, whose message says so where the disk is full.
class output_file {
 public:
  /// Creates the file, or empties the one that is there.
  explicit output_file(std::filesystem::path path);

  void write(std::span<std::byte const> bytes);
  void write(std::string_view text);
  /// Writes at a place that has been written before.
  void rewrite(std::uint64_t offset, std::span<std::byte const> bytes);
  /// Returns once all that was written is on the disk.
  void sync();

  [[nodiscard]] std::uint64_t size() const noexcept { return size_; }
  [[nodiscard]] std::filesystem::path const& path() const noexcept { return path_; }

 private:
  std::filesystem::path path_;
  file_handle handle_;
  std::uint64_t size_ = 0;
};

/// A file's bytes, read by the operating system as they are touched.
class mapped_file {
 public:
  /// @throws file_system_error if there is no such file.
  explicit mapped_file(std::filesystem::path const& path);
  mapped_file(mapped_file&& other) noexcept : bytes_{std::exchange(other.bytes_, {})} {}
  mapped_file& operator=(mapped_file&& other) noexcept {
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  mapped_file(mapped_file const&)            = delete;
  mapped_file& operator=(mapped_file const&) = delete;
  ~mapped_file();

  [[nodiscard]] std::span<std::byte const> bytes() const noexcept { return bytes_; }

 private:
  std::span<std::byte const> bytes_;
};

/// Bytes [offset, offset + size) of a file, fewer where it ends before.
/// @throws file_system_error if it cannot be read.
[[nodiscard]] std::string read_file(std::filesystem::path const& path,
                                    std::uint64_t offset = 0,
                                    std::uint64_t size   = ~std::uint64_t{0});

/// Gives a file or directory its final name, replacing a file that has it, and makes the name last.
///
/// After a crash the old or the new one is there, whole; the content must have been synced before.
/// @throws file_system_error
void publish(std::filesystem::path const& temporary, std::filesystem::path const& final_name);

/// Makes the names in a directory last. @throws file_system_error
void sync_directory(std::filesystem::path const& directory);

}  // namespace bert

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "errors.hpp"  // for file_system_error

#include <fcntl.h>     // for open
#include <sys/mman.h>  // for mmap, munmap
#include <sys/stat.h>  // for fstat
#include <unistd.h>    // for close, fsync, pread, pwrite

#include <algorithm>     // for min
#include <cerrno>        // for errno, EINTR
#include <cstddef>       // for size_t, byte
#include <cstdint>       // for uint64_t
#include <cstdio>        // for rename
#include <filesystem>    // for path
#include <span>          // for span, as_bytes
#include <string>        // for string
#include <string_view>   // for string_view
#include <system_error>  // for generic_category, error_code
#include <utility>       // for exchange, swap

namespace bert {

namespace detail {

[[noreturn]] inline void fail(std::filesystem::path const& path, std::string_view what, int code) {
  auto const full = code == ENOSPC || code == EDQUOT;
  throw file_system_error{path,
                          std::string{what} + ": " + std::generic_category().message(code) +
                              (full ? "; make room there, or choose another place" : ""),
                          code};
}

/// Sole owner of an open file of the operating system.
class file_handle {
 public:
  file_handle(std::filesystem::path const& path, int flags)
      : descriptor_{::open(path.c_str(), flags | O_CLOEXEC, 0666)} {
    if (descriptor_ < 0) { fail(path, "cannot be opened", errno); }
  }
  file_handle(file_handle&& other) noexcept : descriptor_{std::exchange(other.descriptor_, -1)} {}
  file_handle& operator=(file_handle&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  ~file_handle() {
    if (descriptor_ >= 0) { ::close(descriptor_); }
  }

  [[nodiscard]] int get() const noexcept { return descriptor_; }

 private:
  int descriptor_;
};

inline void sync(file_handle const& handle, std::filesystem::path const& path) {
  if (::fsync(handle.get()) != 0) { fail(path, "cannot be written to the disk", errno); }
}

[[nodiscard]] inline std::uint64_t size_of(file_handle const& handle,
                                           std::filesystem::path const& path) {
  struct stat status = {};
  if (::fstat(handle.get(), &status) != 0) { fail(path, "cannot be read", errno); }
  if (S_ISDIR(status.st_mode)) { fail(path, "cannot be read", EISDIR); }
  return static_cast<std::uint64_t>(status.st_size);
}

}  // namespace detail

/// A file that is written from its beginning. Nothing is promised to be on the disk before sync().
///
/// Every function throws file_system_error, which says so where the disk is full.
class output_file {
 public:
  /// Creates the file, or empties the one that is there.
  explicit output_file(std::filesystem::path path)
      : path_{std::move(path)}, handle_{path_, O_WRONLY | O_CREAT | O_TRUNC} {}

  void write(std::span<std::byte const> bytes) {
    write_at(size_, bytes);
    size_ += bytes.size();
  }
  void write(std::string_view text) { write(std::as_bytes(std::span{text})); }

  /// Writes at a place that has been written before.
  void rewrite(std::uint64_t offset, std::span<std::byte const> bytes) { write_at(offset, bytes); }

  /// Returns once all that was written is on the disk.
  void sync() { detail::sync(handle_, path_); }

  [[nodiscard]] std::uint64_t size() const noexcept { return size_; }
  [[nodiscard]] std::filesystem::path const& path() const noexcept { return path_; }

 private:
  void write_at(std::uint64_t offset, std::span<std::byte const> bytes) {
    while (!bytes.empty()) {
      auto const written =
          ::pwrite(handle_.get(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
      if (written < 0 && errno == EINTR) { continue; }
      if (written < 0) { detail::fail(path_, "cannot be written", errno); }
      bytes = bytes.subspan(static_cast<std::size_t>(written));
      offset += static_cast<std::uint64_t>(written);
    }
  }

  std::filesystem::path path_;
  detail::file_handle handle_;
  std::uint64_t size_ = 0;
};

/// Makes the names in a directory last, where the file system can. @throws file_system_error
inline void sync_directory(std::filesystem::path const& directory) {
  auto const path   = directory.empty() ? std::filesystem::path{"."} : directory;
  auto const handle = detail::file_handle{path, O_RDONLY | O_DIRECTORY};
  if (::fsync(handle.get()) != 0 && errno != EINVAL) {
    detail::fail(path, "cannot be written to the disk", errno);
  }
}

/// Gives a file or directory another name, which lasts; a file that has the name is replaced.
///
/// After a crash the old one or the new one is there; the content must have been synced before.
/// @throws file_system_error
inline void publish(std::filesystem::path const& temporary, std::filesystem::path const& target) {
  if (std::rename(temporary.c_str(), target.c_str()) != 0) {
    detail::fail(target, "cannot get its name", errno);
  }
  sync_directory(target.parent_path());
}

/// A file that gets its name when it is whole and on the disk, or else is removed.
class pending_file {
 public:
  /// Writes to a file beside `target`, called the same with .partial behind.
  explicit pending_file(std::filesystem::path target)
      : target_{std::move(target)}, file_{partial(target_)} {}
  pending_file(pending_file const&)            = delete;
  pending_file& operator=(pending_file const&) = delete;
  ~pending_file() {
    auto ignored = std::error_code{};
    if (!published_) { std::filesystem::remove(file_.path(), ignored); }
  }

  [[nodiscard]] output_file& file() noexcept { return file_; }

  /// @throws file_system_error
  void publish() {
    file_.sync();
    bert::publish(file_.path(), target_);
    published_ = true;
  }

 private:
  [[nodiscard]] static std::filesystem::path partial(std::filesystem::path path) {
    return path += ".partial";
  }

  std::filesystem::path target_;
  output_file file_;
  bool published_ = false;
};

/// A file's bytes, read by the operating system as they are touched.
class mapped_file {
 public:
  /// @throws file_system_error if it cannot be read.
  explicit mapped_file(std::filesystem::path const& path) {
    auto const handle = detail::file_handle{path, O_RDONLY};
    auto const size   = static_cast<std::size_t>(detail::size_of(handle, path));
    if (size == 0) { return; }
    auto* const data = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, handle.get(), 0);
    if (data == MAP_FAILED) { detail::fail(path, "cannot be mapped into memory", errno); }
    bytes_ = {static_cast<std::byte*>(data), size};
  }
  mapped_file(mapped_file&& other) noexcept : bytes_{std::exchange(other.bytes_, {})} {}
  mapped_file& operator=(mapped_file&& other) noexcept {
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~mapped_file() {
    if (!bytes_.empty()) { ::munmap(bytes_.data(), bytes_.size()); }
  }

  [[nodiscard]] std::span<std::byte const> bytes() const noexcept { return bytes_; }

 private:
  std::span<std::byte> bytes_;
};

/// Bytes [offset, offset + size) of a file, fewer where it ends before.
/// @throws file_system_error if it cannot be read.
[[nodiscard]] inline std::string read_file(std::filesystem::path const& path,
                                           std::uint64_t offset = 0,
                                           std::uint64_t size   = ~std::uint64_t{0}) {
  auto const handle    = detail::file_handle{path, O_RDONLY};
  auto const available = detail::size_of(handle, path);
  offset               = std::min(offset, available);
  auto result          = std::string(std::min(size, available - offset), '\0');
  auto done            = std::size_t{0};
  while (done < result.size()) {
    auto const place = static_cast<off_t>(offset + done);
    auto const got   = ::pread(handle.get(), result.data() + done, result.size() - done, place);
    if (got < 0 && errno == EINTR) { continue; }
    if (got < 0) { detail::fail(path, "cannot be read", errno); }
    if (got == 0) { break; }
    done += static_cast<std::size_t>(got);
  }
  result.resize(done);
  return result;
}

}  // namespace bert

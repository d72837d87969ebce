// SPDX-License-Identifier: Apache-2.0
#include "files.hpp"

#include "errors.hpp"  // for file_system_error

#include <fcntl.h>     // for open
#include <sys/mman.h>  // for mmap, munmap
#include <sys/stat.h>  // for fstat
#include <unistd.h>    // for close, fsync, pread, pwrite

#include <algorithm>     // for min
#include <cerrno>        // for errno, EINTR
#include <cstdio>        // for rename
#include <system_error>  // for generic_category

namespace bert {

namespace {

[[noreturn]] void fail(std::filesystem::path const& path, std::string_view what, int code) {
  auto message    = std::string{what} + ": " + std::generic_category().message(code);
  auto const full = code == ENOSPC || code == EDQUOT;
  if (full) { message += "; the disk is full: make room there, or choose another directory"; }
  throw file_system_error{path, message, code};
}

[[nodiscard]] file_handle open_file(std::filesystem::path const& path, int flags) {
  auto handle = file_handle{::open(path.c_str(), flags | O_CLOEXEC, 0644)};
  if (handle.get() < 0) { fail(path, "cannot be opened", errno); }
  return handle;
}

void sync_handle(file_handle const& handle, std::filesystem::path const& path) {
  if (::fsync(handle.get()) != 0) { fail(path, "cannot be written to the disk", errno); }
}

[[nodiscard]] std::uint64_t size_of(file_handle const& handle, std::filesystem::path const& path) {
  struct stat status = {};
  if (::fstat(handle.get(), &status) != 0) { fail(path, "cannot be read", errno); }
  if (S_ISDIR(status.st_mode)) { fail(path, "cannot be read", EISDIR); }
  return static_cast<std::uint64_t>(status.st_size);
}

void write_at(file_handle const& handle,
              std::filesystem::path const& path,
              std::uint64_t offset,
              std::span<std::byte const> bytes) {
  while (!bytes.empty()) {
    auto const written =
        ::pwrite(handle.get(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (written < 0) {
      if (errno == EINTR) { continue; }
      fail(path, "cannot be written", errno);
    }
    bytes = bytes.subspan(static_cast<std::size_t>(written));
    offset += static_cast<std::uint64_t>(written);
  }
}

}  // namespace

file_handle::~file_handle() {
  if (descriptor_ >= 0) { ::close(descriptor_); }
}

output_file::output_file(std::filesystem::path path)
    : path_{std::move(path)}, handle_{open_file(path_, O_WRONLY | O_CREAT | O_TRUNC)} {}

void output_file::write(std::span<std::byte const> bytes) {
  write_at(handle_, path_, size_, bytes);
  size_ += bytes.size();
}

void output_file::write(std::string_view text) { write(std::as_bytes(std::span{text})); }

void output_file::rewrite(std::uint64_t offset, std::span<std::byte const> bytes) {
  write_at(handle_, path_, offset, bytes);
}

void output_file::sync() { sync_handle(handle_, path_); }

mapped_file::mapped_file(std::filesystem::path const& path) {
  auto const handle = open_file(path, O_RDONLY);
  auto const size   = static_cast<std::size_t>(size_of(handle, path));
  if (size == 0) { return; }
  auto* const data = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, handle.get(), 0);
  if (data == MAP_FAILED) { fail(path, "cannot be mapped into memory", errno); }
  bytes_ = {static_cast<std::byte const*>(data), size};
}

mapped_file::~mapped_file() {
  if (!bytes_.empty()) { ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size()); }
}

std::string read_file(std::filesystem::path const& path, std::uint64_t offset, std::uint64_t size) {
  auto const handle    = open_file(path, O_RDONLY);
  auto const available = size_of(handle, path);
  offset               = std::min(offset, available);
  auto result          = std::string(std::min(size, available - offset), '\0');
  auto done            = std::size_t{0};
  while (done < result.size()) {
    auto const got = ::pread(handle.get(),
                             result.data() + done,
                             result.size() - done,
                             static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) { continue; }
    if (got < 0) { fail(path, "cannot be read", errno); }
    if (got == 0) { break; }
    done += static_cast<std::size_t>(got);
  }
  result.resize(done);
  return result;
}

void sync_directory(std::filesystem::path const& directory) {
  auto const path = directory.empty() ? std::filesystem::path{"."} : directory;
  sync_handle(open_file(path, O_RDONLY | O_DIRECTORY), path);
}

void publish(std::filesystem::path const& temporary, std::filesystem::path const& final_name) {
  if (std::rename(temporary.c_str(), final_name.c_str()) != 0) {
    fail(final_name, "cannot get its name", errno);
  }
  sync_directory(final_name.parent_path());
}

}  // namespace bert

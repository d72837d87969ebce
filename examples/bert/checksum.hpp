// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>    // for copy
#include <array>        // for array
#include <bit>          // for rotl
#include <cstddef>      // for size_t, byte
#include <cstdint>      // for uint64_t
#include <cstring>      // for memcpy
#include <span>         // for span, as_bytes
#include <string_view>  // for string_view

namespace bert {

/// A 64-bit checksum of bytes that come in any pieces, as fast as memory; not cryptographic.
///
/// Four lanes of 64 bits take 32 bytes at a time, each by xor, multiplication and rotation; any
/// change of one lane's word changes the result. Little-endian machines only, as all formats here.
class checksum {
 public:
  void add(std::span<std::byte const> bytes) {
    size_ += bytes.size();
    if (pending_ > 0) {
      auto const taken = std::min(block - pending_, bytes.size());
      std::copy(bytes.begin(),
                bytes.begin() + static_cast<std::ptrdiff_t>(taken),
                rest_.begin() + static_cast<std::ptrdiff_t>(pending_));
      pending_ += taken;
      bytes = bytes.subspan(taken);
      if (pending_ < block) { return; }
      mix(rest_.data());
      pending_ = 0;
    }
    for (; bytes.size() >= block; bytes = bytes.subspan(block)) { mix(bytes.data()); }
    std::copy(bytes.begin(), bytes.end(), rest_.begin());
    pending_ = bytes.size();
  }
  void add(std::string_view text) { add(std::as_bytes(std::span{text})); }
  void add(std::uint64_t value) { add(std::as_bytes(std::span{&value, 1})); }

  /// Of all that was added; more may follow.
  [[nodiscard]] std::uint64_t value() const {
    auto last = *this;
    if (last.pending_ > 0) {
      std::fill(last.rest_.begin() + static_cast<std::ptrdiff_t>(pending_),
                last.rest_.end(),
                std::byte{});
      last.mix(last.rest_.data());
    }
    auto result = size_ * first_prime;
    for (auto const lane : last.lanes_) {
      result = std::rotl(result ^ lane, 29) * second_prime;
      result ^= result >> 32U;
    }
    return result;
  }

 private:
  static constexpr std::size_t block          = 32;
  static constexpr std::uint64_t first_prime  = 0x9E3779B185EBCA87U;
  static constexpr std::uint64_t second_prime = 0xC2B2AE3D27D4EB4FU;

  void mix(std::byte const* data) {
    auto words = std::array<std::uint64_t, 4>{};
    std::memcpy(words.data(), data, block);
    for (auto i = std::size_t{0}; i < 4; ++i) {
      lanes_[i] = std::rotl(lanes_[i] ^ (words[i] * second_prime), 31) * first_prime;
    }
  }

  std::array<std::uint64_t, 4> lanes_{1, 2, 3, 4};
  std::array<std::byte, block> rest_{};
  std::size_t pending_ = 0;
  std::uint64_t size_  = 0;
};

}  // namespace bert

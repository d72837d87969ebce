// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/error.hpp>  // for expects
#include <gradlane/types.hpp>  // for dtype, dtype_of, element, size_of

#include <concepts>         // for same_as
#include <cstddef>          // for size_t, byte
#include <source_location>  // for source_location
#include <span>             // for span
#include <string>           // for string
#include <type_traits>      // for is_const_v, remove_const_t, conditional_t

namespace gradlane {

/// A span whose element type is known at run time: contiguous memory of one device, not owned.
///
/// Made from any span of an `element`; `as<T>()` gives that span back. `Byte` is std::byte or
/// std::byte const; a mutable view converts to a const one.
template <class Byte>
class basic_buffer_view {
 public:
  template <class T>
  using span_of =
      std::span<std::conditional_t<std::is_const_v<Byte>, T const, std::remove_const_t<T>>>;

  /// Empty, fp32.
  constexpr basic_buffer_view() = default;

  /// @param data  aligned for `type`; may be null where count is 0.
  constexpr basic_buffer_view(Byte* data, std::size_t count, dtype type) noexcept
      : data_{data}, count_{count}, type_{type} {}

  template <class T, std::size_t Extent>
    requires element<std::remove_const_t<T>> && (std::is_const_v<Byte> || !std::is_const_v<T>)
  basic_buffer_view(std::span<T, Extent> span) noexcept  // NOLINT(google-explicit-constructor)
      : data_{reinterpret_cast<Byte*>(span.data())},
        count_{span.size()},
        type_{dtype_of<std::remove_const_t<T>>} {}

  template <std::same_as<std::byte> Mutable>  // a template: else it would be the copy constructor
    requires std::is_const_v<Byte>
  constexpr basic_buffer_view(  // NOLINT(google-explicit-constructor)
      basic_buffer_view<Mutable> const& other) noexcept
      : data_{other.data()}, count_{other.count()}, type_{other.type()} {}

  [[nodiscard]] constexpr Byte* data() const noexcept { return data_; }
  [[nodiscard]] constexpr std::size_t count() const noexcept { return count_; }
  [[nodiscard]] constexpr dtype type() const noexcept { return type_; }
  [[nodiscard]] constexpr bool empty() const noexcept { return count_ == 0; }
  [[nodiscard]] constexpr std::size_t size_bytes() const noexcept {
    return count_ * size_of(type_);
  }

  /// Elements [offset, offset + count).
  /// @throws contract_error where the range does not lie inside the view.
  [[nodiscard]] constexpr basic_buffer_view subview(
      std::size_t offset,
      std::size_t count,
      std::source_location at = std::source_location::current()) const {
    expects(offset <= count_ && count <= count_ - offset, "buffer_view: range out of bounds", at);
    return {data_ + offset * size_of(type_), count, type_};
  }

  /// The typed span.
  /// @throws contract_error where T is not the view's element type.
  template <element T>
  [[nodiscard]] span_of<T> as(std::source_location at = std::source_location::current()) const {
    if (dtype_of<T> != type_) {
      throw contract_error{"buffer_view: asked for " + std::string{name_of(dtype_of<T>)} +
                               ", holds " + std::string{name_of(type_)},
                           at};
    }
    return {reinterpret_cast<typename span_of<T>::pointer>(data_), count_};
  }

 private:
  Byte* data_{};
  std::size_t count_{};
  dtype type_{dtype::fp32};
};

using buffer_view       = basic_buffer_view<std::byte>;
using const_buffer_view = basic_buffer_view<std::byte const>;

}  // namespace gradlane

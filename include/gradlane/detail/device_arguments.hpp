// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/buffer_view.hpp>  // for buffer_view, const_buffer_view
#include <gradlane/error.hpp>        // for contract_error
#include <gradlane/types.hpp>        // for dtype, is_floating, name_of

#include <cstddef>          // for size_t
#include <source_location>  // for source_location
#include <string>           // for string, to_string

namespace gradlane::detail {

/// What a device's functions ask of their arguments, alike on all devices: see the concept device.
/// Each function here has the name of the one whose arguments it checks, and throws contract_error.
class device_arguments {
 public:
  /// @param device  the class, as messages name it.
  device_arguments(char const* device, std::source_location at) : device_{device}, at_{at} {}

  void copy(const_buffer_view in, buffer_view out) const {
    fit("copy", in.count(), out.count());
    same("copy", in.type(), out.type());
  }

  void upload(std::size_t bytes, buffer_view out) const {
    fit("upload (bytes)", bytes, out.size_bytes());
    if (bytes > most_uploaded) { refuse("upload", "over 64 KiB"); }
  }

  void download(const_buffer_view in, std::size_t bytes) const {
    fit("download (bytes)", in.size_bytes(), bytes);
  }

  void cast(const_buffer_view in, buffer_view out) const {
    fit("cast", in.count(), out.count());
    floating("cast", in.type());
    floating("cast", out.type());
  }

  void scale(buffer_view x) const { floating("scale", x.type()); }

  void accumulate(const_buffer_view in, buffer_view out) const {
    fit("accumulate", in.count(), out.count());
    floating("accumulate", in.type());
    if (out.type() != dtype::fp32 && out.type() != dtype::fp64) {
      refuse("accumulate", "out must be fp32 or fp64");
    }
  }

  template <class List>
  void sum_of_squares(List const& list) const {
    floating("sum_of_squares", list.type());
  }

  template <class List>
  void first_non_finite(List const& list) const {
    floating("first_non_finite", list.type());
  }

  template <class List>
  void pack(List const& from, List const& to) const {
    fit("pack", from, to);
    floating("pack", from.type());
    floating("pack", to.type());
  }

  template <class List>
  void dot_products(List const& a, List const& b) const {
    alike("dot_products", a, b);
  }

  template <class List>
  void combine(List const& a, List const& b, List const& out) const {
    alike("combine", a, b);
    alike("combine", a, out);
  }

  static constexpr std::size_t most_uploaded = std::size_t{64} * 1024;

 private:
  [[noreturn]] void refuse(char const* what, std::string const& why) const {
    throw contract_error{std::string{device_} + "::" + what + ": " + why, at_};
  }

  void fit(char const* what, std::size_t in, std::size_t out) const {
    if (in != out) {
      refuse(what, "the input has " + std::to_string(in) + ", the output " + std::to_string(out));
    }
  }

  template <class List>
  void fit(char const* what, List const& a, List const& b) const {
    auto const in  = a.tensors();
    auto const out = b.tensors();
    if (in.size() != out.size()) {
      refuse(what,
             "the lists hold " + std::to_string(in.size()) + " and " + std::to_string(out.size()) +
                 " tensors");
    }
    for (std::size_t i = 0; i < in.size(); ++i) { fit(what, in[i].count(), out[i].count()); }
  }

  /// Lists of the same floating dtype and shapes.
  template <class List>
  void alike(char const* what, List const& a, List const& b) const {
    fit(what, a, b);
    same(what, a.type(), b.type());
    floating(what, a.type());
  }

  void same(char const* what, dtype in, dtype out) const {
    if (in != out) {
      refuse(what,
             "the input is " + std::string{name_of(in)} + ", the output " +
                 std::string{name_of(out)} + "; use cast");
    }
  }

  void floating(char const* what, dtype type) const {
    if (!is_floating(type)) {
      refuse(what, "needs fp32, fp64, bf16 or fp16, not " + std::string{name_of(type)});
    }
  }

  char const* device_;
  std::source_location at_;
};

}  // namespace gradlane::detail

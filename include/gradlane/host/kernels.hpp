// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/buffer_view.hpp>  // for buffer_view, const_buffer_view
#include <gradlane/concepts.hpp>     // for non_finite_location
#include <gradlane/types.hpp>        // for dtype, bf16, fp16

#include <algorithm>    // for min
#include <array>        // for array
#include <cmath>        // for isfinite
#include <cstddef>      // for size_t, byte
#include <cstring>      // for memcpy, memset
#include <span>         // for span
#include <type_traits>  // for is_same_v, type_identity

namespace gradlane::host::kernels {

namespace detail {

template <floating_element T>
[[nodiscard]] constexpr double widened(T value) noexcept {
  if constexpr (std::is_same_v<T, double>) {
    return value;
  } else {
    return static_cast<double>(static_cast<float>(value));
  }
}

/// Calls `function` with the std::type_identity of a floating dtype's C++ type.
template <class F>
void visit_floating(dtype type, F&& function) {
  switch (type) {
    case dtype::fp32:
      return function(std::type_identity<float>{});
    case dtype::fp64:
      return function(std::type_identity<double>{});
    case dtype::bf16:
      return function(std::type_identity<bf16>{});
    case dtype::fp16:
      return function(std::type_identity<fp16>{});
    default:
      return;
  }
}

}  // namespace detail

/// Σ x² in fp64: element i goes to lane i mod 32, and the lanes are added as a tree at the end.
class square_sum {
 public:
  static constexpr std::size_t lanes = 32;

  /// Adds a part; the elements of all parts but the last must be a multiple of `lanes`.
  template <floating_element T>
  void add(std::span<T const> part) noexcept {
    for (std::size_t i = 0; i < part.size(); ++i) {
      auto const x = detail::widened(part[i]);
      lane_[i % lanes] += x * x;
    }
  }

  [[nodiscard]] double total() const noexcept {
    auto sums = lane_;
    for (auto half = lanes / 2; half > 0; half /= 2) {
      for (std::size_t i = 0; i < half; ++i) { sums[i] += sums[i + half]; }
    }
    return sums[0];
  }

 private:
  std::array<double, lanes> lane_{};
};

/// Σ over the tensors, one after the other, of each one's square_sum.
[[nodiscard]] inline double sum_of_squares(std::span<buffer_view const> tensors) {
  auto total = 0.0;
  for (auto const& tensor : tensors) {
    detail::visit_floating(tensor.type(), [&]<class T>(std::type_identity<T>) {
      auto sum = square_sum{};
      sum.add(std::span<T const>{tensor.as<T>()});
      total += sum.total();
    });
  }
  return total;
}

/// out[i] = in[i] · c, rounded once.
template <floating_element In, floating_element Out>
void cast(std::span<In const> in, std::span<Out> out, float c) noexcept {
  auto const factor = static_cast<double>(c);
  for (std::size_t i = 0; i < in.size(); ++i) {
    out[i] = static_cast<Out>(detail::widened(in[i]) * factor);
  }
}

inline void cast(const_buffer_view in, buffer_view out, float c) {
  detail::visit_floating(in.type(), [&]<class In>(std::type_identity<In>) {
    detail::visit_floating(out.type(), [&]<class Out>(std::type_identity<Out>) {
      cast(in.as<In>(), out.as<Out>(), c);
    });
  });
}

inline void zero(buffer_view x) noexcept {
  if (!x.empty()) { std::memset(x.data(), 0, x.size_bytes()); }
}

inline void copy(const_buffer_view in, buffer_view out) noexcept {
  if (!in.empty() && in.data() != out.data()) {
    std::memcpy(out.data(), in.data(), in.size_bytes());
  }
}

/// x[i] *= c; zero where c is 0, untouched where c is 1.
inline void scale(buffer_view x, float c) {
  if (c == 0.0F) { return zero(x); }
  if (c != 1.0F) { cast(x, x, c); }
}

/// out[i] += in[i], added in the wider of the two types.
inline void accumulate(const_buffer_view in, buffer_view out) {
  detail::visit_floating(in.type(), [&]<class In>(std::type_identity<In>) {
    detail::visit_floating(out.type(), [&]<class Out>(std::type_identity<Out>) {
      auto const from = in.as<In>();
      auto const to   = out.as<Out>();
      for (std::size_t i = 0; i < from.size(); ++i) {
        to[i] = static_cast<Out>(detail::widened(to[i]) + detail::widened(from[i]));
      }
    });
  });
}

/// out = in, tensor by tensor; *sum, where not null, is sum_of_squares(in) from the same pass.
inline void pack(std::span<buffer_view const> in, std::span<buffer_view const> out, double* sum) {
  for (std::size_t i = 0; i < in.size(); ++i) { cast(in[i], out[i], 1.0F); }
  if (sum != nullptr) { *sum = sum_of_squares(in); }
}

/// The first Inf or NaN in list order.
[[nodiscard]] inline non_finite_location first_non_finite(std::span<buffer_view const> tensors) {
  auto found = non_finite_location{};
  for (std::size_t t = 0; t < tensors.size() && found.tensor == non_finite_location::none; ++t) {
    detail::visit_floating(tensors[t].type(), [&]<class T>(std::type_identity<T>) {
      auto const x = tensors[t].as<T>();
      for (std::size_t i = 0; i < x.size(); ++i) {
        if (!std::isfinite(detail::widened(x[i]))) {
          found = {.tensor = t, .offset = i};
          return;
        }
      }
    });
  }
  return found;
}

}  // namespace gradlane::host::kernels

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/buffer_view.hpp>       // for buffer_view, const_buffer_view
#include <gradlane/concepts.hpp>          // for non_finite_location
#include <gradlane/host/inner_loops.hpp>  // for block, portable_loops, avx2_loops, square_lanes
#include <gradlane/types.hpp>             // for dtype, floating_element, round_to_odd

#include <algorithm>    // for copy_n, find_if, min
#include <array>        // for array
#include <bit>          // for bit_cast
#include <cmath>        // for isfinite, fma
#include <cstddef>      // for size_t
#include <cstdint>      // for uint64_t, uintptr_t
#include <cstring>      // for memcpy, memset
#include <span>         // for span
#include <tuple>        // for tuple_size_v
#include <type_traits>  // for conditional_t, is_same_v, type_identity

/// What host::device does to memory, as plain functions on spans and views.
///
/// Each is templated over the inner loops that it is made of, and has an overload that picks the
/// loops for the machine it runs on. All loops give the same bits, whatever the alignment, the
/// load of the machine or the flags of the compiler (but that fp64 on other machines than x86-64
/// may be contracted to fused multiply-adds).
namespace gradlane::host::kernels {

namespace detail {

template <class T>
inline constexpr bool is_half = sizeof(T) == 2;

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

/// Calls `function` with the fastest loops that this machine can run.
template <class F>
void with_best_loops(F&& function) {
#if defined(__x86_64__) && defined(__GNUC__)
  if (avx2_loops::supported()) { return function(avx2_loops{}); }
#endif
  function(portable_loops{});
}

/// Asks for the cache lines of the block that lies 4 KiB ahead: the hardware's own prefetching
/// stops at the end of a page, and pauses while a block is worked on.
template <class T>
void prefetch_after(std::span<T const> part) noexcept {
#if defined(__GNUC__)
  auto const ahead = reinterpret_cast<std::uintptr_t>(part.data()) + 4096;
  for (std::size_t line = 0; line < part.size_bytes(); line += 64) {
    __builtin_prefetch(reinterpret_cast<void const*>(ahead + line));
  }
#endif
}

/// Calls `function(first, count)` for [0, size) in blocks, of which the last may be shorter.
template <class F>
void for_each_block(std::size_t size, F&& function) {
  for (std::size_t first = 0; first < size; first += block_size) {
    function(first, std::min(block_size, size - first));
  }
}

/// A block of `part`, with zeros behind it where it is shorter.
template <class T>
void load(std::span<T const> part, block<T> out) noexcept {
  std::memcpy(out.data(), part.data(), part.size_bytes());
  std::memset(
      static_cast<void*>(out.data() + part.size()), 0, out.size_bytes() - part.size_bytes());
}

/// The type in which a block of T is worked on.
template <class T>
using wide_t = std::conditional_t<std::is_same_v<T, double>, double, float>;

template <class T>
using wide_block = std::array<wide_t<T>, block_size>;

/// load() and, for types of 16 bits, widen().
template <class Loops, class T>
void load_wide(std::span<T const> part, wide_block<T>& out) noexcept {
  if constexpr (!is_half<T>) {
    load(part, block<T>{out});
  } else if (part.size() == block_size) {
    Loops::widen(block<T const>{part}, block<float>{out});
  } else {
    std::array<T, block_size> padded;  // NOLINT(*-member-init): filled by load
    load(part, block<T>{padded});
    Loops::widen(block<T const>{padded}, block<float>{out});
  }
}

/// x · c, rounded to odd where it is not exact, so that a later rounding is as good as the only
/// one.
[[nodiscard]] inline double product_to_odd(double x, double c) noexcept {
  auto const product = x * c;
  auto const rest    = std::fma(x, c, -product);
  if (!std::isfinite(product) || rest == 0) { return product; }
  auto bits = std::bit_cast<std::uint64_t>(product);
  if ((rest < 0) != (product < 0)) { --bits; }  // the exact product is nearer to zero
  return std::bit_cast<double>(bits | 1U);
}

/// out = x · c, rounded once; spoils x.
template <class Loops, class Out>
void scale_block(std::array<float, block_size>& x,
                 float c,
                 std::array<Out, block_size>& out) noexcept {
  if constexpr (is_half<Out>) {
    if (c != 1.0F) { Loops::scale_to_odd(block<float>{x}, c); }
    Loops::narrow(block<float const>{x}, block<Out>{out});
  } else {
    for (std::size_t i = 0; i < block_size; ++i) {
      out[i] = static_cast<Out>(x[i]) * static_cast<Out>(c);
    }
  }
}

template <class Loops, class Out>
void scale_block(std::array<double, block_size>& x,
                 float c,
                 std::array<Out, block_size>& out) noexcept {
  auto const factor = static_cast<double>(c);
  if constexpr (std::is_same_v<Out, double>) {
    for (std::size_t i = 0; i < block_size; ++i) { out[i] = x[i] * factor; }
  } else {
    if (c != 1.0F) {
      for (auto& value : x) { value = product_to_odd(value, factor); }
    }
    for (std::size_t i = 0; i < block_size; ++i) { out[i] = static_cast<Out>(x[i]); }
  }
}

}  // namespace detail

/// Σ x² of one tensor in fp64: element i is added to lane i mod 32, the lanes as a tree at the end.
template <class Loops>
class square_sum {
 public:
  /// The size of each part but the last must be a multiple of the lanes.
  template <class T>
  void add(std::span<T const> part) noexcept {
    auto const whole = part.size() / lanes_.size() * lanes_.size();
    Loops::add_squares(lanes_, part.first(whole));
    if (whole != part.size()) {
      auto padded = std::array<T, std::tuple_size_v<square_lanes>>{};
      std::copy_n(part.data() + whole, part.size() - whole, padded.begin());
      Loops::add_squares(lanes_, std::span<T const>{padded});
    }
  }

  [[nodiscard]] double total() const noexcept {
    auto sums = lanes_;
    for (auto half = sums.size() / 2; half > 0; half /= 2) {
      for (std::size_t i = 0; i < half; ++i) { sums[i] += sums[i + half]; }
    }
    return sums[0];
  }

 private:
  square_lanes lanes_{};
};

/// Σ x²; Inf or NaN where an element is.
template <class Loops, floating_element T>
[[nodiscard]] double sum_of_squares(std::span<T const> x) noexcept {
  auto sum = square_sum<Loops>{};
  detail::for_each_block(x.size(), [&](std::size_t first, std::size_t count) {
    auto const part = x.subspan(first, count);
    detail::prefetch_after(part);
    if constexpr (detail::is_half<T>) {
      detail::wide_block<T> wide;  // NOLINT(*-member-init): filled by load_wide
      detail::load_wide<Loops>(part, wide);
      sum.add(std::span<float const>{wide}.first(count));
    } else {
      sum.add(part);
    }
  });
  return sum.total();
}

/// out[i] = in[i] · c, rounded once. In place where `in` and `out` are the same memory.
template <class Loops, floating_element In, floating_element Out>
void cast(std::span<In const> in, std::span<Out> out, float c) noexcept {
  detail::for_each_block(in.size(), [&](std::size_t first, std::size_t count) {
    auto const part = in.subspan(first, count);
    detail::wide_block<In> wide;         // NOLINT(*-member-init): filled by load_wide
    std::array<Out, block_size> result;  // NOLINT(*-member-init)
    detail::prefetch_after(part);
    detail::load_wide<Loops>(part, wide);
    detail::scale_block<Loops>(wide, c, result);
    std::memcpy(out.data() + first, result.data(), count * sizeof(Out));
  });
}

/// out[i] = in[i], rounded once; returns sum_of_squares(in), from the same pass and of the same
/// bits.
template <class Loops, floating_element In, floating_element Out>
[[nodiscard]] double pack(std::span<In const> in, std::span<Out> out) noexcept {
  auto sum = square_sum<Loops>{};
  detail::for_each_block(in.size(), [&](std::size_t first, std::size_t count) {
    auto const part = in.subspan(first, count);
    detail::wide_block<In> wide;  // NOLINT(*-member-init): filled by load_wide
    detail::prefetch_after(part);
    detail::load_wide<Loops>(part, wide);
    sum.add(std::span<detail::wide_t<In> const>{wide}.first(count));
    if constexpr (std::is_same_v<In, Out>) {
      std::memcpy(out.data() + first, part.data(), part.size_bytes());
    } else {
      std::array<Out, block_size> result;  // NOLINT(*-member-init): filled by scale_block
      detail::scale_block<Loops>(wide, 1.0F, result);
      std::memcpy(out.data() + first, result.data(), count * sizeof(Out));
    }
  });
  return sum.total();
}

/// out[i] += in[i], added in the wider of the two types.
template <class Loops, floating_element In, floating_element Out>
void accumulate(std::span<In const> in, std::span<Out> out) noexcept {
  using wider = std::conditional_t<sizeof(Out) == 8, double, detail::wide_t<In>>;
  detail::for_each_block(in.size(), [&](std::size_t first, std::size_t count) {
    auto const part = in.subspan(first, count);
    detail::wide_block<In> addend;     // NOLINT(*-member-init): filled by load_wide
    std::array<Out, block_size> sums;  // NOLINT(*-member-init): filled by load
    detail::prefetch_after(part);
    detail::load_wide<Loops>(part, addend);
    detail::load(std::span<Out const>{out}.subspan(first, count), block<Out>{sums});
    for (std::size_t i = 0; i < block_size; ++i) {
      sums[i] = static_cast<Out>(static_cast<wider>(sums[i]) + static_cast<wider>(addend[i]));
    }
    std::memcpy(out.data() + first, sums.data(), count * sizeof(Out));
  });
}

inline void zero(buffer_view x) noexcept {
  if (!x.empty()) { std::memset(x.data(), 0, x.size_bytes()); }
}

/// out = in, of the same dtype.
inline void copy(const_buffer_view in, buffer_view out) noexcept {
  if (!in.empty() && in.data() != out.data()) {
    std::memcpy(out.data(), in.data(), in.size_bytes());
  }
}

/// Σ over the tensors, one after the other, of each one's sum of squares.
[[nodiscard]] inline double sum_of_squares(std::span<buffer_view const> tensors) {
  auto total = 0.0;
  detail::with_best_loops([&]<class Loops>(Loops) {
    for (auto const& tensor : tensors) {
      detail::visit_floating(tensor.type(), [&]<class T>(std::type_identity<T>) {
        total += sum_of_squares<Loops>(std::span<T const>{tensor.as<T>()});
      });
    }
  });
  return total;
}

inline void cast(const_buffer_view in, buffer_view out, float c) {
  if (in.type() == out.type() && c == 1.0F) { return copy(in, out); }
  detail::with_best_loops([&]<class Loops>(Loops) {
    detail::visit_floating(in.type(), [&]<class In>(std::type_identity<In>) {
      detail::visit_floating(out.type(), [&]<class Out>(std::type_identity<Out>) {
        cast<Loops>(in.as<In>(), out.as<Out>(), c);
      });
    });
  });
}

/// x[i] *= c; zero where c is 0, untouched where c is 1.
inline void scale(buffer_view x, float c) {
  if (c == 0.0F) { return zero(x); }
  cast(x, x, c);
}

/// `out` is fp32 or fp64.
inline void accumulate(const_buffer_view in, buffer_view out) {
  detail::with_best_loops([&]<class Loops>(Loops) {
    detail::visit_floating(in.type(), [&]<class In>(std::type_identity<In>) {
      if (out.type() == dtype::fp32) {
        accumulate<Loops>(in.as<In>(), out.as<float>());
      } else {
        accumulate<Loops>(in.as<In>(), out.as<double>());
      }
    });
  });
}

/// out = in, tensor by tensor; *sum, where not null, becomes sum_of_squares(in).
inline void pack(std::span<buffer_view const> in, std::span<buffer_view const> out, double* sum) {
  auto total = 0.0;
  detail::with_best_loops([&]<class Loops>(Loops) {
    for (std::size_t i = 0; i < in.size(); ++i) {
      if (sum == nullptr) {
        cast(in[i], out[i], 1.0F);
        continue;
      }
      detail::visit_floating(in[i].type(), [&]<class In>(std::type_identity<In>) {
        detail::visit_floating(out[i].type(), [&]<class Out>(std::type_identity<Out>) {
          total += pack<Loops>(std::span<In const>{in[i].as<In>()}, out[i].as<Out>());
        });
      });
    }
  });
  if (sum != nullptr) { *sum = total; }
}

/// The first Inf or NaN in list order.
[[nodiscard]] inline non_finite_location first_non_finite(std::span<buffer_view const> tensors) {
  auto found = non_finite_location{};
  for (std::size_t t = 0; t < tensors.size() && found.tensor == non_finite_location::none; ++t) {
    detail::visit_floating(tensors[t].type(), [&]<class T>(std::type_identity<T>) {
      auto const x     = tensors[t].as<T>();
      auto const where = std::find_if(x.begin(), x.end(), [](T value) {
        return !std::isfinite(static_cast<detail::wide_t<T>>(value));
      });
      if (where != x.end()) {
        found = {.tensor = t, .offset = static_cast<std::uint64_t>(where - x.begin())};
      }
    });
  }
  return found;
}

}  // namespace gradlane::host::kernels

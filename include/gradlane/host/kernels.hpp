// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/adasum/combine.hpp>    // for adasum_coefficients, pair_products
#include <gradlane/buffer_view.hpp>       // for buffer_view, const_buffer_view
#include <gradlane/concepts.hpp>          // for non_finite_location
#include <gradlane/detail/smaller.hpp>    // for smaller
#include <gradlane/host/inner_loops.hpp>  // for block, portable_loops, avx2_loops, avx512_loops
#include <gradlane/types.hpp>             // for dtype, floating_element, round_to_odd

#include <array>        // for array
#include <bit>          // for bit_cast
#include <cmath>        // for isfinite, fma
#include <cstddef>      // for byte, size_t
#include <cstdint>      // for uint64_t, uintptr_t
#include <cstring>      // for memcpy, memset
#include <span>         // for span
#include <type_traits>  // for conditional_t, is_same_v

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

/// Calls `function` with the fastest loops that this machine can run.
template <class F>
void with_best_loops(F&& function) {
#if defined(__x86_64__) && defined(__GNUC__)
  if (avx512_loops::supported()) { return function(avx512_loops{}); }
  if (avx2_loops::supported()) { return function(avx2_loops{}); }
#endif
  function(portable_loops{});
}

/// Calls `function` with a value of the type in which elements of `type` are worked on.
template <class F>
void with_wide_type(dtype type, F&& function) {
  if (type == dtype::fp64) { return function(double{}); }
  function(float{});
}

/// Asks for the cache lines of the block that lies 4 KiB ahead: the hardware's own prefetching
/// stops at the end of a page, and pauses while a block is worked on.
inline void prefetch_after(const_buffer_view part) noexcept {
#if defined(__GNUC__)
  auto const ahead = reinterpret_cast<std::uintptr_t>(part.data()) + 4096;
  for (std::size_t line = 0; line < part.size_bytes(); line += 64) {
    __builtin_prefetch(reinterpret_cast<void const*>(ahead + line));
  }
#endif
}

/// Elements [first, first + count) of a view.
template <class View>
[[nodiscard]] View part_of(View x, std::size_t first, std::size_t count) noexcept {
  return {x.data() + first * size_of(x.type()), count, x.type()};
}

/// Calls `function(part, first)` for the blocks of x, of which the last may be shorter.
template <class F>
void for_each_block(const_buffer_view x, F&& function) {
  for (std::size_t first = 0; first < x.count(); first += block_size) {
    auto const part = part_of(x, first, gradlane::detail::smaller(block_size, x.count() - first));
    prefetch_after(part);
    function(part, first);
  }
}

/// Calls `function(part of in, part of out)` for their blocks.
template <class F>
void for_each_block(const_buffer_view in, buffer_view out, F&& function) {
  for_each_block(in, [&](const_buffer_view part, std::size_t first) {
    auto const to = part_of(out, first, part.count());
    prefetch_after(to);
    function(part, to);
  });
}

/// `count` elements of T at `from`, with zeros behind them.
template <class T>
void load_padded(std::byte const* from, std::size_t count, block<T>& out) noexcept {
  std::memcpy(out.data(), from, count * sizeof(T));
  std::memset(static_cast<void*>(out.data() + count), 0, (block_size - count) * sizeof(T));
}

template <class Loops, class Half>
void load_half(const_buffer_view part, block<float>& out) noexcept {
  if (part.count() == block_size) {
    return Loops::widen(*reinterpret_cast<block<Half> const*>(part.data()), out);
  }
  block<Half> padded;  // NOLINT(*-member-init): filled by load_padded
  load_padded(part.data(), part.count(), padded);
  Loops::widen(padded, out);
}

/// A block, with zeros behind it, as the type in which it is worked on.
template <class Loops>
void load(const_buffer_view part, block<float>& out) noexcept {
  switch (part.type()) {
    case dtype::bf16:
      return load_half<Loops, bf16>(part, out);
    case dtype::fp16:
      return load_half<Loops, fp16>(part, out);
    default:
      return load_padded(part.data(), part.count(), out);
  }
}
template <class Loops>
void load(const_buffer_view part, block<double>& out) noexcept {
  load_padded(part.data(), part.count(), out);
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
void scale_block(block<float>& x, float c, block<Out>& out) noexcept {
  if constexpr (is_half<Out>) {
    if (c != 1.0F) { Loops::scale_to_odd(x, c); }
    Loops::narrow(x, out);
  } else {
    for (std::size_t i = 0; i < block_size; ++i) {
      out[i] = static_cast<Out>(x[i]) * static_cast<Out>(c);
    }
  }
}

template <class Loops, class Out>
void scale_block(block<double>& x, float c, block<Out>& out) noexcept {
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

/// out = x · c, rounded once; spoils x.
template <class Loops, class Wide>
void store(block<Wide>& x, float c, buffer_view out) noexcept {
  auto const store_as = [&]<class Out>(Out) {
    block<Out> result;  // NOLINT(*-member-init): filled by scale_block
    scale_block<Loops>(x, c, result);
    std::memcpy(out.data(), result.data(), out.size_bytes());
  };
  switch (out.type()) {
    case dtype::fp64:
      return store_as(double{});
    case dtype::bf16:
      return store_as(bf16{});
    case dtype::fp16:
      return store_as(fp16{});
    default:
      return store_as(float{});
  }
}

template <std::size_t Lanes>
[[nodiscard]] double tree_sum(std::array<double, Lanes> sums) noexcept {
  for (auto half = Lanes / 2; half > 0; half /= 2) {
    for (std::size_t i = 0; i < half; ++i) { sums[i] += sums[i + half]; }
  }
  return sums[0];
}

/// out += x, added in the wider of the two types.
template <class Out, class Wide>
void add_to(buffer_view out, block<Wide> const& x) noexcept {
  using wider = std::conditional_t<sizeof(Out) == 8, double, Wide>;
  block<Out> sums;  // NOLINT(*-member-init): filled by load_padded
  load_padded(out.data(), out.count(), sums);
  for (std::size_t i = 0; i < block_size; ++i) {
    sums[i] = static_cast<Out>(static_cast<wider>(sums[i]) + static_cast<wider>(x[i]));
  }
  std::memcpy(out.data(), sums.data(), out.size_bytes());
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
      auto padded = std::array<T, square_lane_count>{};
      std::memcpy(padded.data(), part.data() + whole, (part.size() - whole) * sizeof(T));
      Loops::add_squares(lanes_, std::span<T const>{padded});
    }
  }

  [[nodiscard]] double total() const noexcept { return detail::tree_sum(lanes_); }

 private:
  square_lanes lanes_{};
};

/// The products of one pair of tensors in fp64: element i goes to lane i mod 16, the lanes as a
/// tree at the end.
template <class Loops>
class product_sum {
 public:
  /// The size of each part but the last must be a multiple of the lanes.
  template <class T>
  void add(std::span<T const> x, std::span<T const> y) noexcept {
    auto const whole = x.size() / product_lane_count * product_lane_count;
    Loops::add_products(lanes_, x.first(whole), y.first(whole));
    if (whole != x.size()) {
      auto const left  = padded(x.subspan(whole));
      auto const right = padded(y.subspan(whole));
      Loops::add_products(lanes_, std::span<T const>{left}, std::span<T const>{right});
    }
  }

  [[nodiscard]] pair_products total() const noexcept {
    return {.dot = detail::tree_sum(lanes_.dot),
            .a   = detail::tree_sum(lanes_.x),
            .b   = detail::tree_sum(lanes_.y)};
  }

 private:
  template <class T>
  [[nodiscard]] static std::array<T, product_lane_count> padded(std::span<T const> rest) noexcept {
    auto result = std::array<T, product_lane_count>{};
    std::memcpy(result.data(), rest.data(), rest.size_bytes());
    return result;
  }

  product_lanes lanes_{};
};

inline void zero(buffer_view x) noexcept {
  if (!x.empty()) { std::memset(x.data(), 0, x.size_bytes()); }
}

/// out = in, of the same dtype.
inline void copy(const_buffer_view in, buffer_view out) noexcept {
  if (!in.empty() && in.data() != out.data()) {
    std::memcpy(out.data(), in.data(), in.size_bytes());
  }
}

/// Σ x²; Inf or NaN where an element is.
template <class Loops>
[[nodiscard]] double sum_of_squares(const_buffer_view x) {
  auto sum = square_sum<Loops>{};
  detail::with_wide_type(x.type(), [&]<class Wide>(Wide) {
    detail::for_each_block(x, [&](const_buffer_view part, std::size_t) {
      if (part.type() == dtype_of<Wide>) { return sum.add(part.as<Wide>()); }
      block<Wide> wide;  // NOLINT(*-member-init): filled by load
      detail::load<Loops>(part, wide);
      sum.add(std::span<Wide const>{wide}.first(part.count()));
    });
  });
  return sum.total();
}

/// out[i] = in[i] · c, rounded once. In place where `in` and `out` are the same memory.
template <class Loops>
void cast(const_buffer_view in, buffer_view out, float c) {
  detail::with_wide_type(in.type(), [&]<class Wide>(Wide) {
    detail::for_each_block(in, out, [&](const_buffer_view from, buffer_view to) {
      block<Wide> wide;  // NOLINT(*-member-init): filled by load
      detail::load<Loops>(from, wide);
      detail::store<Loops>(wide, c, to);
    });
  });
}

/// out[i] = in[i], rounded once; returns sum_of_squares(in), from the same pass and of the same
/// bits.
template <class Loops>
[[nodiscard]] double pack(const_buffer_view in, buffer_view out) {
  auto sum = square_sum<Loops>{};
  detail::with_wide_type(in.type(), [&]<class Wide>(Wide) {
    detail::for_each_block(in, out, [&](const_buffer_view from, buffer_view to) {
      block<Wide> wide;  // NOLINT(*-member-init): filled by load
      detail::load<Loops>(from, wide);
      sum.add(std::span<Wide const>{wide}.first(from.count()));
      if (from.type() == to.type()) { return copy(from, to); }
      detail::store<Loops>(wide, 1.0F, to);
    });
  });
  return sum.total();
}

/// out[i] += in[i], added in the wider of the two types; `out` is fp32 or fp64.
template <class Loops>
void accumulate(const_buffer_view in, buffer_view out) {
  detail::with_wide_type(in.type(), [&]<class Wide>(Wide) {
    detail::for_each_block(in, out, [&](const_buffer_view from, buffer_view to) {
      block<Wide> wide;  // NOLINT(*-member-init): filled by load
      detail::load<Loops>(from, wide);
      if (to.type() == dtype::fp32) { return detail::add_to<float>(to, wide); }
      detail::add_to<double>(to, wide);
    });
  });
}

/// x·y, ‖x‖² and ‖y‖² of tensors of one type and size.
template <class Loops>
[[nodiscard]] pair_products dot_products(const_buffer_view x, const_buffer_view y) {
  auto sum = product_sum<Loops>{};
  detail::with_wide_type(x.type(), [&]<class Wide>(Wide) {
    detail::for_each_block(x, [&](const_buffer_view left, std::size_t first) {
      auto const right = detail::part_of(y, first, left.count());
      detail::prefetch_after(right);
      if (left.type() == dtype_of<Wide>) { return sum.add(left.as<Wide>(), right.as<Wide>()); }
      block<Wide> a;  // NOLINT(*-member-init): filled by load
      block<Wide> b;  // NOLINT(*-member-init): filled by load
      detail::load<Loops>(left, a);
      detail::load<Loops>(right, b);
      sum.add(std::span<Wide const>{a}.first(left.count()),
              std::span<Wide const>{b}.first(left.count()));
    });
  });
  return sum.total();
}

/// out[i] = c.a · x[i] + c.b · y[i] in fp64, rounded to the type in which elements are worked on
/// and from there to out's. In place where `out` is x or y.
template <class Loops>
void combine(const_buffer_view x, const_buffer_view y, pair_coefficients c, buffer_view out) {
  detail::with_wide_type(x.type(), [&]<class Wide>(Wide) {
    detail::for_each_block(x, [&](const_buffer_view left, std::size_t first) {
      auto const right = detail::part_of(y, first, left.count());
      detail::prefetch_after(right);
      block<Wide> a;  // NOLINT(*-member-init): filled by load
      block<Wide> b;  // NOLINT(*-member-init): filled by load
      detail::load<Loops>(left, a);
      detail::load<Loops>(right, b);
      Loops::combine(a, b, c.a, c.b);
      detail::store<Loops>(a, 1.0F, detail::part_of(out, first, left.count()));
    });
  });
}

/// Σ over the tensors, one after the other, of each one's sum of squares.
[[nodiscard]] inline double sum_of_squares(std::span<buffer_view const> tensors) {
  auto total = 0.0;
  detail::with_best_loops([&]<class Loops>(Loops) {
    for (auto const& tensor : tensors) { total += sum_of_squares<Loops>(tensor); }
  });
  return total;
}

/// out[i] = in[i] · c, rounded once; zero where c is 0, even over Inf and NaN.
inline void cast(const_buffer_view in, buffer_view out, float c) {
  if (c == 0.0F) { return zero(out); }
  if (in.type() == out.type() && c == 1.0F) { return copy(in, out); }
  detail::with_best_loops([&]<class Loops>(Loops) { cast<Loops>(in, out, c); });
}

/// x[i] *= c; zero where c is 0, untouched where c is 1.
inline void scale(buffer_view x, float c) { cast(x, x, c); }

inline void accumulate(const_buffer_view in, buffer_view out) {
  detail::with_best_loops([&]<class Loops>(Loops) { accumulate<Loops>(in, out); });
}

/// out = in, tensor by tensor; *sum, where not null, becomes sum_of_squares(in).
inline void pack(std::span<buffer_view const> in, std::span<buffer_view const> out, double* sum) {
  if (sum == nullptr) {
    for (std::size_t i = 0; i < in.size(); ++i) { cast(in[i], out[i], 1.0F); }
    return;
  }
  auto total = 0.0;
  detail::with_best_loops([&]<class Loops>(Loops) {
    for (std::size_t i = 0; i < in.size(); ++i) { total += pack<Loops>(in[i], out[i]); }
  });
  *sum = total;
}

/// out[t] = the products of tensors t of both lists.
inline void dot_products(std::span<buffer_view const> a,
                         std::span<buffer_view const> b,
                         pair_products* out) {
  detail::with_best_loops([&]<class Loops>(Loops) {
    for (std::size_t t = 0; t < a.size(); ++t) { out[t] = dot_products<Loops>(a[t], b[t]); }
  });
}

/// out = adasum(a, b), tensor by tensor, whose products are given.
inline void combine(std::span<buffer_view const> a,
                    std::span<buffer_view const> b,
                    pair_products const* products,
                    std::span<buffer_view const> out) {
  detail::with_best_loops([&]<class Loops>(Loops) {
    for (std::size_t t = 0; t < a.size(); ++t) {
      combine<Loops>(a[t], b[t], adasum_coefficients(products[t]), out[t]);
    }
  });
}

/// The first Inf or NaN in list order.
[[nodiscard]] inline non_finite_location first_non_finite(std::span<buffer_view const> tensors) {
  auto found = non_finite_location{};
  for (std::size_t t = 0; t < tensors.size() && found.tensor == non_finite_location::none; ++t) {
    detail::with_wide_type(tensors[t].type(), [&]<class Wide>(Wide) {
      detail::for_each_block(tensors[t], [&](const_buffer_view part, std::size_t first) {
        if (found.tensor != non_finite_location::none) { return; }
        block<Wide> wide;  // NOLINT(*-member-init): filled by load
        detail::load<portable_loops>(part, wide);
        for (std::size_t i = 0; i < part.count(); ++i) {
          if (!std::isfinite(wide[i])) {
            found = {.tensor = t, .offset = first + i};
            return;
          }
        }
      });
    });
  }
  return found;
}

}  // namespace gradlane::host::kernels

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/types.hpp>  // for bf16, fp16, round_to_odd

#include <array>    // for array
#include <cstddef>  // for size_t
#include <cstdint>  // for uint16_t, uint32_t
#include <cstring>  // for memcpy
#include <span>     // for span

namespace gradlane::host {

/// The unit in which kernels work, in elements: its copies stay in the first-level cache.
inline constexpr std::size_t block_size = 256;

template <class T>
using block = std::array<T, block_size>;

/// Partial sums of squares: element i of a tensor goes to lane i mod 32, on every machine.
inline constexpr std::size_t square_lane_count = 32;
using square_lanes                             = std::array<double, square_lane_count>;

/// Partial sums of x·y, x² and y²: element i of a pair of tensors goes to lane i mod 16.
inline constexpr std::size_t product_lane_count = 16;
struct product_lanes {
  using lanes = std::array<double, product_lane_count>;
  lanes dot{};
  lanes x{};
  lanes y{};
};

/// The inner loops of all kernels in plain C++, for any machine; what `avx2_loops` must equal.
///
/// The square of a float is exact in double, so that a fused multiply-add changes no bit.
struct portable_loops {
  /// lanes[i mod 32] += x[i]²; the size of x is a multiple of 32.
  template <class T>
  static void add_squares(square_lanes& lanes, std::span<T const> x) noexcept {
    auto sums = lanes;  // a copy: registers, for x might alias lanes
    for (std::size_t i = 0; i < x.size(); i += sums.size()) {
      for (std::size_t lane = 0; lane < sums.size(); ++lane) {
        auto const value = static_cast<double>(x[i + lane]);
        sums[lane] += value * value;
      }
    }
    lanes = sums;
  }

  /// Adds x[i]·y[i], x[i]² and y[i]² to lane i mod 16; the size of x and y is a multiple of 16.
  template <class T>
  static void add_products(product_lanes& lanes,
                           std::span<T const> x,
                           std::span<T const> y) noexcept {
    auto sums = lanes;
    for (std::size_t i = 0; i < x.size(); i += product_lane_count) {
      for (std::size_t lane = 0; lane < product_lane_count; ++lane) {
        auto const a = static_cast<double>(x[i + lane]);
        auto const b = static_cast<double>(y[i + lane]);
        sums.dot[lane] += a * b;
        sums.x[lane] += a * a;
        sums.y[lane] += b * b;
      }
    }
    lanes = sums;
  }

  /// x[i] = cx · x[i] + cy · y[i] in fp64, each product rounded, and at last the sum to T.
  template <class T>
  static void combine(block<T>& x, block<T> const& y, double cx, double cy) noexcept {
    for (std::size_t i = 0; i < block_size; ++i) {
      auto const a = cx * static_cast<double>(x[i]);
      auto const b = cy * static_cast<double>(y[i]);
      x[i]         = static_cast<T>(a + b);
    }
  }

  /// out[i] = in[i], exact.
  template <class T>
  static void widen(block<T> const& in, block<float>& out) noexcept {
    for (std::size_t i = 0; i < block_size; ++i) { out[i] = static_cast<float>(in[i]); }
  }

  /// out[i] = in[i], to nearest, ties to even.
  template <class T>
  static void narrow(block<float> const& in, block<T>& out) noexcept {
    for (std::size_t i = 0; i < block_size; ++i) { out[i] = T{in[i]}; }
  }

  /// x[i] *= c rounded to odd: narrow() then gives what one rounding of the product would.
  static void scale_to_odd(block<float>& x, float c) noexcept {
    auto const factor = static_cast<double>(c);
    for (auto& value : x) {
      value = gradlane::detail::round_to_odd(static_cast<double>(value) * factor);
    }
  }
};

#if defined(__x86_64__) && defined(__GNUC__)

/// The same for x86-64 with AVX2, FMA and F16C, whatever the compiler was told to build for. Same
/// bits as portable_loops; only a signalling fp16 NaN may become quiet.
///
/// Written with vector extensions: <immintrin.h> would double the weight of the library's headers.
struct avx2_loops {
  [[nodiscard]] static bool supported() noexcept {
    // NOLINTBEGIN(readability-implicit-bool-conversion): int for g++, bool for clang
    return __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0 &&
           __builtin_cpu_supports("f16c") != 0;
    // NOLINTEND(readability-implicit-bool-conversion)
  }

  template <class T>
  [[gnu::target("avx2,fma,f16c")]] static void add_squares(square_lanes& lanes,
                                                           std::span<T const> x) noexcept {
    auto s0 = load<f64x4>(&lanes[0]);
    auto s1 = load<f64x4>(&lanes[4]);
    auto s2 = load<f64x4>(&lanes[8]);
    auto s3 = load<f64x4>(&lanes[12]);
    auto s4 = load<f64x4>(&lanes[16]);
    auto s5 = load<f64x4>(&lanes[20]);
    auto s6 = load<f64x4>(&lanes[24]);
    auto s7 = load<f64x4>(&lanes[28]);
    for (auto const *at = x.data(), *end = at + x.size(); at != end; at += 32) {
      s0 += square4(at);
      s1 += square4(at + 4);
      s2 += square4(at + 8);
      s3 += square4(at + 12);
      s4 += square4(at + 16);
      s5 += square4(at + 20);
      s6 += square4(at + 24);
      s7 += square4(at + 28);
    }
    store(lanes.data(), s0);
    store(&lanes[4], s1);
    store(&lanes[8], s2);
    store(&lanes[12], s3);
    store(&lanes[16], s4);
    store(&lanes[20], s5);
    store(&lanes[24], s6);
    store(&lanes[28], s7);
  }

  template <class T>
  [[gnu::target("avx2,fma,f16c")]] static void add_products(product_lanes& lanes,
                                                            std::span<T const> x,
                                                            std::span<T const> y) noexcept {
    constexpr std::size_t registers = product_lane_count / 4;
    f64x4 dots[registers];
    f64x4 xs[registers];
    f64x4 ys[registers];
    for (std::size_t r = 0; r < registers; ++r) {
      dots[r] = load<f64x4>(&lanes.dot[4 * r]);
      xs[r]   = load<f64x4>(&lanes.x[4 * r]);
      ys[r]   = load<f64x4>(&lanes.y[4 * r]);
    }
    auto const* b = y.data();
    for (auto const *a = x.data(), *end = a + x.size(); a != end; a += 16, b += 16) {
#ifndef __CUDACC__  // which warns of it
#pragma GCC unroll 4
#endif
      for (std::size_t r = 0; r < registers; ++r) {
        auto const left  = load_f64(a + 4 * r);
        auto const right = load_f64(b + 4 * r);
        dots[r] += rounded(a, left * right);
        xs[r] += rounded(a, left * left);
        ys[r] += rounded(a, right * right);
      }
    }
    for (std::size_t r = 0; r < registers; ++r) {
      store(&lanes.dot[4 * r], dots[r]);
      store(&lanes.x[4 * r], xs[r]);
      store(&lanes.y[4 * r], ys[r]);
    }
  }

  [[gnu::target("avx2,fma,f16c")]] static void combine(block<float>& x,
                                                       block<float> const& y,
                                                       double cx,
                                                       double cy) noexcept {
    auto const scale_x = f64x4{} + cx;
    auto const scale_y = f64x4{} + cy;
    for (std::size_t i = 0; i < block_size; i += 4) {
      store(&x[i], to_f32(weighted_sum(load_f64(&x[i]), scale_x, load_f64(&y[i]), scale_y)));
    }
  }

  [[gnu::target("avx2,fma,f16c")]] static void combine(block<double>& x,
                                                       block<double> const& y,
                                                       double cx,
                                                       double cy) noexcept {
    auto const scale_x = f64x4{} + cx;
    auto const scale_y = f64x4{} + cy;
    for (std::size_t i = 0; i < block_size; i += 4) {
      store(&x[i], weighted_sum(load_f64(&x[i]), scale_x, load_f64(&y[i]), scale_y));
    }
  }

  [[gnu::target("avx2,fma,f16c")]] static void widen(block<bf16> const& in,
                                                     block<float>& out) noexcept {
    for (std::size_t i = 0; i < block_size; i += 8) {
      store(&out[i], to_u32(load<u16x8>(&in[i])) << 16U);
    }
  }

  [[gnu::target("avx2,fma,f16c")]] static void widen(block<fp16> const& in,
                                                     block<float>& out) noexcept {
    for (std::size_t i = 0; i < block_size; i += 8) {
      store(&out[i], __builtin_ia32_vcvtph2ps256(load<i16x8>(&in[i])));
    }
  }

  [[gnu::target("avx2,fma,f16c")]] static void narrow(block<float> const& in,
                                                      block<bf16>& out) noexcept {
    for (std::size_t i = 0; i < block_size; i += 8) {
      auto const value   = load<f32x8>(&in[i]);
      auto const bits    = reinterpret_cast<u32x8>(value);
      auto const rounded = (bits + 0x7FFFU + ((bits >> 16U) & 1U)) >> 16U;
      auto const quiet   = (bits >> 16U) | 0x40U;
      store(&out[i], __builtin_convertvector(value == value ? rounded : quiet, u16x8));
    }
  }

  [[gnu::target("avx2,fma,f16c")]] static void narrow(block<float> const& in,
                                                      block<fp16>& out) noexcept {
    for (std::size_t i = 0; i < block_size; i += 8) {
      store(&out[i], __builtin_ia32_vcvtps2ph256(load<f32x8>(&in[i]), 0));  // 0: nearest, even
    }
  }

  [[gnu::target("avx2,fma,f16c")]] static void scale_to_odd(block<float>& x, float c) noexcept {
    auto const factor = f64x4{} + static_cast<double>(c);
    for (std::size_t i = 0; i < block_size; i += 4) {
      auto const product = to_f64(load<f32x4>(&x[i])) * factor;
      auto const nearest = to_f32(product);
      auto const back    = to_f64(nearest);
      auto const away    = low_words(magnitude(back) > magnitude(product));
      auto const inexact = low_words(back != product);
      store(&x[i], (reinterpret_cast<i32x4>(nearest) + away) | (inexact & 1));
    }
  }

 protected:
  using f32x4 = float __attribute__((vector_size(16)));
  using f32x8 = float __attribute__((vector_size(32)));
  using f64x4 = double __attribute__((vector_size(32)));
  using i16x8 = std::int16_t __attribute__((vector_size(16)));
  using u16x8 = std::uint16_t __attribute__((vector_size(16)));
  using i32x4 = std::int32_t __attribute__((vector_size(16)));
  using i32x8 = std::int32_t __attribute__((vector_size(32)));
  using u32x8 = std::uint32_t __attribute__((vector_size(32)));
  using i64x4 = std::int64_t __attribute__((vector_size(32)));

  template <class V>
  [[gnu::target("avx2,fma,f16c"), gnu::always_inline]] static V load(void const* from) noexcept {
    V value;
    std::memcpy(&value, from, sizeof value);
    return value;
  }

  template <class V>
  [[gnu::target("avx2,fma,f16c"), gnu::always_inline]] static void store(void* to,
                                                                         V value) noexcept {
    std::memcpy(to, &value, sizeof value);
  }

  [[gnu::target("avx2,fma,f16c"), gnu::always_inline]] static f64x4 load_f64(
      float const* from) noexcept {
    return to_f64(load<f32x4>(from));
  }
  [[gnu::target("avx2,fma,f16c"), gnu::always_inline]] static f64x4 load_f64(
      double const* from) noexcept {
    return load<f64x4>(from);
  }

  /// A product that is not to be contracted with an addition, where that would change bits: of
  /// elements of type T it does for double.
  template <class T>
  [[gnu::target("avx2,fma,f16c"), gnu::always_inline]] static f64x4 rounded(
      T const* /*elements*/, f64x4 product) noexcept {
    if constexpr (sizeof(T) == sizeof(double)) { asm("" : "+x"(product)); }
    return product;
  }

  template <class T>
  [[gnu::target("avx2,fma,f16c"), gnu::always_inline]] static f64x4 square4(
      T const* from) noexcept {
    auto const x = load_f64(from);
    return rounded(from, x * x);
  }

  [[gnu::target("avx2,fma,f16c"), gnu::always_inline]] static f64x4 weighted_sum(
      f64x4 x, f64x4 cx, f64x4 y, f64x4 cy) noexcept {
    auto a = x * cx;
    auto b = y * cy;
    asm("" : "+x"(a), "+x"(b));  // not to be contracted
    return a + b;
  }

  [[gnu::target("avx2,fma,f16c"), gnu::always_inline]] static f64x4 magnitude(f64x4 x) noexcept {
    return reinterpret_cast<f64x4>(reinterpret_cast<i64x4>(x) & ~(std::int64_t{1} << 63));
  }

  [[gnu::target("avx2,fma,f16c"), gnu::always_inline]] static i32x4 low_words(i64x4 x) noexcept {
    auto const words = reinterpret_cast<i32x8>(x);
    return __builtin_shufflevector(words, words, 0, 2, 4, 6);
  }

  // g++ 12 splits these conversions in two where it is not told the instruction.
#if defined(__clang__)
  [[gnu::target("avx2,fma,f16c"), gnu::always_inline]] static f64x4 to_f64(f32x4 x) noexcept {
    return __builtin_convertvector(x, f64x4);
  }
  [[gnu::target("avx2,fma,f16c"), gnu::always_inline]] static f32x4 to_f32(f64x4 x) noexcept {
    return __builtin_convertvector(x, f32x4);
  }
  [[gnu::target("avx2,fma,f16c"), gnu::always_inline]] static u32x8 to_u32(u16x8 x) noexcept {
    return __builtin_convertvector(x, u32x8);
  }
#else
  [[gnu::target("avx2,fma,f16c"), gnu::always_inline]] static f64x4 to_f64(f32x4 x) noexcept {
    return __builtin_ia32_cvtps2pd256(x);
  }
  [[gnu::target("avx2,fma,f16c"), gnu::always_inline]] static f32x4 to_f32(f64x4 x) noexcept {
    return __builtin_ia32_cvtpd2ps256(x);
  }
  [[gnu::target("avx2,fma,f16c"), gnu::always_inline]] static u32x8 to_u32(u16x8 x) noexcept {
    return reinterpret_cast<u32x8>(__builtin_ia32_pmovzxwd256(reinterpret_cast<i16x8>(x)));
  }
#endif
};

/// avx2_loops with 512-bit registers where these pay: sums of squares of 16-bit types, which would
/// else not keep up with memory.
struct avx512_loops : avx2_loops {
  [[nodiscard]] static bool supported() noexcept {
    // NOLINTBEGIN(readability-implicit-bool-conversion): int for g++, bool for clang
    return avx2_loops::supported() && __builtin_cpu_supports("avx512f") != 0 &&
           __builtin_cpu_supports("avx512bw") != 0;
    // NOLINTEND(readability-implicit-bool-conversion)
  }

  static void add_squares(square_lanes& lanes, std::span<double const> x) noexcept {
    avx2_loops::add_squares(lanes, x);
  }
  static void widen(block<fp16> const& in, block<float>& out) noexcept {
    avx2_loops::widen(in, out);
  }

  [[gnu::target("avx512f,avx512bw")]] static void add_squares(square_lanes& lanes,
                                                              std::span<float const> x) noexcept {
    auto s0 = load_512<f64x8>(&lanes[0]);
    auto s1 = load_512<f64x8>(&lanes[8]);
    auto s2 = load_512<f64x8>(&lanes[16]);
    auto s3 = load_512<f64x8>(&lanes[24]);
    for (auto const *at = x.data(), *end = at + x.size(); at != end; at += 32) {
      s0 += square8(at);
      s1 += square8(at + 8);
      s2 += square8(at + 16);
      s3 += square8(at + 24);
    }
    std::memcpy(&lanes[0], &s0, sizeof s0);
    std::memcpy(&lanes[8], &s1, sizeof s1);
    std::memcpy(&lanes[16], &s2, sizeof s2);
    std::memcpy(&lanes[24], &s3, sizeof s3);
  }

  [[gnu::target("avx512f,avx512bw")]] static void widen(block<bf16> const& in,
                                                        block<float>& out) noexcept {
    for (std::size_t i = 0; i < block_size; i += 16) {
      auto const bits = to_u32(load_512<u16x16>(&in[i])) << 16U;
      std::memcpy(&out[i], &bits, sizeof bits);
    }
  }

 private:
  using f64x8  = double __attribute__((vector_size(64)));
  using i16x16 = std::int16_t __attribute__((vector_size(32)));
  using u16x16 = std::uint16_t __attribute__((vector_size(32)));
  using i32x16 = std::int32_t __attribute__((vector_size(64)));
  using u32x16 = std::uint32_t __attribute__((vector_size(64)));

  template <class V>
  [[gnu::target("avx512f,avx512bw"), gnu::always_inline]] static V load_512(
      void const* from) noexcept {
    V value;
    std::memcpy(&value, from, sizeof value);
    return value;
  }

#if defined(__clang__)
  [[gnu::target("avx512f,avx512bw"), gnu::always_inline]] static f64x8 square8(
      float const* from) noexcept {
    auto const x = __builtin_convertvector(load_512<f32x8>(from), f64x8);
    return x * x;
  }
  [[gnu::target("avx512f,avx512bw"), gnu::always_inline]] static u32x16 to_u32(u16x16 x) noexcept {
    return __builtin_convertvector(x, u32x16);
  }
#else
  [[gnu::target("avx512f,avx512bw"), gnu::always_inline]] static f64x8 square8(
      float const* from) noexcept {
    auto const x = __builtin_ia32_cvtps2pd512_mask(load_512<f32x8>(from), f64x8{}, -1, 4);
    return x * x;
  }
  [[gnu::target("avx512f,avx512bw"), gnu::always_inline]] static u32x16 to_u32(u16x16 x) noexcept {
    return reinterpret_cast<u32x16>(
        __builtin_ia32_pmovzxwd512_mask(reinterpret_cast<i16x16>(x), i32x16{}, 0xFFFF));
  }
#endif
};

#endif

}  // namespace gradlane::host

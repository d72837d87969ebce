// SPDX-License-Identifier: Apache-2.0
#include <gradlane/types.hpp>  // for all that is tested

#include <doctest/doctest.h>

#include <support/rounding.hpp>  // for infinity_bits, magnitude_of, nearest, same, to_double

#include <bit>          // for bit_cast
#include <cmath>        // for isnan, nextafter, ldexp
#include <cstdint>      // for uint16_t, uint32_t
#include <limits>       // for numeric_limits
#include <random>       // for mt19937_64
#include <string_view>  // for string_view
#include <type_traits>  // for is_trivially_copyable_v

using namespace gradlane;
using gradlane::test::infinity_bits;
using gradlane::test::magnitude_of;
using gradlane::test::nearest;
using gradlane::test::quad;
using gradlane::test::same;
using gradlane::test::to_double;

namespace {

template <class T>
[[nodiscard]] T pattern(unsigned bits) {
  return std::bit_cast<T>(static_cast<std::uint16_t>(bits));
}

/// The patterns that `value`, as float and as double, must round to, with both signs.
template <class T>
[[nodiscard]] bool rounds_to(double value, unsigned expected) {
  auto good = T{value}.bits == expected && T{-value}.bits == (expected | 0x8000U);
  if (auto const single = static_cast<float>(value); static_cast<double>(single) == value) {
    good = good && T{single}.bits == expected && T{-single}.bits == (expected | 0x8000U);
  }
  return good;
}

}  // namespace

static_assert(sizeof(bf16) == 2 && alignof(bf16) == 2 && std::is_trivially_copyable_v<bf16>);
static_assert(sizeof(fp16) == 2 && alignof(fp16) == 2 && std::is_trivially_copyable_v<fp16>);
static_assert(static_cast<float>(bf16{1.5F}) == 1.5F && static_cast<float>(fp16{-2.0}) == -2.0F);

TEST_CASE_TEMPLATE("16-bit floats come back from float and double as they were, all 2^16",
                   T,
                   bf16,
                   fp16) {
  auto wrong = 0;
  for (unsigned bits = 0; bits < 0x10000U; ++bits) {
    auto const x      = pattern<T>(bits);
    auto const single = static_cast<float>(x);
    auto const twice  = static_cast<double>(single);
    if (std::isnan(single)) {
      auto const is_nan = (bits & 0x7FFFU) > infinity_bits<T>;
      auto const stays =
          std::isnan(static_cast<float>(T{single})) && std::isnan(static_cast<float>(T{twice}));
      wrong += is_nan && stays ? 0 : 1;
    } else {
      wrong += T{single}.bits == bits && T{twice}.bits == bits ? 0 : 1;
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("fp16 has the values of IEEE 754 binary16") {
  auto wrong = 0;
  for (unsigned bits = 0; bits < 0x7C00U; ++bits) {
    auto const exponent = static_cast<int>(bits >> 10U);
    auto const fraction = static_cast<int>(bits & 0x3FFU);
    auto const value =
        exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
    wrong += to_double(pattern<fp16>(bits)) == value &&
                     to_double(pattern<fp16>(bits | 0x8000U)) == -value
                 ? 0
                 : 1;
  }
  CHECK(wrong == 0);
  CHECK(static_cast<float>(pattern<fp16>(0x7C00)) == std::numeric_limits<float>::infinity());
  CHECK(static_cast<float>(pattern<fp16>(0xFC00)) == -std::numeric_limits<float>::infinity());
}

TEST_CASE("bf16 is the upper half of a float") {
  auto wrong = 0;
  for (unsigned bits = 0; bits < 0x10000U; ++bits) {
    auto const single = static_cast<float>(pattern<bf16>(bits));
    wrong += std::bit_cast<std::uint32_t>(single) == bits << 16U ? 0 : 1;
  }
  CHECK(wrong == 0);
}

// Every tie between two neighbours, and the doubles next to it: a double just beside a tie becomes
// the tie itself when it is rounded to float first. The last tie is the one before infinity.
TEST_CASE_TEMPLATE("16-bit floats round to nearest, ties to even, once", T, bf16, fp16) {
  auto wrong = 0;
  for (unsigned low = 0; low < infinity_bits<T>; ++low) {
    auto const high  = low + 1;
    auto const below = magnitude_of<T>(static_cast<std::uint16_t>(low));
    auto const above = magnitude_of<T>(static_cast<std::uint16_t>(high));
    auto const tie   = below + (above - below) / 2;
    auto const good  = rounds_to<T>(tie, low % 2 == 0 ? low : high) &&
                      rounds_to<T>(std::nextafter(tie, below), low) &&
                      rounds_to<T>(std::nextafter(tie, above), high) &&
                      rounds_to<T>(std::nextafter(below, above), low) &&
                      rounds_to<T>(std::nextafter(above, below), high);
    auto const as_float = static_cast<float>(tie);
    auto const good_float =
        T{std::nextafter(as_float, 0.0F)}.bits == low &&
        T{std::nextafter(as_float, std::numeric_limits<float>::infinity())}.bits == high;
    wrong += good && good_float ? 0 : 1;
  }
  CHECK(wrong == 0);
}

TEST_CASE_TEMPLATE("16-bit floats round random floats and doubles as a search does",
                   T,
                   bf16,
                   fp16) {
  auto random = std::mt19937_64{7};
  auto wrong  = 0;
  for (int i = 0; i < 100'000; ++i) {
    auto const single = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
    auto const twice =
        static_cast<double>(single) * (1 + static_cast<double>(random() % 1000) * 0x1p-45);
    wrong += same(T{single}, nearest<T>(static_cast<quad>(single))) &&
                     same(T{twice}, nearest<T>(static_cast<quad>(twice)))
                 ? 0
                 : 1;
  }
  CHECK(wrong == 0);
}

TEST_CASE_TEMPLATE("16-bit floats take what is out of range to infinity, and what is tiny to zero",
                   T,
                   bf16,
                   fp16) {
  auto const infinity = static_cast<unsigned>(infinity_bits<T>);
  CHECK(rounds_to<T>(std::numeric_limits<double>::infinity(), infinity));
  CHECK(rounds_to<T>(std::numeric_limits<double>::max(), infinity));
  CHECK(rounds_to<T>(static_cast<double>(std::numeric_limits<float>::max()), infinity));
  CHECK(rounds_to<T>(std::numeric_limits<double>::denorm_min(), 0));
  CHECK(rounds_to<T>(0.0, 0));
  for (auto const bits : {0x7F800001U, 0x7FBFFFFFU, 0x7FC00000U, 0x7FFFFFFFU}) {  // kinds of NaN
    auto const nan = std::bit_cast<float>(bits);
    CHECK(std::isnan(static_cast<float>(T{nan})));
    CHECK(std::isnan(static_cast<float>(T{-nan})));
    CHECK(std::isnan(static_cast<float>(T{static_cast<double>(nan)})));
  }
}

TEST_CASE("fp16 keeps 65504, rounds 65519 down to it and 65520 to infinity") {
  CHECK(static_cast<float>(fp16{65504.0F}) == 65504.0F);
  CHECK(static_cast<float>(fp16{65519.0F}) == 65504.0F);
  CHECK(fp16{65520.0F}.bits == 0x7C00);
  CHECK(fp16{std::nextafter(65520.0, 0.0)}.bits == 0x7BFF);
}

TEST_CASE("dtype knows size, kind and name of every element type") {
  CHECK(size_of(dtype_of<float>) == sizeof(float));
  CHECK(size_of(dtype_of<double>) == sizeof(double));
  CHECK(size_of(dtype_of<bf16>) == sizeof(bf16));
  CHECK(size_of(dtype_of<fp16>) == sizeof(fp16));
  CHECK(size_of(dtype_of<std::uint8_t>) == sizeof(std::uint8_t));
  CHECK(size_of(dtype_of<std::int32_t>) == sizeof(std::int32_t));
  CHECK(size_of(dtype_of<std::uint32_t>) == sizeof(std::uint32_t));
  CHECK(size_of(dtype_of<std::int64_t>) == sizeof(std::int64_t));
  CHECK(size_of(dtype_of<std::uint64_t>) == sizeof(std::uint64_t));
  CHECK(is_floating(dtype::bf16));
  CHECK_FALSE(is_floating(dtype::uint64));
  CHECK(name_of(dtype::fp16) == "fp16");
  CHECK(name_of(dtype::int64) == "int64");
  CHECK(name_of(reduction::average) == "average");
  static_assert(floating_element<bf16> && !floating_element<std::int32_t>);
  static_assert(!element<short> && !element<bool>);
}

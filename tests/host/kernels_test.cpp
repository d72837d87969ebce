// SPDX-License-Identifier: Apache-2.0
#include <gradlane/buffer_view.hpp>       // for buffer_view
#include <gradlane/host/inner_loops.hpp>  // for portable_loops, avx2_loops
#include <gradlane/host/kernels.hpp>      // for all that is tested
#include <gradlane/types.hpp>             // for bf16, fp16, floating_element

#include <doctest/doctest.h>

#include <support/rounding.hpp>  // for nearest, same, finite_values, integers

#include <algorithm>  // for all_of, copy, equal
#include <array>      // for array
#include <bit>        // for bit_cast
#include <cmath>      // for frexp, isfinite, isinf, isnan, ldexp
#include <cstddef>    // for size_t, ptrdiff_t
#include <cstdint>    // for int64_t, uint64_t
#include <cstring>    // for memcmp
#include <limits>     // for numeric_limits
#include <random>     // for mt19937
#include <span>       // for span
#include <vector>     // for vector

namespace {

using namespace gradlane;
using namespace gradlane::test;
namespace kernels = gradlane::host::kernels;

// around the lanes (32), the block (256) and several blocks
constexpr auto sizes =
    std::array<std::size_t, 12>{0, 1, 7, 31, 32, 33, 255, 256, 257, 511, 1000, 4099};

constexpr auto coefficients = std::array<float, 8>{1.0F,
                                                   0.5F,
                                                   0.3F,
                                                   -1.7F,
                                                   3.0e-5F,
                                                   1.0e30F,
                                                   0.99999994F,
                                                   std::numeric_limits<float>::denorm_min()};

template <class T>
[[nodiscard]] T poison() {
  return T{std::numeric_limits<float>::quiet_NaN()};
}

/// `count` elements `offset` elements behind aligned memory, with poison on both sides.
template <class T>
class fenced {
 public:
  fenced(std::vector<T> const& values, std::size_t offset)
      : offset_{offset}, memory_(values.size() + offset + 64, poison<T>()) {
    std::copy(values.begin(), values.end(), memory_.begin() + static_cast<std::ptrdiff_t>(offset));
    count_ = values.size();
  }
  [[nodiscard]] std::span<T> span() { return std::span{memory_}.subspan(offset_, count_); }
  [[nodiscard]] bool intact() const {
    for (std::size_t i = 0; i < memory_.size(); ++i) {
      auto const inside = i >= offset_ && i < offset_ + count_;
      if (!inside && !std::isnan(to_double(memory_[i]))) { return false; }
    }
    return true;
  }

 private:
  std::size_t offset_;
  std::size_t count_{0};
  std::vector<T> memory_;
};

/// Element i to lane i mod 32, lanes as a tree: what the header promises, in its plainest form.
template <class T>
[[nodiscard]] double plain_sum_of_squares(std::span<T const> x) {
  auto lanes = std::array<double, 32>{};
  for (std::size_t i = 0; i < x.size(); ++i) { lanes[i % 32] += to_double(x[i]) * to_double(x[i]); }
  for (std::size_t half = 16; half > 0; half /= 2) {
    for (std::size_t i = 0; i < half; ++i) { lanes[i] += lanes[i + half]; }
  }
  return lanes[0];
}

[[nodiscard]] std::uint64_t bits(double x) { return std::bit_cast<std::uint64_t>(x); }

/// Calls `check` with all loops that this machine can run.
template <class F>
void with_all_loops(F check) {
  check(host::portable_loops{});
#if defined(__x86_64__) && defined(__GNUC__)
  if (host::avx2_loops::supported()) { check(host::avx2_loops{}); }
  if (host::avx512_loops::supported()) { check(host::avx512_loops{}); }
#endif
}

/// Calls `check` with a value of each floating type.
template <class F>
void with_all_types(F check) {
  check(float{});
  check(double{});
  check(bf16{});
  check(fp16{});
}

template <class Loops, class In, class Out>
void check_cast() {
  for (auto const size : sizes) {
    for (auto const c : coefficients) {
      auto const values = finite_values<In>(size, size);
      auto in           = fenced{values, size % 5};
      auto out          = fenced{std::vector<Out>(size), size % 3};
      kernels::cast<Loops>(std::span<In const>{in.span()}, out.span(), c);
      REQUIRE(in.intact());
      REQUIRE(out.intact());
      for (std::size_t i = 0; i < size; ++i) {
        auto const exact    = static_cast<quad>(to_double(values[i])) * static_cast<quad>(c);
        auto const expected = nearest<Out>(exact);
        if (!same(out.span()[i], expected)) {
          FAIL("element ",
               i,
               ": ",
               to_double(values[i]),
               " * ",
               c,
               " = ",
               to_double(out.span()[i]),
               ", expected ",
               to_double(expected));
        }
      }
    }
  }
}

template <class Loops, class In, class Out>
void check_pack() {
  for (auto const size : sizes) {
    auto const values = integers<In>(size, size);
    auto in           = fenced{values, size % 5};
    auto out          = fenced{std::vector<Out>(size), size % 3};
    auto const x      = std::span<In const>{in.span()};
    auto const sum    = kernels::pack<Loops>(x, out.span());
    CHECK(bits(sum) == bits(kernels::sum_of_squares<Loops>(x)));
    REQUIRE(in.intact());
    REQUIRE(out.intact());
    for (std::size_t i = 0; i < size; ++i) {
      REQUIRE(to_double(out.span()[i]) == to_double(values[i]));
    }
  }
}

template <class Loops, class In, class Out>
void check_accumulate() {
  for (auto const size : sizes) {
    auto const values = finite_values<In>(size, size);
    auto const start  = finite_values<Out>(size, size + 1);
    auto in           = fenced{values, size % 5};
    auto out          = fenced{start, size % 3};
    kernels::accumulate<Loops>(std::span<In const>{in.span()}, out.span());
    REQUIRE(in.intact());
    REQUIRE(out.intact());
    for (std::size_t i = 0; i < size; ++i) {
      auto expected = Out{};
      if constexpr (std::is_same_v<In, double> || std::is_same_v<Out, double>) {
        expected = static_cast<Out>(static_cast<double>(start[i]) + to_double(values[i]));
      } else {
        expected = start[i] + static_cast<Out>(values[i]);
      }
      REQUIRE(same(out.span()[i], expected));
    }
  }
}

template <class Loops, class T>
void check_sum_of_squares() {
  [[maybe_unused]] auto exponent = 0;
  for (auto const size : sizes) {
    for (std::size_t offset = 0; offset < 5; ++offset) {
      auto values = finite_values<T>(size, size);
      if constexpr (std::is_same_v<T, double>) {  // lest the squares overflow
        for (auto& value : values) {
          value = std::ldexp(std::frexp(value, &exponent), exponent % 99);
        }
      }
      auto x = fenced{values, offset};
      CAPTURE(size);
      CHECK(bits(kernels::sum_of_squares<Loops>(std::span<T const>{x.span()})) ==
            bits(plain_sum_of_squares(std::span<T const>{values})));
    }
  }
}

/// Products that a rounding in In would put on a tie of Out, or across it.
template <class Loops, class In, class Out>
void check_next_to_ties() {
  constexpr std::size_t count = 2000;
  auto const neighbours       = finite_values<Out>(count, 5);
  auto random                 = std::mt19937{5};
  auto rounded_twice          = 0;
  for (auto const value : neighbours) {
    auto const next =
        std::bit_cast<Out>(static_cast<bits_of<Out>>(std::bit_cast<bits_of<Out>>(value) ^ 1U));
    auto const tie = (to_double(value) + to_double(next)) / 2;
    auto const c   = 1.0F + static_cast<float>(random() % 1000) * 0x1p-10F;
    auto const in  = std::array{static_cast<In>(tie / static_cast<double>(c))};
    auto out       = std::array<Out, 1>{};
    kernels::cast<Loops>(std::span<In const>{in}, std::span<Out>{out}, c);
    auto const expected = nearest<Out>(static_cast<quad>(in[0]) * static_cast<quad>(c));
    REQUIRE(same(out[0], expected));
    auto const product = in[0] * static_cast<In>(c);
    if (!same(nearest<Out>(static_cast<quad>(product)), expected)) { ++rounded_twice; }
  }
  CHECK(rounded_twice > 50);  // the test would see a second rounding
}

/// A list of one tensor over `values`.
template <class T>
[[nodiscard]] std::array<buffer_view, 1> list_of(std::vector<T>& values) {
  return {buffer_view{std::span{values}}};
}

}  // namespace

TEST_CASE("kernels::sum_of_squares has the bits of the plain sum in 32 lanes, at any alignment") {
  with_all_loops([]<class Loops>(Loops) {
    with_all_types([]<class T>(T) { check_sum_of_squares<Loops, T>(); });
  });
}

TEST_CASE("kernels::sum_of_squares overflows for no fp32, bf16 or fp16") {
  auto large = std::vector<float>(128, 1e19F);  // 1e19² · 128 is above the largest float
  auto fp16s = std::vector<fp16>(300'000, fp16{60000.0F});
  auto bf16s = std::vector<bf16>(1000, bf16{3.0e38F});
  // 1e19F squared has 48 bits, 128 equal terms add up exactly: tree and lanes only double
  CHECK(kernels::sum_of_squares(list_of(large)) == 128.0 * to_double(1e19F) * to_double(1e19F));
  CHECK(kernels::sum_of_squares(list_of(fp16s)) == 300'000 * 60000.0 * 60000.0);
  auto const value = to_double(bf16{3.0e38F});
  CHECK(kernels::sum_of_squares(list_of(bf16s)) == 1000 * (value * value));
}

TEST_CASE("kernels::sum_of_squares keeps what is far below the smallest float") {
  auto tiny = std::vector<float>(64, 0x1p-149F);
  CHECK(kernels::sum_of_squares(list_of(tiny)) == 64 * 0x1p-298);
}

TEST_CASE("kernels::sum_of_squares is Inf or NaN where an element is") {
  with_all_types([]<class T>(T) {
    for (auto const where : {std::size_t{0}, std::size_t{300}, std::size_t{512}}) {
      auto x   = std::vector<T>(513, T{1.0F});
      x[where] = T{-std::numeric_limits<float>::infinity()};
      CHECK(std::isinf(kernels::sum_of_squares(list_of(x))));
      x[where] = T{std::numeric_limits<float>::quiet_NaN()};
      CHECK(std::isnan(kernels::sum_of_squares(list_of(x))));
    }
  });
}

TEST_CASE("kernels::sum_of_squares adds tensor by tensor, in list order") {
  auto a    = finite_values<bf16>(1000, 1);
  auto b    = finite_values<bf16>(77, 2);
  auto none = std::vector<bf16>{};
  auto list = std::array{
      buffer_view{std::span{a}}, buffer_view{std::span{none}}, buffer_view{std::span{b}}};
  auto const expected = plain_sum_of_squares(std::span<bf16 const>{a}) +
                        plain_sum_of_squares(std::span<bf16 const>{b});
  CHECK(bits(kernels::sum_of_squares(list)) == bits(expected));
  CHECK(bits(kernels::sum_of_squares(std::span<buffer_view const>{})) == bits(0.0));
}

TEST_CASE("kernels::cast rounds the exact product once, in all pairs of types") {
  with_all_loops([]<class Loops>(Loops) {
    with_all_types(
        []<class In>(In) { with_all_types([]<class Out>(Out) { check_cast<Loops, In, Out>(); }); });
  });
}

TEST_CASE("kernels::cast rounds products that lie next to a tie once") {
  with_all_loops([]<class Loops>(Loops) {
    check_next_to_ties<Loops, float, bf16>();
    check_next_to_ties<Loops, float, fp16>();
    check_next_to_ties<Loops, double, bf16>();
    check_next_to_ties<Loops, double, fp16>();
    check_next_to_ties<Loops, double, float>();
  });
}

TEST_CASE("kernels::cast keeps every kind of NaN a NaN") {
  with_all_loops([]<class Loops>(Loops) {
    with_all_types([]<class Out>(Out) {
      for (auto const pattern : {0x7F800001U, 0x7FFFFFFFU, 0xFF80FFFFU, 0x7FBFFFFFU}) {
        auto const in = std::array{std::bit_cast<float>(pattern)};
        auto out      = std::array<Out, 1>{};
        for (auto const c : {1.0F, 0.5F}) {
          kernels::cast<Loops>(std::span<float const>{in}, std::span<Out>{out}, c);
          CHECK(std::isnan(to_double(out[0])));
        }
      }
    });
  });
}

TEST_CASE("kernels::cast carries Inf and NaN over") {
  with_all_loops([]<class Loops>(Loops) {
    with_all_types([]<class In>(In) {
      with_all_types([]<class Out>(Out) {
        for (auto const c : {1.0F, 0.5F, 0.0F}) {
          auto const inf = std::numeric_limits<float>::infinity();
          auto const in  = std::array{In{inf}, In{-inf}, In{std::nanf("")}};
          auto out       = std::array<Out, 3>{};
          kernels::cast<Loops>(std::span<In const>{in}, std::span<Out>{out}, c);
          CHECK(same(out[0], Out{c == 0.0F ? std::nanf("") : inf}));
          CHECK(same(out[1], Out{c == 0.0F ? std::nanf("") : -inf}));
          CHECK(std::isnan(to_double(out[2])));
        }
      });
    });
  });
}

TEST_CASE("kernels::scale is a cast in place, zero by 0 even over Inf and NaN, nothing by 1") {
  with_all_types([]<class T>(T) {
    auto const signalling = std::bit_cast<T>(static_cast<bits_of<T>>(
        std::bit_cast<bits_of<T>>(T{std::numeric_limits<float>::infinity()}) | 1U));
    auto x                = finite_values<T>(700, 3);
    x[13]                 = T{std::numeric_limits<float>::infinity()};
    x[600]                = signalling;
    auto const before     = x;

    kernels::scale(buffer_view{std::span{x}}, 1.0F);
    CHECK(std::memcmp(x.data(), before.data(), x.size() * sizeof(T)) == 0);

    kernels::scale(buffer_view{std::span{x}}, 0.3F);
    for (std::size_t i = 0; i < x.size(); ++i) {
      if (std::isfinite(to_double(before[i]))) {
        auto const exact = static_cast<quad>(to_double(before[i])) * static_cast<quad>(0.3F);
        REQUIRE(same(x[i], nearest<T>(exact)));
      }
    }
    CHECK(std::isinf(to_double(x[13])));
    CHECK(std::isnan(to_double(x[600])));

    kernels::scale(buffer_view{std::span{x}}, 0.0F);
    CHECK(std::all_of(x.begin(), x.end(), [](T value) { return same(value, T{0.0F}); }));
  });
}

TEST_CASE("kernels::pack copies or converts, and sums with the bits of sum_of_squares") {
  with_all_loops([]<class Loops>(Loops) {
    with_all_types(
        []<class In>(In) { with_all_types([]<class Out>(Out) { check_pack<Loops, In, Out>(); }); });
  });
}

TEST_CASE("kernels::pack of a list sums over the inputs, or copies where no sum is asked for") {
  auto a         = finite_values<float>(300, 1);
  auto b         = finite_values<float>(5, 2);
  auto out_a     = std::vector<bf16>(300);
  auto out_b     = std::vector<bf16>(5);
  auto const in  = std::array{buffer_view{std::span{a}}, buffer_view{std::span{b}}};
  auto const out = std::array{buffer_view{std::span{out_a}}, buffer_view{std::span{out_b}}};
  auto sum       = 0.0;
  kernels::pack(in, out, &sum);
  CHECK(bits(sum) == bits(kernels::sum_of_squares(in)));
  for (std::size_t i = 0; i < b.size(); ++i) { CHECK(same(out_b[i], bf16{b[i]})); }
  out_b.assign(5, bf16{0.0F});
  kernels::pack(in, out, nullptr);
  for (std::size_t i = 0; i < b.size(); ++i) { CHECK(same(out_b[i], bf16{b[i]})); }
}

TEST_CASE("kernels::accumulate adds in the wider of the two types") {
  with_all_loops([]<class Loops>(Loops) {
    with_all_types([]<class In>(In) {
      check_accumulate<Loops, In, float>();
      check_accumulate<Loops, In, double>();
    });
  });
}

TEST_CASE("kernels::accumulate does not stall where bf16 would: 4096 times 1 is 4096") {
  auto ones = std::vector<bf16>(40, bf16{1.0F});
  auto sums = std::vector<float>(40, 0.0F);
  for (int i = 0; i < 4096; ++i) {
    kernels::accumulate(buffer_view{std::span{ones}}, buffer_view{std::span{sums}});
  }
  CHECK(std::all_of(sums.begin(), sums.end(), [](float sum) { return sum == 4096.0F; }));
}

TEST_CASE("kernels::first_non_finite finds the first in list order") {
  with_all_types([]<class T>(T) {
    auto a    = std::vector<T>(100, T{1.0F});
    auto b    = std::vector<T>(400, T{1.0F});
    auto list = std::array{buffer_view{std::span{a}}, buffer_view{std::span{b}}};
    CHECK(kernels::first_non_finite(list).tensor == non_finite_location::none);
    b[399]     = T{std::numeric_limits<float>::quiet_NaN()};
    auto found = kernels::first_non_finite(list);
    CHECK(found.tensor == 1);
    CHECK(found.offset == 399);
    b[7]  = T{-std::numeric_limits<float>::infinity()};
    found = kernels::first_non_finite(list);
    CHECK(found.tensor == 1);
    CHECK(found.offset == 7);
    a[0]  = T{std::numeric_limits<float>::infinity()};
    found = kernels::first_non_finite(list);
    CHECK(found.tensor == 0);
    CHECK(found.offset == 0);
  });
}

TEST_CASE("kernels::zero and copy move bytes, and nothing of an empty view") {
  auto from = std::vector<std::int64_t>{1, -2, 3};
  auto to   = std::vector<std::int64_t>{7, 7, 7, 7};
  kernels::copy(buffer_view{std::span{from}}, buffer_view{std::span{to}.first(3)});
  CHECK(to == std::vector<std::int64_t>{1, -2, 3, 7});
  kernels::zero(buffer_view{std::span{to}.subspan(1, 2)});
  CHECK(to == std::vector<std::int64_t>{1, 0, 0, 7});
  kernels::zero(buffer_view{});
  kernels::copy(buffer_view{}, buffer_view{});
}

TEST_CASE("kernels::dot_products have the bits of plain sums in 16 lanes, at any alignment") {
  with_all_types([]<class T>(T) {
    for (auto const size : sizes) {
      auto const x = finite_values<T>(size, size);
      auto const y = finite_values<T>(size, size + 1);
      auto lanes   = std::array<std::array<double, 16>, 3>{};
      for (std::size_t i = 0; i < size; ++i) {
        lanes[0][i % 16] += to_double(x[i]) * to_double(y[i]);
        lanes[1][i % 16] += to_double(x[i]) * to_double(x[i]);
        lanes[2][i % 16] += to_double(y[i]) * to_double(y[i]);
      }
      for (auto& sums : lanes) {
        for (std::size_t half = 8; half > 0; half /= 2) {
          for (std::size_t i = 0; i < half; ++i) { sums[i] += sums[i + half]; }
        }
      }
      for (auto const offset : {std::size_t{0}, std::size_t{1}, std::size_t{5}}) {
        auto left  = fenced<T>{x, offset};
        auto right = fenced<T>{y, 2 * offset};
        with_all_loops([&]<class Loops>(Loops) {
          auto const found = kernels::dot_products<Loops>(left.span(), right.span());
          CHECK(same(found.dot, lanes[0][0]));
          CHECK(same(found.a, lanes[1][0]));
          CHECK(same(found.b, lanes[2][0]));
        });
      }
    }
  });
}

TEST_CASE("kernels::combine has the same bits in all loops, in place too, and touches no more") {
  with_all_types([]<class T>(T) {
    using wide = std::conditional_t<sizeof(T) == 8, double, float>;
    for (auto const size : sizes) {
      auto const x = finite_values<T>(size, size);
      auto const y = finite_values<T>(size, size + 1);
      for (auto const c : {pair_coefficients{}, {0.3, 1.7}, {1.5, 1.5}, {5e56, -0.2}, {0.5, 0.5}}) {
        auto expected = std::vector<T>{};
        for (std::size_t i = 0; i < size; ++i) {
          auto a        = c.a * to_double(x[i]);
          auto const b  = c.b * to_double(y[i]);
          auto const ab = static_cast<wide>(a + b);
          expected.push_back(static_cast<T>(ab));
        }
        with_all_loops([&]<class Loops>(Loops) {
          auto left      = fenced<T>{x, 3};
          auto right     = fenced<T>{y, 1};
          auto result    = fenced<T>{x, 2};
          auto const all = [&](std::span<T> found) {
            return std::equal(found.begin(), found.end(), expected.begin(), same<T>);
          };
          kernels::combine<Loops>(left.span(), right.span(), c, result.span());
          CHECK(all(result.span()));
          kernels::combine<Loops>(left.span(), right.span(), c, left.span());
          CHECK(all(left.span()));
          left = fenced<T>{x, 3};
          kernels::combine<Loops>(left.span(), right.span(), c, right.span());
          CHECK(all(right.span()));
          CHECK(left.intact());
          CHECK(right.intact());
          CHECK(result.intact());
        });
      }
    }
  });
}

// SPDX-License-Identifier: Apache-2.0
// Kernels at every size and alignment where their paths part, against sums in 113 bits. What all
// devices have in common is in conformance_test.
#include <gradlane/cuda/device.cuh>  // for device
#include <gradlane/cuda/tuning.hpp>  // for most_partials, tile_elements

#include <doctest/doctest.h>

#include <conformance/device.hpp>  // for for_each_floating, guarded
#include <support/rounding.hpp>    // for finite_values, integers, nearest, quad, same, to_double

#include <array>        // for array
#include <bit>          // for bit_cast
#include <cmath>        // for abs, isinf, isnan
#include <cstddef>      // for size_t
#include <cstdint>      // for uint64_t
#include <limits>       // for numeric_limits
#include <list>         // for list
#include <type_traits>  // for is_same_v, type_identity
#include <vector>       // for vector

namespace gradlane::test {
namespace {

using device = cuda::device;
template <class T>
using on_device = guarded<device, T>;

constexpr auto tile = std::size_t{cuda::tuning::tile_elements};

/// Around the elements of a vector, of a block's step, and of a tile.
auto const counts = std::vector<std::size_t>{
    0, 1, 2, 7, 8, 9, 255, 256, 257, 1023, 2048, 2049, tile - 1, tile, tile + 1, 2 * tile + 77};

template <class T>
[[nodiscard]] quad squares_of(std::vector<T> const& values) {
  auto sum = quad{0};
  for (auto const x : values) {
    sum += static_cast<quad>(to_double(x)) * static_cast<quad>(to_double(x));
  }
  return sum;
}

/// Values whose squares fp64 holds.
template <class T>
[[nodiscard]] std::vector<T> values_of(std::size_t count, std::uint64_t seed) {
  if constexpr (std::is_same_v<T, double>) {
    auto values = integers<double>(count, seed);
    for (auto& x : values) { x *= 1.1; }
    return values;
  } else {
    return finite_values<T>(count, seed);
  }
}

/// Sums of squares, one after the other, on one stream.
class summing {
 public:
  explicit summing(device& d) : device_{d}, stream_{d.make_stream()} {}

  [[nodiscard]] double operator()(device::tensor_list const& list) {
    device_.sum_of_squares(stream_, list, sum_.data());
    return result();
  }
  [[nodiscard]] double pack(device::tensor_list const& from, device::tensor_list const& to) {
    device_.pack(stream_, from, to, sum_.data());
    return result();
  }

 private:
  [[nodiscard]] double result() {
    device_.sync(stream_);
    return sum_.values()[0];
  }

  device& device_;
  device::stream stream_;
  on_device<double> sum_{device_, {-1.0}};
};

[[nodiscard]] std::uint64_t bits(double x) { return std::bit_cast<std::uint64_t>(x); }

}  // namespace
}  // namespace gradlane::test

using namespace gradlane::test;
using gradlane::bf16;
using gradlane::fp16;
using gradlane::non_finite_location;

TEST_CASE("sum_of_squares has the same bits at any alignment, alone and with a copy") {
  auto d   = device{};
  auto sum = summing{d};
  for_each_floating([&]<class T>(std::type_identity<T>) {
    for (auto const n : counts) {
      CAPTURE(n);
      CAPTURE(sizeof(T));
      auto const x     = values_of<T>(n, n);
      auto const exact = squares_of(x);
      auto const limit = static_cast<double>(n) * 0x1p-53 * static_cast<double>(exact);
      auto first       = std::uint64_t{0};
      for (auto const offset : {0, 1, 2, 3, 5}) {
        auto in        = on_device<T>{d, x, static_cast<std::size_t>(offset)};
        auto list      = list_of(d, {in.view()});
        auto const got = sum(list);
        if (offset == 0) { first = bits(got); }
        CHECK(std::abs(static_cast<double>(static_cast<quad>(got) - exact)) <= limit);
        CHECK(bits(got) == first);
        auto out = on_device<T>{d, std::vector<T>(n), static_cast<std::size_t>(offset * 3 % 4)};
        CHECK(bits(sum.pack(list, list_of(d, {out.view()}))) == first);
        auto const copied = out.values();
        auto wrong        = 0;
        for (std::size_t i = 0; i < n; ++i) { wrong += same(copied[i], x[i]) ? 0 : 1; }
        CHECK(wrong == 0);
      }
    }
  });
}

TEST_CASE("sum_of_squares takes more tiles than blocks, of tensors of unequal sizes") {
  auto d      = device{};
  auto sum    = summing{d};
  auto memory = std::list<on_device<float>>{};
  auto views  = std::vector<gradlane::buffer_view>{};
  auto exact  = quad{0};
  for (auto t = std::size_t{0}; t < 3 * gradlane::cuda::tuning::most_partials / 2; ++t) {
    auto const n = t == 100 ? tile + 3 : t % 23;
    auto const x = finite_values<float>(n, t);
    exact += squares_of(x);
    views.push_back(memory.emplace_back(d, x, t % 4).view());
  }
  auto const list  = list_of(d, views);
  auto const first = sum(list);
  CHECK(std::abs(static_cast<double>(static_cast<quad>(first) - exact)) <=
        30000 * 0x1p-53 * static_cast<double>(exact));
  for (auto i = 0; i < 3; ++i) { CHECK(bits(sum(list)) == bits(first)); }
}

TEST_CASE("sum_of_squares neither overflows nor loses what is small") {
  auto d          = device{};
  auto sum        = summing{d};
  auto const norm = [&]<class T>(std::size_t n, T value) {
    auto x = on_device<T>{d, std::vector<T>(n, value)};
    return std::sqrt(sum(list_of(d, {x.view()})));
  };
  CHECK(norm(128, 1e19F) == doctest::Approx(1e19 * std::sqrt(128.0)).epsilon(1e-7));
  CHECK(norm(128, bf16{3e38F}) == doctest::Approx(3e38 * std::sqrt(128.0)).epsilon(0.01));
  CHECK(norm(1000, fp16{300.0F}) == doctest::Approx(300 * std::sqrt(1000.0)).epsilon(1e-12));
  CHECK(norm(1000, fp16{60000.0F}) == doctest::Approx(60000 * std::sqrt(1000.0)).epsilon(1e-12));
  auto const least = std::numeric_limits<float>::denorm_min();
  CHECK(norm(16, least) == 4 * static_cast<double>(least));
  CHECK(std::isinf(norm(5, std::numeric_limits<float>::infinity())));
  CHECK(std::isnan(norm(5, bf16{std::numeric_limits<float>::quiet_NaN()})));
  CHECK(std::isinf(norm(5, 1e200)));  // which fp64 cannot hold the square of
}

TEST_CASE("cast and scale meet every mix of alignments, and touch nothing else") {
  auto d = device{};
  auto s = d.make_stream();
  auto c = on_device<float>{d, {-0.7F}};
  for_each_floating([&]<class In>(std::type_identity<In>) {
    for_each_floating([&]<class Out>(std::type_identity<Out>) {
      for (auto const n : {std::size_t{1}, std::size_t{9}, tile, tile + 259}) {
        auto const x = finite_values<In>(n, n);
        for (auto const [from, to] : {std::array{0, 0}, std::array{1, 0}, std::array{0, 1}}) {
          CAPTURE(n);
          auto in  = on_device<In>{d, x, static_cast<std::size_t>(from)};
          auto out = on_device<Out>{d, std::vector<Out>(n), static_cast<std::size_t>(to)};
          d.cast(s, in.view(), out.view(), c.data());
          d.sync(s);
          auto const got = out.values();
          auto wrong     = 0;
          for (std::size_t i = 0; i < n; i += 1 + n / 400) {
            auto const exact = static_cast<quad>(to_double(x[i])) * static_cast<quad>(-0.7F);
            wrong += same(got[i], nearest<Out>(exact)) ? 0 : 1;
          }
          CHECK(wrong == 0);
        }
      }
    });
  });
}

TEST_CASE("accumulate meets every mix of alignments") {
  auto d = device{};
  auto s = d.make_stream();
  for_each_floating([&]<class In>(std::type_identity<In>) {
    for (auto const n : counts) {
      CAPTURE(n);
      auto const x = integers<In>(n, n);
      auto in      = on_device<In>{d, x, n % 3};
      auto sum     = on_device<float>{d, std::vector<float>(n, 0.5F), n % 2};
      d.accumulate(s, in.view(), sum.view());
      d.sync(s);
      auto const got = sum.values();
      auto wrong     = 0;
      for (std::size_t i = 0; i < n; ++i) {
        wrong += static_cast<double>(got[i]) == to_double(x[i]) + 0.5 ? 0 : 1;
      }
      CHECK(wrong == 0);
    }
  });
}

TEST_CASE("first_non_finite finds the first in the list, in any tile, again and again") {
  auto d     = device{};
  auto s     = d.make_stream();
  auto sum   = on_device<double>{d, {0.0}};
  auto where = on_device<std::uint64_t>{d, {1, 1}};
  for_each_floating([&]<class T>(std::type_identity<T>) {
    auto const n    = 2 * tile + 100;
    auto const ones = std::vector<T>(n, T{1.0F});
    auto const find = [&](std::vector<std::size_t> const& bad) {
      auto x = ones;
      for (auto const i : bad) { x[i] = T{std::numeric_limits<float>::infinity()}; }
      auto good       = on_device<T>{d, ones, 1};
      auto spoilt     = on_device<T>{d, x, 2};
      auto const list = list_of(d, {good.view(), spoilt.view(), spoilt.view()});
      auto found      = std::vector<std::uint64_t>{};
      for (auto again = 0; again < 2; ++again) {
        d.sum_of_squares(s, list, sum.data());
        d.first_non_finite(
            s, list, sum.data(), reinterpret_cast<non_finite_location*>(where.data()));
        d.sync(s);
        found = where.values();
      }
      return found;
    };
    CHECK(find({tile + 9, 2 * tile + 3}) == std::vector<std::uint64_t>{1, tile + 9});
    CHECK(find({n - 1}) == std::vector<std::uint64_t>{1, n - 1});
    CHECK(find({0, 1, 2, tile}) == std::vector<std::uint64_t>{1, 0});
    CHECK(find({})[0] == non_finite_location::none);
  });
  // a sum that overflows, of finite values
  auto huge       = on_device<double>{d, std::vector<double>(3, 1e200)};
  auto const list = list_of(d, {huge.view()});
  d.sum_of_squares(s, list, sum.data());
  d.first_non_finite(s, list, sum.data(), reinterpret_cast<non_finite_location*>(where.data()));
  d.sync(s);
  CHECK(where.values()[0] == non_finite_location::none);
}

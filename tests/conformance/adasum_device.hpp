// SPDX-License-Identifier: Apache-2.0
#pragma once

// What every device of the concept adasum_device must do, as test cases over a fixture `On` with
// On::device, default constructible. A test file says GRADLANE_ADASUM_DEVICE_CONFORMANCE(fixture).

#include <gradlane/adasum/combine.hpp>  // for adasum_coefficients, pair_products
#include <gradlane/adasum/device.hpp>   // for adasum_device

#include <conformance/device.hpp>  // for for_each_floating, guarded, list_of

#include <array>        // for array
#include <cmath>        // for abs, isnan
#include <cstddef>      // for size_t
#include <limits>       // for numeric_limits
#include <type_traits>  // for is_same_v, type_identity
#include <vector>       // for vector

namespace gradlane::test {

/// Three doubles of device memory for each of some pairs.
template <device Device>
class products_memory {
 public:
  products_memory(Device& d, std::vector<pair_products> const& pairs)
      : values_{d, flat(pairs), 1} {}
  [[nodiscard]] pair_products* data() const {
    return reinterpret_cast<pair_products*>(values_.data());
  }
  [[nodiscard]] std::vector<pair_products> values() {
    auto const all = values_.values();
    auto result    = std::vector<pair_products>{};
    for (auto i = std::size_t{0}; i < all.size(); i += 3) {
      result.push_back({.dot = all[i], .a = all[i + 1], .b = all[i + 2]});
    }
    return result;
  }

 private:
  [[nodiscard]] static std::vector<double> flat(std::vector<pair_products> const& pairs) {
    auto result = std::vector<double>{};
    for (auto const& p : pairs) { result.insert(result.end(), {p.dot, p.a, p.b}); }
    return result;
  }
  guarded<Device, double> values_;
};

template <element T>
[[nodiscard]] pair_products plain_products(std::vector<T> const& a, std::vector<T> const& b) {
  auto sums = std::array<quad, 3>{};
  for (auto i = std::size_t{0}; i < a.size(); ++i) {
    auto const x = static_cast<quad>(to_double(a[i]));
    auto const y = static_cast<quad>(to_double(b[i]));
    sums[0] += x * y;
    sums[1] += x * x;
    sums[2] += y * y;
  }
  return {.dot = static_cast<double>(sums[0]),
          .a   = static_cast<double>(sums[1]),
          .b   = static_cast<double>(sums[2])};
}

/// The unit of the last place of a T near x, no smaller than that of its smallest value.
template <element T>
[[nodiscard]] double last_place(double x) {
  constexpr auto bits  = std::is_same_v<T, double>  ? 52
                         : std::is_same_v<T, float> ? 23
                         : std::is_same_v<T, bf16>  ? 7
                                                    : 10;
  constexpr auto least = std::is_same_v<T, fp16> ? -14 : std::is_same_v<T, double> ? -1022 : -126;
  auto exponent        = 0;
  static_cast<void>(std::frexp(x, &exponent));
  return std::ldexp(1.0, std::max(exponent - 1, least) - bits);
}

inline constexpr auto pair_sizes = std::array<std::size_t, 8>{0, 1, 15, 17, 256, 300, 1, 5003};

}  // namespace gradlane::test

TEST_CASE_TEMPLATE_DEFINE("adasum_device: dot_products are right for lists, at any alignment",
                          On,
                          adasum_device_products) {
  using namespace gradlane;
  using device = typename On::device;
  static_assert(adasum_device<device>);
  auto d = device{};
  auto s = d.make_stream(stream_priority::high);
  test::for_each_floating([&]<class T>(std::type_identity<T>) {
    for (auto const offset : {std::size_t{0}, std::size_t{3}}) {
      auto left     = std::vector<test::guarded<device, T>>{};
      auto right    = std::vector<test::guarded<device, T>>{};
      auto a_views  = std::vector<buffer_view>{};
      auto b_views  = std::vector<buffer_view>{};
      auto expected = std::vector<pair_products>{};
      for (auto t = std::size_t{0}; t < test::pair_sizes.size(); ++t) {
        auto const x = test::integers<T>(test::pair_sizes[t], 2 * t);
        auto const y = test::integers<T>(test::pair_sizes[t], 2 * t + 1);
        left.emplace_back(d, x, offset);
        right.emplace_back(d, y, 2 * offset);
        expected.push_back(test::plain_products(x, y));
      }
      for (auto& x : left) { a_views.push_back(x.view()); }
      for (auto& x : right) { b_views.push_back(x.view()); }
      auto a   = test::list_of(d, a_views);
      auto b   = test::list_of(d, b_views);
      auto out = test::products_memory<device>{
          d, std::vector<pair_products>(expected.size(), pair_products{-1, -1, -1})};
      d.dot_products(s, a, b, out.data());
      d.sync(s);
      auto const found = out.values();
      for (auto t = std::size_t{0}; t < expected.size(); ++t) {
        CAPTURE(t);
        CHECK(found[t].dot == expected[t].dot);  // integers: exact
        CHECK(found[t].a == expected[t].a);
        CHECK(found[t].b == expected[t].b);
      }
    }
  });
}

TEST_CASE_TEMPLATE_DEFINE("adasum_device: dot_products neither overflow nor repeat with other bits",
                          On,
                          adasum_device_products_range) {
  using namespace gradlane;
  using device   = typename On::device;
  auto d         = device{};
  auto s         = d.make_stream(stream_priority::high);
  auto const run = [&]<class T>(std::vector<T> const& x, std::vector<T> const& y) {
    auto left  = test::guarded<device, T>{d, x};
    auto right = test::guarded<device, T>{d, y};
    auto a     = test::list_of(d, {left.view()});
    auto b     = test::list_of(d, {right.view()});
    auto out   = test::products_memory<device>{d, {{}}};
    d.dot_products(s, a, b, out.data());
    d.sync(s);
    return out.values()[0];
  };
  auto const big   = run(std::vector<float>(128, 1e38F), std::vector<float>(128, -1e38F));
  auto const small = run(std::vector<float>(128, 1e-44F), std::vector<float>(128, 1e-44F));
  CHECK(big.a == doctest::Approx(128e76).epsilon(1e-6));
  CHECK(big.dot == -big.a);
  CHECK(small.a > 0);
  CHECK(run(std::vector<fp16>(1000, fp16{300.0F}), std::vector<fp16>(1000, fp16{300.0F})).dot ==
        9e7);
  auto const x     = test::finite_values<bf16>(5000, 3);
  auto const y     = test::finite_values<bf16>(5000, 4);
  auto const first = run(x, y);
  for (auto i = 0; i < 20; ++i) {
    auto const again = run(x, y);
    CHECK(again.dot == first.dot);
    CHECK(again.a == first.a);
    CHECK(again.b == first.b);
  }
  auto bad = std::vector<float>(700, 1.0F);
  bad[650] = std::numeric_limits<float>::quiet_NaN();
  CHECK(std::isnan(run(bad, std::vector<float>(700, 1.0F)).dot));
  CHECK(std::isnan(run(bad, std::vector<float>(700, 1.0F)).a));
  CHECK(run(bad, std::vector<float>(700, 1.0F)).b == 700);
  bad[650] = std::numeric_limits<float>::infinity();
  CHECK(run(bad, std::vector<float>(700, 1.0F)).a == std::numeric_limits<double>::infinity());
}

TEST_CASE_TEMPLATE_DEFINE("adasum_device: combine rounds as it says, into either list or apart",
                          On,
                          adasum_device_combine) {
  using namespace gradlane;
  using device = typename On::device;
  auto d       = device{};
  auto s       = d.make_stream(stream_priority::high);
  test::for_each_floating([&]<class T>(std::type_identity<T>) {
    for (auto const where : {0, 1, 2}) {  // into a, into b, apart
      CAPTURE(where);
      auto left  = std::vector<test::guarded<device, T>>{};
      auto right = std::vector<test::guarded<device, T>>{};
      auto apart = std::vector<test::guarded<device, T>>{};
      auto xs    = std::vector<std::vector<T>>{};
      auto ys    = std::vector<std::vector<T>>{};
      auto pairs = std::vector<pair_products>{};
      for (auto t = std::size_t{0}; t < test::pair_sizes.size(); ++t) {
        xs.push_back(test::integers<T>(test::pair_sizes[t], 2 * t));
        ys.push_back(test::integers<T>(test::pair_sizes[t], 2 * t + 1));
        left.emplace_back(d, xs[t], 1);
        right.emplace_back(d, ys[t], 2);
        apart.emplace_back(d, std::vector<T>(xs[t].size(), T{7.0F}), 3);
        pairs.push_back({.dot = 0.3 * static_cast<double>(t + 1), .a = 0.7, .b = 2.1});
      }
      auto a_views  = std::vector<buffer_view>{};
      auto b_views  = std::vector<buffer_view>{};
      auto o_views  = std::vector<buffer_view>{};
      auto products = test::products_memory<device>{d, pairs};
      for (auto t = std::size_t{0}; t < xs.size(); ++t) {
        a_views.push_back(left[t].view());
        b_views.push_back(right[t].view());
        o_views.push_back(apart[t].view());
      }
      auto a   = test::list_of(d, a_views);
      auto b   = test::list_of(d, b_views);
      auto out = test::list_of(d, o_views);
      d.combine(s, a, b, products.data(), where == 0 ? a : where == 1 ? b : out);
      d.sync(s);
      for (auto t = std::size_t{0}; t < xs.size(); ++t) {
        auto const c     = adasum_coefficients(pairs[t]);
        auto const found = (where == 0 ? left : where == 1 ? right : apart)[t].values();
        auto const kept  = (where == 0 ? right : left)[t].values();
        auto wrong       = std::size_t{0};
        for (auto i = std::size_t{0}; i < found.size(); ++i) {
          auto const x     = c.a * test::to_double(xs[t][i]);
          auto const y     = c.b * test::to_double(ys[t][i]);
          auto const error = std::abs(test::to_double(found[i]) - (x + y));
          // half a unit of T, a little more where it was rounded to fp32 first; fp64's own rounding
          auto const bound =
              (0.5 + 0x1p-10) * test::last_place<T>(x + y) + 0x1p-51 * (std::abs(x) + std::abs(y));
          wrong += error <= bound ? 0U : 1U;
          auto const other = where == 0 ? ys[t][i] : xs[t][i];
          wrong += test::same(kept[i], other) ? 0U : 1U;
        }
        CHECK(wrong == 0);
      }
    }
  });
}

TEST_CASE_TEMPLATE_DEFINE("adasum_device: combine takes coefficients beyond fp32, 0 and NaN",
                          On,
                          adasum_device_combine_range) {
  using namespace gradlane;
  using device   = typename On::device;
  auto d         = device{};
  auto s         = d.make_stream(stream_priority::high);
  auto const run = [&](float x, float y) {
    auto left     = test::guarded<device, float>{d, {x, 0.0F}};
    auto right    = test::guarded<device, float>{d, {y, 0.0F}};
    auto products = test::products_memory<device>{d, {{-1, -1, -1}}};
    auto a        = test::list_of(d, {left.view()});
    auto b        = test::list_of(d, {right.view()});
    d.dot_products(s, a, b, products.data());
    d.combine(s, a, b, products.data(), a);
    d.sync(s);
    return left.values()[0];
  };
  CHECK(run(1e-38F, 1e19F) == doctest::Approx(5e18F));  // a coefficient of 5e56
  CHECK(run(0.0F, 3.0F) == 3.0F);
  CHECK(run(3.0F, 0.0F) == 3.0F);
  CHECK(run(2.0F, -2.0F) == 0.0F);
  CHECK(run(2.0F, 2.0F) == 2.0F);
  CHECK(std::isnan(run(std::numeric_limits<float>::infinity(), 1.0F)));
  CHECK(std::isnan(run(1.0F, std::numeric_limits<float>::quiet_NaN())));
}

#define GRADLANE_ADASUM_DEVICE_CONFORMANCE(On)                 \
  TEST_CASE_TEMPLATE_INVOKE(adasum_device_products, On);       \
  TEST_CASE_TEMPLATE_INVOKE(adasum_device_products_range, On); \
  TEST_CASE_TEMPLATE_INVOKE(adasum_device_combine, On);        \
  TEST_CASE_TEMPLATE_INVOKE(adasum_device_combine_range, On)

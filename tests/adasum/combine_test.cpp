// SPDX-License-Identifier: Apache-2.0
#include <gradlane/adasum/combine.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <limits>
#include <random>
#include <vector>

namespace {

using namespace gradlane;
using vec = std::vector<double>;

[[nodiscard]] double dot(vec const& x, vec const& y) {
  auto sum = 0.0;
  for (auto i = std::size_t{0}; i < x.size(); ++i) { sum += x[i] * y[i]; }
  return sum;
}

[[nodiscard]] pair_products products(vec const& a, vec const& b) {
  return {.dot = dot(a, b), .a = dot(a, a), .b = dot(b, b)};
}

[[nodiscard]] vec adasum(vec const& a, vec const& b) {
  auto const c = adasum_coefficients(products(a, b));
  auto result  = vec{};
  for (auto i = std::size_t{0}; i < a.size(); ++i) { result.push_back(c.a * a[i] + c.b * b[i]); }
  return result;
}

constexpr auto inf = std::numeric_limits<double>::infinity();

}  // namespace

TEST_CASE("adasum adds orthogonal vectors and averages parallel ones, whatever their lengths") {
  CHECK(adasum({3, 0}, {0, 4}) == vec{3, 4});
  CHECK(adasum({1e-30, 0}, {0, 1e30}) == vec{1e-30, 1e30});
  CHECK(adasum({1, 2}, {1, 2}) == vec{1, 2});
  CHECK(adasum({1, 0}, {3, 0}) == vec{2, 0});
  CHECK(adasum({1, 0}, {-3, 0}) == vec{-1, 0});
  CHECK(adasum({1e-20, 0}, {1e18, 0})[0] == doctest::Approx(5e17));  // a coefficient of 5e37
}

TEST_CASE("adasum of a and -a is 0, by coefficients of 1.5") {
  auto const c = adasum_coefficients({.dot = -5, .a = 5, .b = 5});
  CHECK(c.a == 1.5);
  CHECK(c.b == 1.5);
  CHECK(adasum({1, 2}, {-1, -2}) == vec{0, 0});
}

TEST_CASE("adasum gives the other vector where one is 0") {
  CHECK(adasum({0, 0}, {3, 4}) == vec{3, 4});
  CHECK(adasum({3, 4}, {0, 0}) == vec{3, 4});
  CHECK(adasum({0, 0}, {0, 0}) == vec{0, 0});
  CHECK(adasum({}, {}).empty());
  CHECK(adasum({1e-170, 0}, {3, 4}) == vec{1e-170 + 3, 4});  // whose square underflows
}

TEST_CASE("adasum_coefficients make all of the result NaN where a vector is not finite") {
  auto const lost = [](vec const& a, vec const& b) {
    auto const c = adasum_coefficients(products(a, b));
    return std::isnan(c.a) || std::isnan(c.b);
  };
  CHECK(lost({1, NAN}, {1, 1}));
  CHECK(lost({1, 1}, {NAN, 1}));
  CHECK(lost({1, inf}, {1, 1}));
  CHECK(lost({1, inf}, {1, 0}));
  CHECK(lost({1, 1}, {-inf, 1}));
  CHECK(lost({inf, 1}, {inf, 1}));
  CHECK(lost({0, 0}, {1, NAN}));
}

TEST_CASE("adasum_squares is the square of the combination's norm") {
  CHECK(adasum_squares({.dot = 0, .a = 9, .b = 16}) == 25);
  CHECK(adasum_squares({.dot = 5, .a = 5, .b = 5}) == 5);
  CHECK(adasum_squares({.dot = -5, .a = 5, .b = 5}) == 0);
  CHECK(adasum_squares({.dot = 0, .a = 0, .b = 16}) == 16);
  auto random = std::mt19937_64{7};
  auto draw   = std::normal_distribution{};
  for (auto trial = 0; trial < 100; ++trial) {
    auto a = vec(10);
    auto b = vec(10);
    for (auto& x : a) { x = draw(random); }
    for (auto& x : b) { x = 3 * draw(random); }
    auto const sum = adasum(a, b);
    CHECK(adasum_squares(products(a, b)) == doctest::Approx(dot(sum, sum)).epsilon(1e-12));
  }
}

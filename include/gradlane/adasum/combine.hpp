// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/detail/host_device.hpp>  // for GRADLANE_HOST_DEVICE

#include <limits>  // for numeric_limits

/// The scalar logic of Adasum: pure functions that run on the host and inside kernels.
namespace gradlane {

/// What Adasum needs to know of two vectors a and b.
struct pair_products {
  double dot{};  ///< a·b
  double a{};    ///< ‖a‖²
  double b{};    ///< ‖b‖²
};

/// What they are multiplied by.
struct pair_coefficients {
  double a{1.0};
  double b{1.0};
};

namespace detail {

// Kernels may read it, but not call numeric_limits.
inline constexpr double least_normal_double = std::numeric_limits<double>::min();

[[nodiscard]] GRADLANE_HOST_DEVICE constexpr double adasum_coefficient(double dot,
                                                                       double squares) noexcept {
  return squares < least_normal_double ? 1.0 : 1.0 - dot / (2.0 * squares);  // NaN is not less
}

}  // namespace detail

/// 1 − a·b / (2‖a‖²) and 1 − a·b / (2‖b‖²); 1 where a norm is 0, so that the other vector is the
/// result. Norms below 1.5e-154, of which fp64 cannot hold the square, are taken for 0: only fp64
/// vectors have such. One of them is NaN, and so all of the result, where a vector holds Inf or
/// NaN.
///
/// Orthogonal vectors are added, parallel ones averaged; a and −a give 0. Not continuous where a
/// vector vanishes: (0, b) gives b, (εb, b) about b / 2.
/// Source: Maleki et al. 2020, arXiv 2006.02924.
[[nodiscard]] GRADLANE_HOST_DEVICE constexpr pair_coefficients adasum_coefficients(
    pair_products const& p) noexcept {
  return {.a = detail::adasum_coefficient(p.dot, p.a), .b = detail::adasum_coefficient(p.dot, p.b)};
}

/// ‖adasum(a, b)‖², without the vectors; not below 0.
[[nodiscard]] GRADLANE_HOST_DEVICE constexpr double adasum_squares(
    pair_products const& p) noexcept {
  auto const c      = adasum_coefficients(p);
  auto const result = c.a * (c.a * p.a) + 2.0 * c.a * (c.b * p.dot) + c.b * (c.b * p.b);
  return result < 0 ? 0.0 : result;
}

}  // namespace gradlane

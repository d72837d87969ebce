// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/error.hpp>  // for contract_error
#include <gradlane/types.hpp>  // for bf16, dtype, element, fp16, reduction

#include <cstdint>      // for int32_t, int64_t, uint8_t, uint32_t, uint64_t
#include <type_traits>  // for conditional_t, is_integral_v, is_same_v, is_signed_v, type_identity

// Arithmetic of element-wise reductions on the host.
namespace gradlane::detail {

/// The type in which elements of T are summed and compared: fp32 for the 16-bit types, 64 bits for
/// integers, whose sums wrap around in the end all the same.
template <element T>
using accumulator_t =
    std::conditional_t<std::is_integral_v<T>,
                       std::conditional_t<std::is_signed_v<T>, std::int64_t, std::uint64_t>,
                       std::conditional_t<std::is_same_v<T, double>, double, float>>;

/// a + b; integers wrap around.
template <class A>
[[nodiscard]] constexpr A add(A a, A b) noexcept {
  if constexpr (std::is_integral_v<A>) {
    return static_cast<A>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
  } else {
    return a + b;
  }
}

/// The greater one; NaN where either is NaN.
template <class A>
[[nodiscard]] constexpr A greater_of(A a, A b) noexcept {
  if constexpr (std::is_integral_v<A>) {
    return a < b ? b : a;
  } else {
    return a < b || b != b ? b : a;
  }
}

/// Calls f(std::type_identity<T>{}) with the T of `type`.
template <class F>
decltype(auto) with_element(dtype type, F&& f) {
  switch (type) {
    case dtype::fp32:
      return f(std::type_identity<float>{});
    case dtype::fp64:
      return f(std::type_identity<double>{});
    case dtype::bf16:
      return f(std::type_identity<bf16>{});
    case dtype::fp16:
      return f(std::type_identity<fp16>{});
    case dtype::uint8:
      return f(std::type_identity<std::uint8_t>{});
    case dtype::int32:
      return f(std::type_identity<std::int32_t>{});
    case dtype::uint32:
      return f(std::type_identity<std::uint32_t>{});
    case dtype::int64:
      return f(std::type_identity<std::int64_t>{});
    case dtype::uint64:
      return f(std::type_identity<std::uint64_t>{});
  }
  throw contract_error{"dtype has no such value"};
}

}  // namespace gradlane::detail

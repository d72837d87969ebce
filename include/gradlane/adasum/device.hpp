// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/adasum/combine.hpp>  // for pair_products
#include <gradlane/concepts.hpp>        // for device

#include <concepts>  // for same_as

namespace gradlane {

/// A device that can join vectors by Adasum: two operations more, stream-ordered as the others.
///
/// The lists of one call have equally many tensors, tensor by tensor of one size, all of one
/// floating dtype; tensors may be empty, and need no more alignment than their dtype.
/// - `dot_products(s, a, b, out)`: out[t] = {a_t·b_t, ‖a_t‖², ‖b_t‖²} for every tensor t, in device
///   memory; accumulated in fp64 in a fixed order, so that equal input gives equal bits; zeros for
///   an empty tensor; Inf or NaN where elements make it so.
/// - `combine(s, a, b, products, out)`: out_t = c.a · a_t + c.b · b_t, with
///   c = adasum_coefficients(products[t]) read from device memory when the stream gets there. In
///   fp64, since coefficients may exceed fp32; rounded to fp32 where the dtype is narrower than
///   fp64, and from there to the dtype. `out` may be the list a or b itself.
template <class D>
concept adasum_device = device<D> && requires(D& d,
                                              typename D::stream& s,
                                              typename D::tensor_list& list,
                                              pair_products* out,
                                              pair_products const* in) {
  { d.dot_products(s, list, list, out) } -> std::same_as<void>;
  { d.combine(s, list, list, in, list) } -> std::same_as<void>;
};

}  // namespace gradlane

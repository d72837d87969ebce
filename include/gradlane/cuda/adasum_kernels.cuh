// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/adasum/combine.hpp>  // for adasum_coefficients, pair_products
#include <gradlane/cuda/elements.cuh>   // for rounded, widen
#include <gradlane/cuda/kernels.cuh>    // for block_sum, elements_of_vector, for_each_vector, ...
#include <gradlane/cuda/tiles.hpp>      // for tile_source
#include <gradlane/cuda/tuning.hpp>     // for threads

#include <cstdint>      // for uint32_t
#include <type_traits>  // for is_same_v

/// What Adasum adds to cuda::device; see kernels.cuh for how tiles become blocks.
namespace gradlane::cuda::kernels {

namespace detail {

/// The first of `count` tiles, which are in the order of their tensors, that is of `tensor` or a
/// later one; `count` where there is none.
[[nodiscard]] __device__ inline std::uint32_t first_tile_of(std::uint32_t tensor,
                                                            tile_source const& tiles,
                                                            std::uint32_t count) {
  auto first = 0U;
  while (first < count) {
    auto const middle = first + (count - first) / 2;
    if (tiles[middle].tensor < tensor) {
      first = middle + 1;
    } else {
      count = middle;
    }
  }
  return first;
}

[[nodiscard]] __device__ inline pair_products block_sum(pair_products const& part) {
  return {.dot = block_sum(part.dot), .a = block_sum(part.a), .b = block_sum(part.b)};
}

}  // namespace detail

/// partial[i] = {a·b, ‖a‖², ‖b‖²} over tile i, a block, in fp64.
template <class T>
GRADLANE_KERNEL void tile_products(tile_source a, tile_source b, pair_products* partial) {
  constexpr auto n = detail::elements_of_vector<T, T>;
  auto const left  = a[blockIdx.x];
  auto const right = b[blockIdx.x];
  auto sums        = pair_products{};
  detail::for_each_vector<T, n>(
      left, [&](detail::vector<T, n> const& x, std::uint32_t first, std::uint32_t count) {
        auto const* const place = reinterpret_cast<T const*>(right.data) + first;
        detail::vector<T, n> y;
        y.load(place, count == n && y.fits(place), count);
#pragma unroll
        for (auto j = 0U; j < n; ++j) {
          auto const p = static_cast<double>(detail::widen(x.element[j]));
          auto const q = static_cast<double>(detail::widen(y.element[j]));
          sums.dot     = fma(p, q, sums.dot);
          sums.a       = fma(p, p, sums.a);
          sums.b       = fma(q, q, sums.b);
        }
      });
  auto const total = detail::block_sum(sums);
  if (threadIdx.x == 0) { partial[blockIdx.x] = total; }
}

/// out[t] = Σ partial over the tiles of tensor t, a block.
template <class = void>
GRADLANE_KERNEL void tensor_products(tile_source in,
                                     std::uint32_t tiles,
                                     pair_products const* partial,
                                     pair_products* out) {
  auto const first = detail::first_tile_of(blockIdx.x, in, tiles);
  auto const last  = detail::first_tile_of(blockIdx.x + 1, in, tiles);
  auto sums        = pair_products{};
  for (auto i = first + threadIdx.x; i < last; i += tuning::threads) {
    sums.dot += partial[i].dot;
    sums.a += partial[i].a;
    sums.b += partial[i].b;
  }
  auto const total = detail::block_sum(sums);
  if (threadIdx.x == 0) { out[blockIdx.x] = total; }
}

/// out = c.a · a + c.b · b with the coefficients of a tile's tensor, for a tile a block; `out` may
/// be the memory of a or b.
template <class T>
GRADLANE_KERNEL void combine(tile_source a,
                             tile_source b,
                             pair_products const* products,
                             tile_source out) {
  constexpr auto n = detail::elements_of_vector<T, T>;
  auto const left  = a[blockIdx.x];
  auto const right = b[blockIdx.x];
  auto const to    = out[blockIdx.x];
  auto const c     = adasum_coefficients(products[left.tensor]);
  detail::for_each_vector<T, n>(
      left, [&](detail::vector<T, n> const& x, std::uint32_t first, std::uint32_t count) {
        auto const* const from = reinterpret_cast<T const*>(right.data) + first;
        auto* const place      = reinterpret_cast<T*>(to.data) + first;
        detail::vector<T, n> y;
        y.load(from, count == n && y.fits(from), count);
#pragma unroll
        for (auto j = 0U; j < n; ++j) {
          auto const p     = static_cast<double>(detail::widen(x.element[j]));
          auto const q     = static_cast<double>(detail::widen(y.element[j]));
          auto const value = fma(c.a, p, c.b * q);
          if constexpr (std::is_same_v<T, double>) {
            y.element[j] = value;
          } else {
            y.element[j] = detail::rounded<T>(__double2float_rn(value));
          }
        }
        y.store(place, count == n && y.fits(place), count);
      });
}

}  // namespace gradlane::cuda::kernels

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/adasum/combine.hpp>       // for pair_products
#include <gradlane/buffer_view.hpp>          // for buffer_view, const_buffer_view
#include <gradlane/concepts.hpp>             // for non_finite_location
#include <gradlane/cuda/adasum_kernels.cuh>  // for combine, tensor_products, tile_products
#include <gradlane/cuda/device_guard.hpp>    // for device_guard
#include <gradlane/cuda/error.hpp>           // for check
#include <gradlane/cuda/kernels.cuh>         // for accumulate, first_non_finite, invoke, scale, ...
#include <gradlane/cuda/stream.hpp>          // for stream
#include <gradlane/cuda/tensor_list.hpp>     // for tensor_list
#include <gradlane/cuda/tiles.hpp>           // for tile_source, tiles_in, tiles_of
#include <gradlane/cuda/tuning.hpp>          // for most_partials, threads
#include <gradlane/types.hpp>                // for bf16, dtype, fp16

#include <cuda_runtime_api.h>

#include <cstdint>          // for uint32_t
#include <source_location>  // for source_location
#include <type_traits>      // for type_identity
#include <utility>          // for forward

/// Launches of kernels on checked arguments: dtypes become types, tiles become grids.
namespace gradlane::cuda::launch {

namespace detail {

/// Calls `function` with the type_identity of a floating dtype's element.
template <class F>
void with_type(dtype type, F&& function) {
  switch (type) {
    case dtype::fp64:
      return function(std::type_identity<double>{});
    case dtype::bf16:
      return function(std::type_identity<bf16>{});
    case dtype::fp16:
      return function(std::type_identity<fp16>{});
    default:
      return function(std::type_identity<float>{});
  }
}

template <class... Parameters, class... Arguments>
void start(stream const& on,
           std::uint32_t blocks,
           std::uint32_t threads,
           std::source_location at,
           void (*kernel)(Parameters...),
           Arguments... arguments) {
  auto const guard       = device_guard{on.device_index(), at};
  auto configuration     = cudaLaunchConfig_t{};
  configuration.gridDim  = dim3{blocks};
  configuration.blockDim = dim3{threads};
  configuration.stream   = on.get();
  check(cudaLaunchKernelEx(&configuration, kernel, arguments...), at);
}

/// Blocks of a reduction: one at least, which writes the result where there are no tiles.
[[nodiscard]] inline std::uint32_t partials(std::uint32_t tiles) {
  if (tiles == 0) { return 1; }
  return tiles < tuning::most_partials ? tiles : tuning::most_partials;
}

}  // namespace detail

template <class F>
void invoke(stream const& on, F function, std::source_location at) {
  detail::start(on, 1, 1, at, kernels::invoke<F>, function);
}

inline void scale_tiles(stream const& on,
                        dtype in_type,
                        tile_source in,
                        dtype out_type,
                        tile_source out,
                        std::uint32_t tiles,
                        float const* c,
                        std::source_location at) {
  if (tiles == 0) { return; }
  detail::with_type(in_type, [&]<class In>(std::type_identity<In>) {
    detail::with_type(out_type, [&]<class Out>(std::type_identity<Out>) {
      detail::start(on, tiles, tuning::threads, at, kernels::scale<In, Out>, in, out, c);
    });
  });
}

inline void scale(stream const& on,
                  const_buffer_view in,
                  buffer_view out,
                  float const* c,
                  std::source_location at) {
  scale_tiles(on, in.type(), tiles_in(in), out.type(), tiles_in(out), tiles_of(in.count()), c, at);
}

inline void accumulate(stream const& on,
                       const_buffer_view in,
                       buffer_view out,
                       std::source_location at) {
  auto const tiles = tiles_of(in.count());
  if (tiles == 0) { return; }
  detail::with_type(in.type(), [&]<class In>(std::type_identity<In>) {
    auto const kernel = out.type() == dtype::fp32 ? kernels::accumulate<In, float>
                                                  : kernels::accumulate<In, double>;
    detail::start(on, tiles, tuning::threads, at, kernel, tiles_in(in), tiles_in(out));
  });
}

inline void sum_of_squares(stream const& on,
                           tensor_list const& list,
                           double* sum,
                           std::source_location at) {
  auto const tiles = list.tile_count();
  detail::with_type(list.type(), [&]<class In>(std::type_identity<In>) {
    detail::start(on,
                  detail::partials(tiles),
                  tuning::threads,
                  at,
                  kernels::sum_of_squares<In, void>,
                  list.tiles(),
                  tile_source{},
                  tiles,
                  list.place(),
                  sum);
  });
}

inline void pack(stream const& on,
                 tensor_list const& from,
                 tensor_list const& to,
                 double* sum,
                 std::source_location at) {
  auto const tiles = from.tile_count();
  if (sum == nullptr) {
    return scale_tiles(on, from.type(), from.tiles(), to.type(), to.tiles(), tiles, nullptr, at);
  }
  detail::with_type(from.type(), [&]<class In>(std::type_identity<In>) {
    detail::with_type(to.type(), [&]<class Out>(std::type_identity<Out>) {
      detail::start(on,
                    detail::partials(tiles),
                    tuning::threads,
                    at,
                    kernels::sum_of_squares<In, Out>,
                    from.tiles(),
                    to.tiles(),
                    tiles,
                    from.place(),
                    sum);
    });
  });
}

inline void first_non_finite(stream const& on,
                             tensor_list const& list,
                             double const* sum,
                             non_finite_location* where,
                             std::source_location at) {
  auto const tiles = list.tile_count();
  detail::with_type(list.type(), [&]<class T>(std::type_identity<T>) {
    detail::start(on,
                  detail::partials(tiles),
                  tuning::threads,
                  at,
                  kernels::first_non_finite<T>,
                  list.tiles(),
                  tiles,
                  list.place(),
                  sum,
                  where);
  });
}

inline void dot_products(stream const& on,
                         tensor_list const& a,
                         tensor_list const& b,
                         pair_products* out,
                         std::source_location at) {
  auto const tiles   = a.tile_count();
  auto const tensors = static_cast<std::uint32_t>(a.tensors().size());
  if (tensors == 0) { return; }
  if (tiles > 0) {
    detail::with_type(a.type(), [&]<class T>(std::type_identity<T>) {
      detail::start(on,
                    tiles,
                    tuning::threads,
                    at,
                    kernels::tile_products<T>,
                    a.tiles(),
                    b.tiles(),
                    a.partial_products());
    });
  }
  detail::start(on,
                tensors,
                tuning::threads,
                at,
                kernels::tensor_products<>,
                a.tiles(),
                tiles,
                static_cast<pair_products const*>(a.partial_products()),
                out);
}

inline void combine(stream const& on,
                    tensor_list const& a,
                    tensor_list const& b,
                    pair_products const* products,
                    tensor_list const& out,
                    std::source_location at) {
  auto const tiles = a.tile_count();
  if (tiles == 0) { return; }
  detail::with_type(a.type(), [&]<class T>(std::type_identity<T>) {
    detail::start(on,
                  tiles,
                  tuning::threads,
                  at,
                  kernels::combine<T>,
                  a.tiles(),
                  b.tiles(),
                  products,
                  out.tiles());
  });
}

}  // namespace gradlane::cuda::launch

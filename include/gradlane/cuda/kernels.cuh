// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/concepts.hpp>       // for non_finite_location
#include <gradlane/cuda/elements.cuh>  // for rounded, scaled, wide, widen
#include <gradlane/cuda/tiles.hpp>     // for meeting_place, tile, tile_source
#include <gradlane/cuda/tuning.hpp>    // for threads, tile_elements, loads_in_flight

#include <cub/block/block_reduce.cuh>

#include <cstdint>      // for uint32_t, uint64_t, uintptr_t
#include <type_traits>  // for conditional_t, is_same_v, is_void_v

/// A kernel in a header: a template, and hidden, so that each module launches its own.
#define GRADLANE_KERNEL __attribute__((visibility("hidden"))) __global__

/// What cuda::device does to memory. Blocks are of tuning::threads, in one dimension.
///
/// Loads and stores are of 16 bytes where tensors are aligned to that, and of single elements where
/// not; which thread gets which element does not depend on it, so that sums have the same bits at
/// any alignment. Squares are added up in fp64, one multiply-add and one conversion per element,
/// which keeps up with the memory of GPUs with fp64 at half the rate of fp32 (A100, H100, H200,
/// B200); those with less of it (B300, RTX) take longer for sums, and get the same bits.
namespace gradlane::cuda::kernels {

namespace detail {

using cuda::detail::rounded;
using cuda::detail::scaled;
using cuda::detail::wide;
using cuda::detail::widen;

/// Bytes that one instruction moves.
template <std::uint32_t Bytes>
using word = std::conditional_t<
    Bytes == 16,
    uint4,
    std::conditional_t<Bytes == 8,
                       uint2,
                       std::conditional_t<Bytes == 4, std::uint32_t, std::uint16_t>>>;

[[nodiscard]] __host__ __device__ constexpr std::uint32_t smaller(std::uint32_t a,
                                                                  std::uint32_t b) {
  return a < b ? a : b;
}

/// N elements in registers.
template <class T, std::uint32_t N>
struct vector {
  static constexpr auto bytes      = static_cast<std::uint32_t>(N * sizeof(T));
  static constexpr auto word_bytes = smaller(bytes, 16);
  using word_type                  = word<word_bytes>;

  alignas(word_bytes) T element[N];

  /// @param whole  the N elements are there, and lie where words may; else the first `count` are,
  ///   and zeros stand for the rest.
  __device__ void load(T const* from, bool whole, std::uint32_t count) {
    if (whole) {
#pragma unroll
      for (auto i = 0U; i < bytes / word_bytes; ++i) {
        reinterpret_cast<word_type*>(element)[i] = reinterpret_cast<word_type const*>(from)[i];
      }
    } else {
#pragma unroll
      for (auto i = 0U; i < N; ++i) { element[i] = i < count ? from[i] : rounded<T>(0.0F); }
    }
  }

  __device__ void store(T* to, bool whole, std::uint32_t count) const {
    if (whole) {
#pragma unroll
      for (auto i = 0U; i < bytes / word_bytes; ++i) {
        reinterpret_cast<word_type*>(to)[i] = reinterpret_cast<word_type const*>(element)[i];
      }
    } else {
#pragma unroll
      for (auto i = 0U; i < N; ++i) {
        if (i < count) { to[i] = element[i]; }
      }
    }
  }

  /// Whether words may lie where `memory` does.
  [[nodiscard]] __device__ static bool fits(void const* memory) {
    return reinterpret_cast<std::uintptr_t>(memory) % word_bytes == 0;
  }
};

/// Calls `use(vector, first, count)` for the vectors of `tile`, of which the last one may hold
/// fewer than N elements: elements [first, first + count) of the tile. Vector v goes to thread
/// v mod threads.
template <class T, std::uint32_t N, class Use>
__device__ void for_each_vector(tile const& t, Use&& use) {
  constexpr auto step  = tuning::threads * N;
  constexpr auto batch = smaller(tuning::loads_in_flight, tuning::tile_elements / step);
  static_assert(tuning::tile_elements % (step * batch) == 0);
  auto const* const data = reinterpret_cast<T const*>(t.data);
  auto const fits        = vector<T, N>::fits(data);
  auto first             = threadIdx.x * N;
  if (fits && t.count == tuning::tile_elements) {
    vector<T, N> loaded[batch];
    for (; first < tuning::tile_elements; first += batch * step) {
#pragma unroll
      for (auto i = 0U; i < batch; ++i) { loaded[i].load(data + first + i * step, true, N); }
#pragma unroll
      for (auto i = 0U; i < batch; ++i) { use(loaded[i], first + i * step, N); }
    }
    return;
  }
  for (; first < t.count; first += step) {
    auto const count = smaller(N, t.count - first);
    vector<T, N> loaded;
    loaded.load(data + first, fits && count == N, count);
    use(loaded, first, count);
  }
}

/// Elements of In that a thread loads at once: 16 bytes of them, or of Out where that is wider.
template <class In, class Out>
inline constexpr auto elements_of_vector =
    static_cast<std::uint32_t>(16 / (sizeof(In) > sizeof(Out) ? sizeof(In) : sizeof(Out)));

/// True in the last block of the grid to come here, which then sees what all others wrote before.
[[nodiscard]] __device__ inline bool is_last_to_arrive(meeting_place& place) {
  __shared__ bool last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) { last = atomicAdd(&place.arrived, 1U) == gridDim.x - 1; }
  __syncthreads();
  __threadfence();
  return last;
}

/// The sum over the block's threads, in thread 0.
[[nodiscard]] __device__ inline double block_sum(double part) {
  using reduce = cub::BlockReduce<double, static_cast<int>(tuning::threads)>;
  __shared__ typename reduce::TempStorage storage;
  __syncthreads();  // from the last use on
  return reduce{storage}.Sum(part);
}

/// The key of an element for the meeting place: the largest is the first element of all.
[[nodiscard]] __device__ inline std::uint64_t key_of(std::uint32_t tile, std::uint32_t element) {
  return ~(std::uint64_t{tile} << 32U | element);
}

}  // namespace detail

/// *sum = Σ x² over the tiles of `in`. With Out not void, copies them to `out`, converted.
///
/// Each block adds up every 512th tile, each thread of it every 256th vector of 16 bytes; the last
/// block to finish adds up the blocks' sums. The order is fixed by the tiles alone.
template <class In, class Out>
GRADLANE_KERNEL void sum_of_squares(
    tile_source in, tile_source out, std::uint32_t tiles, meeting_place* place, double* sum) {
  constexpr auto n = detail::elements_of_vector<In, In>;
  auto even        = 0.0;
  auto odd         = 0.0;
  for (auto i = blockIdx.x; i < tiles; i += gridDim.x) {
    auto const from          = in[i];
    [[maybe_unused]] auto to = tile{};
    if constexpr (!std::is_void_v<Out>) { to = out[i]; }
    detail::for_each_vector<In, n>(
        from, [&](detail::vector<In, n> const& x, std::uint32_t first, std::uint32_t count) {
#pragma unroll
          for (auto j = 0U; j < n; j += 2) {
            auto const a = static_cast<double>(detail::widen(x.element[j]));
            auto const b = static_cast<double>(detail::widen(x.element[j + 1]));
            even         = fma(a, a, even);
            odd          = fma(b, b, odd);
          }
          if constexpr (!std::is_void_v<Out>) {
            detail::vector<Out, n> y;
#pragma unroll
            for (auto j = 0U; j < n; ++j) {
              if constexpr (std::is_same_v<In, Out>) {
                y.element[j] = x.element[j];
              } else {
                y.element[j] = detail::rounded<Out>(detail::widen(x.element[j]));
              }
            }
            auto* const place_of = reinterpret_cast<Out*>(to.data) + first;
            y.store(place_of, count == n && y.fits(place_of), count);
          }
        });
  }
  auto const part = detail::block_sum(even + odd);
  if (threadIdx.x == 0) { place->partial[blockIdx.x] = part; }
  if (!detail::is_last_to_arrive(*place)) { return; }
  auto total = 0.0;
  for (auto i = threadIdx.x; i < gridDim.x; i += tuning::threads) {
    total += __ldcg(&place->partial[i]);
  }
  total = detail::block_sum(total);
  if (threadIdx.x == 0) {
    *sum           = total;
    place->arrived = 0;
  }
}

/// out[i] = in[i] · *c, rounded once, for a tile a block; zeros where *c is 0, a copy where c is
/// null or *c is 1. In place where `in` and `out` are the same memory.
template <class In, class Out>
GRADLANE_KERNEL void scale(tile_source in, tile_source out, float const* c) {
  constexpr auto n = detail::elements_of_vector<In, Out>;
  auto const from  = in[blockIdx.x];
  auto const to    = out[blockIdx.x];
  auto const k     = c == nullptr ? 1.0F : *c;
  if (k == 1.0F && from.data == to.data) { return; }
  detail::for_each_vector<In, n>(
      from, [&](detail::vector<In, n> const& x, std::uint32_t first, std::uint32_t count) {
        detail::vector<Out, n> y;
#pragma unroll
        for (auto j = 0U; j < n; ++j) {
          auto const value = detail::widen(x.element[j]);
          if (k == 0.0F) {
            y.element[j] = detail::rounded<Out>(0.0F);
          } else if (k != 1.0F) {
            y.element[j] = detail::scaled<Out>(value, k);
          } else if constexpr (std::is_same_v<In, Out>) {
            y.element[j] = x.element[j];
          } else {
            y.element[j] = detail::rounded<Out>(value);
          }
        }
        auto* const place = reinterpret_cast<Out*>(to.data) + first;
        y.store(place, count == n && y.fits(place), count);
      });
}

/// out[i] += in[i], added in the wider of the two types, for a tile a block.
template <class In, class Out>
GRADLANE_KERNEL void accumulate(tile_source in, tile_source out) {
  constexpr auto n = detail::elements_of_vector<In, Out>;
  using wider      = std::conditional_t<sizeof(Out) == 8, double, detail::wide<In>>;
  auto const from  = in[blockIdx.x];
  auto const to    = out[blockIdx.x];
  detail::for_each_vector<In, n>(
      from, [&](detail::vector<In, n> const& x, std::uint32_t first, std::uint32_t count) {
        auto* const place = reinterpret_cast<Out*>(to.data) + first;
        detail::vector<Out, n> y;
        auto const whole = count == n && y.fits(place);
        y.load(place, whole, count);
#pragma unroll
        for (auto j = 0U; j < n; ++j) {
          auto const value = static_cast<wider>(detail::widen(x.element[j]));
          y.element[j]     = static_cast<Out>(static_cast<wider>(y.element[j]) + value);
        }
        y.store(place, whole, count);
      });
}

/// *where = the first Inf or NaN over the tiles; {} where *sum is finite, which needs no look.
template <class T>
GRADLANE_KERNEL void first_non_finite(tile_source in,
                                      std::uint32_t tiles,
                                      meeting_place* place,
                                      double const* sum,
                                      non_finite_location* where) {
  constexpr auto n = detail::elements_of_vector<T, T>;
  if (cuda::detail::is_finite(*sum)) {
    if (blockIdx.x == 0 && threadIdx.x == 0) { *where = non_finite_location{}; }
    return;
  }
  auto found = std::uint64_t{0};
  for (auto i = blockIdx.x; i < tiles && found == 0; i += gridDim.x) {
    detail::for_each_vector<T, n>(
        in[i], [&](detail::vector<T, n> const& x, std::uint32_t first, std::uint32_t) {
#pragma unroll
          for (auto j = 0U; j < n; ++j) {
            if (!cuda::detail::is_finite(detail::widen(x.element[j]))) {
              auto const key = detail::key_of(i, first + j);
              found          = key > found ? key : found;
            }
          }
        });
  }
  if (found != 0) { atomicMax(reinterpret_cast<unsigned long long*>(&place->last_found), found); }
  if (!detail::is_last_to_arrive(*place) || threadIdx.x != 0) { return; }
  auto const key = atomicExch(reinterpret_cast<unsigned long long*>(&place->last_found), 0ULL);
  *where         = non_finite_location{};
  if (key != 0) {
    auto const hit = in[static_cast<std::uint32_t>(~key >> 32U)];
    *where         = {hit.tensor, hit.offset + static_cast<std::uint32_t>(~key)};
  }
  place->arrived = 0;
}

/// Calls f() once. Static, as the type of f may be, which may not be hidden then.
template <class F>
static __global__ void invoke(F f) {
  f();
}

}  // namespace gradlane::cuda::kernels

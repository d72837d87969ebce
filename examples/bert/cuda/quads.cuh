// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../dropout.hpp"  // for dropout, row_bytes
#include "elements.cuh"    // for half_width, pairs_of

#include <cstdint>  // for int32_t, uint16_t, uint32_t, uintptr_t

// What the kernels are made of: a thread moves four elements at once, where they lie aligned.
namespace bert::cuda {

/// Four neighbouring elements of a row, or one number for each of four rows.
struct quad {
  float x[4];
};

[[nodiscard]] __device__ inline quad load(float const* from) {
  auto const v = *reinterpret_cast<float4 const*>(from);
  return {{v.x, v.y, v.z, v.w}};
}
template <half_width T>
[[nodiscard]] __device__ quad load(T const* from) {
  auto const v    = *reinterpret_cast<uint2 const*>(from);
  auto const low  = pairs_of<T>::unpack(v.x);
  auto const high = pairs_of<T>::unpack(v.y);
  return {{low.x, low.y, high.x, high.y}};
}
__device__ inline void store(quad const& value, float* to) {
  *reinterpret_cast<float4*>(to) = {value.x[0], value.x[1], value.x[2], value.x[3]};
}
template <half_width T>
__device__ void store(quad const& value, T* to) {
  *reinterpret_cast<uint2*>(to) = {pairs_of<T>::pack(value.x[0], value.x[1]),
                                   pairs_of<T>::pack(value.x[2], value.x[3])};
}

/// Whether elements index … index + 3 of a vector can be moved at once.
template <class T>
[[nodiscard]] __device__ bool is_whole(T const* vector, int index, int size) {
  return index + 4 <= size && reinterpret_cast<std::uintptr_t>(vector + index) % sizeof(T[4]) == 0;
}

[[nodiscard]] __device__ inline float as_float(float value) { return value; }
template <half_width T>
[[nodiscard]] __device__ float as_float(T value) {
  return pairs_of<T>::unpack(value.bits).x;
}

/// Elements index … index + 3 of a vector; 0 beyond its end, and where it is null.
template <class T>
[[nodiscard]] __device__ quad load_vector(T const* vector, int index, int size) {
  if (vector == nullptr) { return {}; }
  if (is_whole(vector, index, size)) { return load(vector + index); }
  auto result = quad{};
  for (auto e = 0; e < 4; ++e) {
    if (index + e < size) { result.x[e] = as_float(vector[index + e]); }
  }
  return result;
}

__device__ inline void store(float value, float& to) { to = value; }
template <half_width T>
__device__ void store(float value, T& to) {
  to.bits = static_cast<std::uint16_t>(pairs_of<T>::pack(value, 0));
}
/// Writes them, but for those beyond the end.
template <class T>
__device__ void store_vector(quad const& value, T* vector, int index, int size) {
  if (is_whole(vector, index, size)) {
    store(value, vector + index);
    return;
  }
  for (auto e = 0; e < 4; ++e) {
    if (index + e < size) { store(value.x[e], vector[index + e]); }
  }
}

__device__ inline void operator+=(quad& sum, quad const& more) {
  for (auto e = 0; e < 4; ++e) { sum.x[e] += more.x[e]; }
}

constexpr auto all_lanes = 0xFFFFFFFFU;

/// Sums over the whole block of four numbers, in one fixed order.
class block_sums {
 public:
  using memory = float[2][32][4];  // in turns, so that one barrier a sum will do

  __device__ explicit block_sums(memory& shared) : shared_{shared} {}

  /// To be called by all threads of the block.
  [[nodiscard]] __device__ quad operator()(quad const& own) {
    auto const lane = threadIdx.x % 32;
    // Each step halves what a lane holds: first four numbers, then two, then one.
    auto const high  = (lane & 16U) != 0;
    auto const other = (lane & 8U) != 0;
    auto const a     = (high ? own.x[2] : own.x[0]) + exchange(high ? own.x[0] : own.x[2], 16);
    auto const b     = (high ? own.x[3] : own.x[1]) + exchange(high ? own.x[1] : own.x[3], 16);
    auto sum         = (other ? b : a) + exchange(other ? a : b, 8);
    for (auto step = 4; step > 0; step /= 2) { sum += exchange(sum, step); }
    turn_ = 1 - turn_;
    if (lane % 8 == 0) { shared_[turn_][threadIdx.x / 32][lane / 8] = sum; }
    __syncthreads();
    auto total = quad{};
    for (auto warp = 0U; warp < blockDim.x / 32; ++warp) { total += load(shared_[turn_][warp]); }
    return total;
  }

 private:
  [[nodiscard]] __device__ static float exchange(float value, int step) {
    return __shfl_xor_sync(all_lanes, value, step);
  }

  memory& shared_;
  int turn_ = 0;
};

/// What keys the dropout of rows.
struct row_ids {
  std::uint32_t const* samples;   // (T)
  std::int32_t const* positions;  // (T)
};

/// The dropout bytes of columns column … column + 3 of the rows first … first + 3, one word a row.
///
/// To be called by all lanes, each with four columns more than the one before. One call of Philox
/// serves 16 columns of a row, which are four lanes': each makes the call for another row.
struct dropout_words {
  std::uint32_t row[4];

  __device__ dropout_words(dropout const& drop, row_ids ids, int first, int rows, int column)
      : row{} {
    if (!drop.enabled()) { return; }
    auto const lane  = threadIdx.x % 4;
    auto const own   = min(first + static_cast<int>(lane), rows - 1);
    auto const bytes = row_bytes(drop,
                                 ids.samples[own],
                                 static_cast<std::uint32_t>(ids.positions[own]),
                                 static_cast<std::uint32_t>(column / 16));
    row[0]           = bytes.x;
    row[1]           = bytes.y;
    row[2]           = bytes.z;
    row[3]           = bytes.w;
    auto const odd   = (lane & 1U) != 0;
    auto const high  = (lane & 2U) != 0;
    swap(row[0], row[1], odd, 1);
    swap(row[2], row[3], odd, 1);
    swap(row[0], row[2], high, 2);
    swap(row[1], row[3], high, 2);
  }

  /// The factor of element e of row r.
  [[nodiscard]] __device__ float factor(dropout const& drop, int r, int e) const {
    return (row[r] >> 8U * static_cast<unsigned>(e) & 0xFFU) < drop.threshold ? drop.scale : 0.0F;
  }

 private:
  // A step of a 4 by 4 transposition: lanes that are `second` give their a for their partner's b.
  __device__ static void swap(std::uint32_t& a, std::uint32_t& b, bool second, int step) {
    auto const got   = __shfl_xor_sync(all_lanes, second ? a : b, step);
    (second ? a : b) = got;
  }
};

}  // namespace bert::cuda

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../matrix_view.hpp"  // for matrix_view, norm_state
#include "partials.cuh"        // for partial_sums
#include "quads.cuh"           // for block_sums, dropout_words, load, quad, row_ids, store
#include "tuning.hpp"          // for norm_threads

#include <cstddef>  // for size_t
#include <cstdint>  // for int32_t

// LayerNorm and what is fused with it. A block has one thread for each four columns, rounded up to
// whole warps, and takes four rows at once, then the four that lie gridDim.x times four further on:
// each thread keeps its part of the weights, and of the sums over rows, in registers.
namespace bert::cuda {

/// What dropout applies to.
enum class dropped { nothing, branch, output };

/// x
template <class Value>
struct plain_rows {
  static constexpr auto place = dropped::nothing;
  matrix_view<Value const> x;  // (rows, H)
  float const* bias;           // null

  [[nodiscard]] __device__ quad at(int row, int column) const { return load(x.row(row) + column); }
};

/// residual + dropout(branch + bias)
template <class Value>
struct residual_rows {
  static constexpr auto place = dropped::branch;
  matrix_view<Value const> branch;    // (T, H)
  matrix_view<Value const> residual;  // (T, H)
  float const* bias;                  // (H)

  struct both {
    quad branch;
    quad residual;
  };
  [[nodiscard]] __device__ both at(int row, int column) const {
    return {load(branch.row(row) + column), load(residual.row(row) + column)};
  }
};

/// The sum of three tables' rows.
struct embedding_rows {
  static constexpr auto place = dropped::output;
  float const* word;           // (V, H)
  float const* position;       // (positions, H)
  float const* type;           // (types, H)
  std::int32_t const* tokens;  // (T)
  std::int32_t const* places;  // (T)
  std::int32_t const* types;   // (T)
  int columns;                 // H
  float const* bias;           // null

  [[nodiscard]] __device__ quad at(int row, int column) const {
    auto sum = entry(word, tokens[row], column);
    sum += entry(type, types[row], column);
    sum += entry(position, places[row], column);
    return sum;
  }

 private:
  [[nodiscard]] __device__ quad entry(float const* table, std::int32_t id, int column) const {
    return load(table + static_cast<std::size_t>(id) * static_cast<std::size_t>(columns) + column);
  }
};

__device__ inline quad row_of(
    quad const& loaded, quad const&, dropout const&, dropout_words const&, int) {
  return loaded;
}
template <class Both>
__device__ quad row_of(
    Both const& loaded, quad const& bias, dropout const& drop, dropout_words const& words, int r) {
  auto x = loaded.residual;
  for (auto e = 0; e < 4; ++e) {
    x.x[e] += (loaded.branch.x[e] + bias.x[e]) * words.factor(drop, r, e);
  }
  return x;
}

/// y = LayerNorm(rows), dropped out where the rows say so; keeps what backward needs.
template <class Rows, class Value>
__global__ void __launch_bounds__(tuning::norm_threads)
    normalise_rows(Rows source,
                   float const* weight,
                   float const* bias,
                   float epsilon,
                   dropout drop,
                   row_ids ids,
                   norm_state<Value, float> kept,
                   matrix_view<Value> y) {
  __shared__ __align__(16) block_sums::memory shared;
  auto sum_up        = block_sums{shared};
  auto const rows    = static_cast<int>(y.rows);
  auto const columns = static_cast<int>(y.cols);
  auto const column  = static_cast<int>(4 * threadIdx.x);
  auto const inside  = column < columns;
  auto const w       = load_vector(weight, column, columns);
  auto const b       = load_vector(bias, column, columns);
  auto const more    = load_vector(source.bias, column, columns);
  auto const scale   = 1.0F / static_cast<float>(columns);
  auto const step    = static_cast<int>(4 * gridDim.x);
  for (auto first = static_cast<int>(4 * blockIdx.x); first < rows; first += step) {
    auto const here = [&](int r) { return inside && first + r < rows; };
    decltype(source.at(0, 0)) loaded[4]{};
    for (auto r = 0; r < 4; ++r) {
      if (here(r)) { loaded[r] = source.at(first + r, column); }
    }
    auto const none  = Rows::place == dropped::nothing ? dropout{} : drop.resolved();
    auto const words = dropout_words{none, ids, first, rows, column};
    quad x[4];
    auto mean = quad{};
    for (auto r = 0; r < 4; ++r) {
      x[r]      = row_of(loaded[r], more, none, words, r);
      mean.x[r] = here(r) ? (x[r].x[0] + x[r].x[1]) + (x[r].x[2] + x[r].x[3]) : 0.0F;
    }
    mean         = sum_up(mean);
    auto squares = quad{};
    for (auto r = 0; r < 4; ++r) {
      mean.x[r] *= scale;
      for (auto e = 0; e < 4; ++e) {
        x[r].x[e] -= mean.x[r];
        squares.x[r] += here(r) ? x[r].x[e] * x[r].x[e] : 0.0F;
      }
    }
    squares = sum_up(squares);
    for (auto r = 0; r < 4; ++r) {
      auto const inverse = 1.0F / sqrtf(squares.x[r] * scale + epsilon);
      auto out           = quad{};
      for (auto e = 0; e < 4; ++e) {
        x[r].x[e] *= inverse;
        out.x[e] = x[r].x[e] * w.x[e] + b.x[e];
        if constexpr (Rows::place == dropped::output) { out.x[e] *= words.factor(drop, r, e); }
      }
      if (!here(r)) { continue; }
      store(x[r], kept.normalised.row(first + r) + column);
      store(out, y.row(first + r) + column);
      if (threadIdx.x == static_cast<unsigned>(r)) { kept.inverse_deviation[first + r] = inverse; }
    }
  }
}

/// dx, and where a branch was dropped out dbranch, from dy + more (more.data may be null). Leaves
/// each block's sums over its rows: of dy times the normalised row, of dy, and of dbranch.
template <dropped Place, class Value, class Out>
__global__ void __launch_bounds__(tuning::norm_threads)
    differentiate_rows(matrix_view<Value const> dy,
                       matrix_view<Value const> more,
                       float const* weight,
                       dropout drop,
                       row_ids ids,
                       norm_state<Value, float> kept,
                       matrix_view<Out> dx,
                       matrix_view<Value> dbranch,
                       partial_sums sums) {
  __shared__ __align__(16) block_sums::memory shared;
  auto sum_up        = block_sums{shared};
  auto const rows    = static_cast<int>(dy.rows);
  auto const columns = static_cast<int>(dy.cols);
  auto const column  = static_cast<int>(4 * threadIdx.x);
  auto const inside  = column < columns;
  auto const w       = load_vector(weight, column, columns);
  auto const scale   = 1.0F / static_cast<float>(columns);
  auto const step    = static_cast<int>(4 * gridDim.x);
  auto sum_weight    = quad{};
  auto sum_bias      = quad{};
  auto sum_branch    = quad{};
  for (auto first = static_cast<int>(4 * blockIdx.x); first < rows; first += step) {
    auto const here = [&](int r) { return inside && first + r < rows; };
    quad g[4]{};
    quad z[4]{};
    quad second[4]{};
    auto const lane    = static_cast<int>(threadIdx.x % 4);
    auto const inverse = kept.inverse_deviation[min(first + lane, rows - 1)];  // of row `lane`
    for (auto r = 0; r < 4; ++r) {
      if (!here(r)) { continue; }
      g[r] = load(dy.row(first + r) + column);
      z[r] = load(kept.normalised.row(first + r) + column);
      if (more.data != nullptr) { second[r] = load(more.row(first + r) + column); }
    }
    auto const none  = Place == dropped::nothing ? dropout{} : drop.resolved();
    auto const words = dropout_words{none, ids, first, rows, column};
    auto mean        = quad{};
    auto projection  = quad{};
    for (auto r = 0; r < 4; ++r) {
      g[r] += second[r];
      for (auto e = 0; e < 4; ++e) {
        if constexpr (Place == dropped::output) { g[r].x[e] *= words.factor(drop, r, e); }
        sum_weight.x[e] += g[r].x[e] * z[r].x[e];
        sum_bias.x[e] += g[r].x[e];
        g[r].x[e] *= w.x[e];
        mean.x[r] += g[r].x[e];
        projection.x[r] += g[r].x[e] * z[r].x[e];
      }
    }
    mean       = sum_up(mean);
    projection = sum_up(projection);
    for (auto r = 0; r < 4; ++r) {
      auto const own_inverse = __shfl_sync(all_lanes, inverse, r);
      if (!here(r)) { continue; }
      auto branch = quad{};
      for (auto e = 0; e < 4; ++e) {
        g[r].x[e] =
            own_inverse * (g[r].x[e] - mean.x[r] * scale - z[r].x[e] * (projection.x[r] * scale));
        if constexpr (Place == dropped::branch) {
          branch.x[e] = g[r].x[e] * words.factor(drop, r, e);
          sum_branch.x[e] += branch.x[e];
        }
      }
      store(g[r], dx.row(first + r) + column);
      if constexpr (Place == dropped::branch) { store(branch, dbranch.row(first + r) + column); }
    }
  }
  if (!inside) { return; }
  store(sum_weight, sums.at(blockIdx.x, 0) + column);
  store(sum_bias, sums.at(blockIdx.x, 1) + column);
  if constexpr (Place == dropped::branch) { store(sum_branch, sums.at(blockIdx.x, 2) + column); }
}

}  // namespace bert::cuda

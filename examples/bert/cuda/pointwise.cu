// SPDX-License-Identifier: Apache-2.0
#include "launch.cuh"    // for launch, ceil_div, extent, round_up
#include "partials.cuh"  // for launch_add_partials, partial_room, partials_of
#include "pointwise.hpp"
#include "pointwise_kernels.cuh"  // for map_rows, sum_columns, gather_rows, scatter_add_rows
#include "tuning.hpp"

#include <gradlane/error.hpp>  // for expects
#include <gradlane/types.hpp>  // for bf16, fp16

#include <algorithm>  // for max, min
#include <array>      // for array

namespace bert::cuda {

namespace {

/// As few threads as a row needs, if those are fewer than a block may have.
unsigned threads_of(std::size_t columns) {
  return std::min(round_up(ceil_div(columns, 4), 32), tuning::map_threads);
}

dim3 grid_of(std::size_t rows, std::size_t columns, std::size_t rows_per_block) {
  return dim3(ceil_div(columns, 4 * threads_of(columns)), ceil_div(rows, rows_per_block));
}

template <class Function, class Value>
void map(execution const& on,
         Function const& f,
         matrix_view<Value const> x,
         std::span<float const> bias,
         matrix_view<Value> y) {
  // no more blocks than a grid may have in this direction
  auto const rows = std::max(tuning::map_rows, round_up(ceil_div(x.rows, 32768), 4));
  static_cast<void>(extent(x.rows));
  launch(map_rows<Function, Value>,
         grid_of(x.rows, x.cols, rows),
         dim3(threads_of(x.cols)),
         on.stream(),
         f,
         x,
         bias.data(),
         y,
         extent(rows));
}

template <class Values>
void sum(execution const& on,
         Values const& values,
         std::size_t rows,
         std::span<float> total,
         bool accumulate) {
  auto const columns   = total.size();
  auto const room      = std::min(partial_room(on, columns, 1), std::size_t{32768});
  auto const per_block = std::max(tuning::sum_rows, round_up(ceil_div(rows, room), 4));
  auto const sums      = partials_of(on, columns, 1);
  launch(sum_columns<Values>,
         grid_of(rows, columns, per_block),
         dim3(threads_of(columns)),
         on.stream(),
         values,
         extent(rows),
         extent(columns),
         sums,
         extent(per_block));
  launch_add_partials(on, sums, ceil_div(rows, per_block), std::array{total}, accumulate);
}

}  // namespace

template <class Value>
void pointwise_operations<Value>::gelu(in x, reals bias, out y) const {
  map(on_, gelu_function{}, x, bias, y);
}

template <class Value>
void pointwise_operations<Value>::gelu_gradient(
    in x, reals bias, in dy, out dx, std::span<float> dbias, bool accumulate) const {
  sum(on_, slopes<gelu_slope, Value>{{}, x, bias.data(), dy, dx}, x.rows, dbias, accumulate);
}

template <class Value>
void pointwise_operations<Value>::tanh(in x, reals bias, out y) const {
  map(on_, tanh_function{}, x, bias, y);
}

template <class Value>
void pointwise_operations<Value>::tanh_gradient(
    in y, in dy, out dx, std::span<float> dbias, bool accumulate) const {
  sum(on_, slopes<tanh_slope, Value>{{}, y, nullptr, dy, dx}, y.rows, dbias, accumulate);
}

template <class Value>
void pointwise_operations<Value>::column_sums(in dy, std::span<float> db, bool accumulate) const {
  sum(on_, elements<Value>{dy}, dy.rows, db, accumulate);
}

template <class Value>
void pointwise_operations<Value>::gather(in x, std::span<std::int32_t const> rows, out y) const {
  launch(gather_rows<Value>,
         dim3(static_cast<unsigned>(rows.size())),
         dim3(threads_of(x.cols)),
         on_.stream(),
         x,
         rows.data(),
         y);
}

template <class Value>
void pointwise_operations<Value>::scatter_add(in y,
                                              std::span<std::int32_t const> rows,
                                              out x) const {
  launch(scatter_add_rows<Value>,
         dim3(static_cast<unsigned>(rows.size())),
         dim3(threads_of(x.cols)),
         on_.stream(),
         y,
         rows.data(),
         x);
}

template class pointwise_operations<float>;
template class pointwise_operations<gradlane::bf16>;
template class pointwise_operations<gradlane::fp16>;

}  // namespace bert::cuda

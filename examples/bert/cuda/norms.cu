// SPDX-License-Identifier: Apache-2.0
#include "launch.cuh"        // for launch, ceil_div, extent, round_up
#include "norm_kernels.cuh"  // for normalise_rows, differentiate_rows
#include "norms.hpp"
#include "partials.cuh"     // for launch_add_partials, partial_room, partials_of
#include "row_kernels.cuh"  // for add_chunks, add_chunk_sums
#include "tuning.hpp"

#include <gradlane/cuda/error.hpp>  // for check
#include <gradlane/error.hpp>       // for expects
#include <gradlane/types.hpp>       // for bf16, fp16

#include <algorithm>  // for clamp, max, min
#include <array>      // for array

namespace bert::cuda {

namespace {

unsigned threads_of(std::size_t columns) {
  gradlane::expects(columns % 4 == 0 && columns <= 4 * tuning::norm_threads,
                    "bert::cuda: the hidden size must be a multiple of 4 and at most 2048");
  return round_up(columns / 4, 32);
}

row_ids ids_of(index const& rows) { return {rows.row_samples().data(), rows.positions().data()}; }

template <class Rows, class Value>
void normalise(execution const& on,
               Rows const& source,
               std::span<float const> weight,
               std::span<float const> bias,
               double epsilon,
               dropout const& drop,
               row_ids ids,
               norm_state<Value, float> kept,
               matrix_view<Value> y) {
  static_cast<void>(extent(y.rows));
  launch(normalise_rows<Rows, Value>,
         dim3(std::min(ceil_div(y.rows, tuning::norm_rows), tuning::norm_blocks)),
         dim3(threads_of(y.cols)),
         on.stream(),
         source,
         weight.data(),
         bias.data(),
         static_cast<float>(epsilon),
         drop,
         ids,
         kept,
         y);
}

/// @param targets  of the sums that the kernel leaves, in its order.
template <dropped Place, class Value, class Out>
void differentiate(execution const& on,
                   matrix_view<Value const> dy,
                   matrix_view<Value const> more,
                   std::span<float const> weight,
                   dropout const& drop,
                   row_ids ids,
                   norm_state<Value, float> kept,
                   matrix_view<Out> dx,
                   matrix_view<Value> dbranch,
                   std::span<std::span<float> const> targets,
                   bool accumulate) {
  static_cast<void>(extent(dy.rows));
  auto const room   = partial_room(on, dy.cols, targets.size());
  auto const wanted = ceil_div(dy.rows, tuning::norm_gradient_rows);
  auto const blocks = static_cast<unsigned>(
      std::min({std::size_t{wanted}, room, std::size_t{tuning::norm_gradient_blocks}}));
  auto const sums = partials_of(on, dy.cols, targets.size());
  launch(differentiate_rows<Place, Value, Out>,
         dim3(blocks),
         dim3(threads_of(dy.cols)),
         on.stream(),
         dy,
         more.empty() ? matrix_view<Value const>{} : more,
         weight.data(),
         drop,
         ids,
         kept,
         dx,
         dbranch,
         sums);
  launch_add_partials(on, sums, blocks, targets, accumulate);
}

}  // namespace

template <class Value>
std::size_t norm_operations<Value>::reserve(std::size_t tokens, std::size_t hidden) {
  row_gradients_.grow(tokens * hidden);
  slots_.grow(2 * tokens / tuning::chunk_rows * hidden);  // as many as there can be
  return (row_gradients_.size() + slots_.size()) * sizeof(float);
}

template <class Value>
void norm_operations<Value>::norm(
    in x, reals weight, reals bias, double epsilon, state s, out y) const {
  normalise(on_, plain_rows<Value>{x, nullptr}, weight, bias, epsilon, dropout{}, {}, s, y);
}

template <class Value>
void norm_operations<Value>::norm_gradient(in dy,
                                           reals weight,
                                           state s,
                                           out dx,
                                           std::span<float> dweight,
                                           std::span<float> dbias,
                                           bool accumulate) const {
  differentiate<dropped::nothing>(
      on_, dy, in{}, weight, dropout{}, {}, s, dx, out{}, std::array{dweight, dbias}, accumulate);
}

template <class Value>
void norm_operations<Value>::add_norm(index const& rows,
                                      in branch,
                                      reals branch_bias,
                                      in residual,
                                      reals weight,
                                      reals bias,
                                      double epsilon,
                                      dropout const& drop,
                                      state s,
                                      out y) const {
  normalise(on_,
            residual_rows<Value>{branch, residual, branch_bias.data()},
            weight,
            bias,
            epsilon,
            drop,
            ids_of(rows),
            s,
            y);
}

template <class Value>
void norm_operations<Value>::add_norm_gradient(index const& rows,
                                               in dy,
                                               in dy_more,
                                               reals weight,
                                               dropout const& drop,
                                               state s,
                                               out dresidual,
                                               out dbranch,
                                               std::span<float> dbranch_bias,
                                               std::span<float> dweight,
                                               std::span<float> dbias,
                                               bool accumulate) const {
  differentiate<dropped::branch>(on_,
                                 dy,
                                 dy_more,
                                 weight,
                                 drop,
                                 ids_of(rows),
                                 s,
                                 dresidual,
                                 dbranch,
                                 std::array{dweight, dbias, dbranch_bias},
                                 accumulate);
}

template <class Value>
void norm_operations<Value>::embed(index const& rows,
                                   reals word,
                                   reals position,
                                   reals type,
                                   reals weight,
                                   reals bias,
                                   double epsilon,
                                   dropout const& drop,
                                   state s,
                                   out y) const {
  normalise(on_,
            embedding_rows{word.data(),
                           position.data(),
                           type.data(),
                           rows.tokens().data(),
                           rows.positions().data(),
                           rows.segments().data(),
                           extent(y.cols),
                           nullptr},
            weight,
            bias,
            epsilon,
            drop,
            ids_of(rows),
            s,
            y);
}

template <class Value>
void norm_operations<Value>::embed_gradient(index const& rows,
                                            in dy,
                                            in dy_more,
                                            reals weight,
                                            dropout const& drop,
                                            state s,
                                            std::span<float> dword,
                                            std::span<float> dposition,
                                            std::span<float> dtype,
                                            std::span<float> dweight,
                                            std::span<float> dbias,
                                            bool accumulate) {
  auto const h = dy.cols;
  reserve(dy.rows, h);
  differentiate<dropped::output>(on_,
                                 dy,
                                 dy_more,
                                 weight,
                                 drop,
                                 ids_of(rows),
                                 s,
                                 matrix_view<float>{row_gradients_.data(), dy.rows, h},
                                 out{},
                                 std::array{dweight, dbias},
                                 accumulate);
  if (!accumulate) {
    for (auto const table : {dposition, dtype}) {
      gradlane::cuda::check(cudaMemsetAsync(table.data(), 0, table.size_bytes(), on_.stream()));
    }
  }
  add_rows(rows.by_token(), h, dy.rows, dword.data());
  add_rows(rows.by_position(), h, dy.rows, dposition.data());
  add_rows(rows.by_segment(), h, dy.rows, dtype.data());
}

template <class Value>
void norm_operations<Value>::add_rows(group_view const& group,
                                      std::size_t columns,
                                      std::size_t rows,
                                      float* table) {
  launch(add_chunks<tuning::norm_threads>,
         dim3(ceil_div(group.chunks.size(), tuning::chunk_share)),
         dim3(threads_of(columns)),
         on_.stream(),
         group.chunks.data(),
         static_cast<unsigned>(group.chunks.size()),
         group.order.data(),
         matrix_view<float const>{row_gradients_.data(), rows, columns},
         table,
         slots_.data());
  launch(add_chunk_sums<tuning::norm_threads>,
         dim3(static_cast<unsigned>(group.sums.size())),
         dim3(threads_of(columns)),
         on_.stream(),
         group.sums.data(),
         slots_.data(),
         table,
         extent(columns));
}

template class norm_operations<float>;
template class norm_operations<gradlane::bf16>;
template class norm_operations<gradlane::fp16>;

}  // namespace bert::cuda

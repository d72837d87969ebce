// SPDX-License-Identifier: Apache-2.0
#include "norms.hpp"

#include "dropout_bytes.hpp"  // for fill_row_bytes, byte_factor
#include "storage.hpp"        // for as_float, store

#include <algorithm>  // for fill
#include <cmath>      // for sqrt
#include <cstdint>    // for uint8_t, uint32_t

namespace bert::cpu {

namespace {

// (H) of floats for one thread each: three sums over rows and two rows in work; then bytes.
constexpr auto slots = std::size_t{6};

constexpr std::size_t padded(std::size_t columns) { return (columns + 255) / 256 * 256; }

}  // namespace

template <class Value>
struct norm_operations<Value>::row_space {
  float* sum_weight;    // Σ dy normalised
  float* sum_bias;      // Σ dy
  float* sum_branch;    // Σ dbranch
  float* row;           // a row of x, or of dy
  float* other;         // a row of dy weight
  std::uint8_t* bytes;  // of dropout
};

template <class Value>
typename norm_operations<Value>::row_space norm_operations<Value>::space(std::size_t thread,
                                                                         std::size_t columns) {
  auto* const first = sums_.data() + thread * slots * padded(columns);
  auto const slot   = [&](std::size_t which) { return first + which * padded(columns); };
  return {slot(0), slot(1), slot(2), slot(3), slot(4), reinterpret_cast<std::uint8_t*>(slot(5))};
}

template <class Value>
void norm_operations<Value>::clear_sums(std::size_t columns) {
  sums_.grow(on_.count() * slots * padded(columns));
  std::fill(sums_.begin(), sums_.end(), 0.0F);
}

template <class Value>
void norm_operations<Value>::collect(std::size_t which,
                                     std::span<float> total,
                                     bool accumulate) const {
  auto const columns = total.size();
  if (!accumulate) { std::fill(total.begin(), total.end(), 0.0F); }
  for (auto thread = std::size_t{0}; thread < on_.count(); ++thread) {
    auto const* part = sums_.data() + (thread * slots + which) * padded(columns);
    for (auto j = std::size_t{0}; j < columns; ++j) { total[j] += part[j]; }
  }
}

namespace {

// normalised and y from x, a row of h floats
template <class Value>
float normalise(float const* x,
                std::size_t h,
                float const* weight,
                float const* bias,
                double epsilon,
                Value* normalised,
                Value* y) {
  auto sum = 0.0F;
#pragma omp simd reduction(+ : sum)
  for (std::size_t j = 0; j < h; ++j) { sum += x[j]; }
  auto const mean = sum / static_cast<float>(h);
  auto squares    = 0.0F;
#pragma omp simd reduction(+ : squares)
  for (std::size_t j = 0; j < h; ++j) { squares += (x[j] - mean) * (x[j] - mean); }
  auto const inverse =
      1.0F / std::sqrt(squares / static_cast<float>(h) + static_cast<float>(epsilon));
#pragma omp simd
  for (std::size_t j = 0; j < h; ++j) {
    auto const z = (x[j] - mean) * inverse;
    store(z, normalised[j]);
    store(z * weight[j] + bias[j], y[j]);
  }
  return inverse;
}

// dy becomes dx in place; `scaled` is a row to work in
template <class Value>
void differentiate(float* dy,
                   float* scaled,
                   std::size_t h,
                   float const* weight,
                   Value const* normalised,
                   float inverse,
                   float* sum_weight,
                   float* sum_bias) {
  auto mean       = 0.0F;
  auto projection = 0.0F;
#pragma omp simd reduction(+ : mean, projection)
  for (std::size_t j = 0; j < h; ++j) {
    auto const z = as_float(normalised[j]);
    auto const g = dy[j] * weight[j];
    sum_weight[j] += dy[j] * z;
    sum_bias[j] += dy[j];
    scaled[j] = g;
    mean += g;
    projection += g * z;
  }
  mean /= static_cast<float>(h);
  projection /= static_cast<float>(h);
#pragma omp simd
  for (std::size_t j = 0; j < h; ++j) {
    dy[j] = inverse * (scaled[j] - mean - as_float(normalised[j]) * projection);
  }
}

template <class Value>
void load_sum(Value const* a, Value const* b, std::size_t h, float* sum) {
  if (b == nullptr) {
#pragma omp simd
    for (std::size_t j = 0; j < h; ++j) { sum[j] = as_float(a[j]); }
  } else {
#pragma omp simd
    for (std::size_t j = 0; j < h; ++j) { sum[j] = as_float(a[j]) + as_float(b[j]); }
  }
}

void fill_bytes(dropout const& drop,
                batch_index const& rows,
                std::size_t i,
                std::size_t h,
                std::uint8_t* bytes) {
  if (!drop.enabled()) { return; }  // the bytes are zero then, and zero is below any threshold
  fill_row_bytes(
      drop, rows.row_samples()[i], static_cast<std::uint32_t>(rows.positions()[i]), h, bytes);
}

}  // namespace

template <class Value>
void norm_operations<Value>::norm(in x, reals weight, reals bias, double epsilon, state s, out y) {
  auto const h = x.cols;
  clear_sums(h);
  for_parts(on_, x.rows, [&](std::size_t first, std::size_t last, std::size_t thread) {
    auto const work = space(thread, h);
    for (auto i = first; i < last; ++i) {
      load_sum<Value>(x.row(i), nullptr, h, work.row);
      s.inverse_deviation[i] = normalise(
          work.row, h, weight.data(), bias.data(), epsilon, s.normalised.row(i), y.row(i));
    }
  });
}

template <class Value>
void norm_operations<Value>::norm_gradient(in dy,
                                           reals weight,
                                           state s,
                                           out dx,
                                           std::span<float> dweight,
                                           std::span<float> dbias,
                                           bool accumulate) {
  auto const h = dy.cols;
  clear_sums(h);
  for_parts(on_, dy.rows, [&](std::size_t first, std::size_t last, std::size_t thread) {
    auto const work = space(thread, h);
    for (auto i = first; i < last; ++i) {
      load_sum<Value>(dy.row(i), nullptr, h, work.row);
      differentiate(work.row,
                    work.other,
                    h,
                    weight.data(),
                    s.normalised.row(i),
                    s.inverse_deviation[i],
                    work.sum_weight,
                    work.sum_bias);
      auto* to      = dx.row(i);
      auto const* x = work.row;
#pragma omp simd
      for (std::size_t j = 0; j < h; ++j) { store(x[j], to[j]); }
    }
  });
  collect(0, dweight, accumulate);
  collect(1, dbias, accumulate);
}

template <class Value>
void norm_operations<Value>::add_norm(batch_index const& rows,
                                      in branch,
                                      reals branch_bias,
                                      in residual,
                                      reals weight,
                                      reals bias,
                                      double epsilon,
                                      dropout const& drop,
                                      state s,
                                      out y) {
  auto const h = branch.cols;
  clear_sums(h);
  for_parts(on_, branch.rows, [&](std::size_t first, std::size_t last, std::size_t thread) {
    auto const work   = space(thread, h);
    auto const keep   = byte_factor{drop};  // copies here, so that the loops see no references
    auto* const x     = work.row;
    auto* const bytes = work.bytes;
    auto const* more  = branch_bias.data();
    for (auto i = first; i < last; ++i) {
      fill_bytes(drop, rows, i, h, bytes);
      auto const* a = residual.row(i);
      auto const* b = branch.row(i);
#pragma omp simd
      for (std::size_t j = 0; j < h; ++j) {
        x[j] = as_float(a[j]) + (as_float(b[j]) + more[j]) * keep(bytes[j]);
      }
      s.inverse_deviation[i] =
          normalise(x, h, weight.data(), bias.data(), epsilon, s.normalised.row(i), y.row(i));
    }
  });
}

template <class Value>
void norm_operations<Value>::add_norm_gradient(batch_index const& rows,
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
                                               bool accumulate) {
  auto const h = dy.cols;
  clear_sums(h);
  for_parts(on_, dy.rows, [&](std::size_t first, std::size_t last, std::size_t thread) {
    auto const work   = space(thread, h);
    auto const keep   = byte_factor{drop};  // copies here, so that the loops see no references
    auto* const x     = work.row;
    auto* const bytes = work.bytes;
    auto* const sum   = work.sum_branch;
    for (auto i = first; i < last; ++i) {
      load_sum<Value>(dy.row(i), dy_more.empty() ? nullptr : dy_more.row(i), h, x);
      differentiate(x,
                    work.other,
                    h,
                    weight.data(),
                    s.normalised.row(i),
                    s.inverse_deviation[i],
                    work.sum_weight,
                    work.sum_bias);
      fill_bytes(drop, rows, i, h, bytes);
      auto* a = dresidual.row(i);
      auto* b = dbranch.row(i);
#pragma omp simd
      for (std::size_t j = 0; j < h; ++j) {
        auto const kept = x[j] * keep(bytes[j]);
        store(x[j], a[j]);
        store(kept, b[j]);
        sum[j] += kept;
      }
    }
  });
  collect(0, dweight, accumulate);
  collect(1, dbias, accumulate);
  collect(2, dbranch_bias, accumulate);
}

template <class Value>
void norm_operations<Value>::embed(batch_index const& rows,
                                   reals word,
                                   reals position,
                                   reals type,
                                   reals weight,
                                   reals bias,
                                   double epsilon,
                                   dropout const& drop,
                                   state s,
                                   out y) {
  auto const h = y.cols;
  clear_sums(h);
  for_parts(on_, y.rows, [&](std::size_t first, std::size_t last, std::size_t thread) {
    auto const work   = space(thread, h);
    auto const keep   = byte_factor{drop};  // copies here, so that the loops see no references
    auto* const x     = work.row;
    auto* const bytes = work.bytes;
    for (auto i = first; i < last; ++i) {
      auto const row = [&](reals table, std::int32_t id) {
        return table.data() + static_cast<std::size_t>(id) * h;
      };
      auto const* a = row(word, rows.data().tokens[i]);
      auto const* b = row(type, rows.data().segments[i]);
      auto const* c = row(position, rows.positions()[i]);
#pragma omp simd
      for (std::size_t j = 0; j < h; ++j) { x[j] = a[j] + b[j] + c[j]; }
      auto* to = y.row(i);
      s.inverse_deviation[i] =
          normalise(x, h, weight.data(), bias.data(), epsilon, s.normalised.row(i), to);
      fill_bytes(drop, rows, i, h, bytes);
#pragma omp simd
      for (std::size_t j = 0; j < h; ++j) { store(as_float(to[j]) * keep(bytes[j]), to[j]); }
    }
  });
}

template <class Value>
void norm_operations<Value>::embed_gradient(batch_index const& rows,
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
  clear_sums(h);
  row_gradients_.grow(dy.rows * h);
  for_parts(on_, dy.rows, [&](std::size_t first, std::size_t last, std::size_t thread) {
    auto const work   = space(thread, h);
    auto const keep   = byte_factor{drop};  // copies here, so that the loops see no references
    auto* const bytes = work.bytes;
    for (auto i = first; i < last; ++i) {
      auto* row = row_gradients_.data() + i * h;
      load_sum<Value>(dy.row(i), dy_more.empty() ? nullptr : dy_more.row(i), h, row);
      fill_bytes(drop, rows, i, h, bytes);
#pragma omp simd
      for (std::size_t j = 0; j < h; ++j) { row[j] *= keep(bytes[j]); }
      differentiate(row,
                    work.other,
                    h,
                    weight.data(),
                    s.normalised.row(i),
                    s.inverse_deviation[i],
                    work.sum_weight,
                    work.sum_bias);
    }
  });
  collect(0, dweight, accumulate);
  collect(1, dbias, accumulate);
  if (!accumulate) {
    std::fill(dposition.begin(), dposition.end(), 0.0F);
    std::fill(dtype.begin(), dtype.end(), 0.0F);
  }
  add_embedding_rows(rows, h, dword, dposition, dtype);
}

/// Each thread owns a range of columns and takes the rows in one fixed order: no two threads meet,
/// and the sums do not depend on their number.
template <class Value>
void norm_operations<Value>::add_embedding_rows(batch_index const& rows,
                                                std::size_t columns,
                                                std::span<float> dword,
                                                std::span<float> dposition,
                                                std::span<float> dtype) const {
  for_parts(on_, columns, [&](std::size_t first, std::size_t last, std::size_t) {
    auto const add = [&](std::span<float> table, std::int32_t id, std::size_t row) {
      auto* to         = table.data() + static_cast<std::size_t>(id) * columns;
      auto const* from = row_gradients_.data() + row * columns;
#pragma omp simd
      for (std::size_t j = first; j < last; ++j) { to[j] += from[j]; }
    };
    for (auto const sorted : rows.by_token()) {  // the target of equal tokens stays in cache
      auto const row   = static_cast<std::size_t>(sorted);
      auto const token = rows.data().tokens[row];
      if (token != 0) { add(dword, token, row); }
    }
    for (auto row = std::size_t{0}; row < rows.rows(); ++row) {
      add(dposition, rows.positions()[row], row);
      add(dtype, rows.data().segments[row], row);
    }
  });
}

template class norm_operations<float>;
template class norm_operations<gradlane::bf16>;

}  // namespace bert::cpu

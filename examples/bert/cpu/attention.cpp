// SPDX-License-Identifier: Apache-2.0
#include "attention.hpp"

#include "dropout_bytes.hpp"  // for fill_attention_bytes, byte_factor
#include "storage.hpp"        // for as_float, store
#include "vector_math.hpp"    // for exp_fast

#include <oneapi/dnnl/dnnl.h>  // for dnnl_sgemm

#include <algorithm>  // for fill, sort
#include <cmath>      // for sqrt, log
#include <numeric>    // for iota

namespace bert::cpu {

/// One head of one sequence of length n, head size d, and a thread's memory for it.
template <class Value>
struct attention_operations<Value>::task {
  std::size_t first;   // row of the sequence
  std::size_t n;       // its length
  std::size_t number;  // of the head
  std::size_t d;
  std::size_t hidden;
  std::uint32_t sample;
  dropout drop;              // of this head
  float* space;              // 8 (n, d) matrices, then 2 (n, n)
  std::uint8_t* bytes;       // (32, stride) of dropout; zero where it is disabled
  std::size_t bytes_stride;  // n rounded up to a multiple of 64

  [[nodiscard]] float* vectors(std::size_t which) const { return space + which * n * d; }
  [[nodiscard]] float* scores(std::size_t which) const { return space + 8 * n * d + which * n * n; }
  /// The column of q (0), k (1) or v (2) where this head begins.
  [[nodiscard]] std::size_t column(std::size_t part) const { return part * hidden + number * d; }

  [[nodiscard]] static std::size_t floats(std::size_t n, std::size_t d) {
    return 8 * n * d + 2 * n * n;
  }

  /// (n, d) = that part of the rows of x * scale
  void read(in x, std::size_t from, float scale, float* to) const {
    for (auto i = std::size_t{0}; i < n; ++i) {
      auto const* row = x.row(first + i) + from;
      auto* target    = to + i * d;
#pragma omp simd
      for (std::size_t j = 0; j < d; ++j) { target[j] = as_float(row[j]) * scale; }
    }
  }

  void write(float const* from, float scale, out x, std::size_t to) const {
    for (auto i = std::size_t{0}; i < n; ++i) {
      auto* row          = x.row(first + i) + to;
      auto const* source = from + i * d;
#pragma omp simd
      for (std::size_t j = 0; j < d; ++j) { store(source[j] * scale, row[j]); }
    }
  }

  /// The dropout bytes of row q; to be called for q = 0, 1, 2 …
  [[nodiscard]] std::uint8_t const* bytes_of(std::size_t q) const {
    if (drop.enabled() && q % 32 == 0) {
      fill_attention_bytes(drop, sample, static_cast<std::uint32_t>(q), n, bytes_stride, bytes);
    }
    return bytes + q % 32 * bytes_stride;
  }
};

namespace {

// C (m, n) = A B, dense and row-major, or with the transpose of A or B as stored
void multiply(char transpose_a,
              char transpose_b,
              std::size_t m,
              std::size_t n,
              std::size_t k,
              float const* a,
              float const* b,
              float* c) {
  auto const dim = [](std::size_t extent) { return static_cast<dnnl_dim_t>(extent); };
  dnnl_sgemm(transpose_a,
             transpose_b,
             dim(m),
             dim(n),
             dim(k),
             1.0F,
             a,
             transpose_a == 'T' ? dim(m) : dim(k),
             b,
             transpose_b == 'T' ? dim(k) : dim(n),
             0.0F,
             c,
             dim(n));
}

// A row of scores becomes dropped-out probabilities; returns the log of the sum.
float softmax(float* row, std::size_t n, std::uint8_t const* bytes, dropout const& drop) {
  auto const keep = byte_factor{drop};
  auto largest    = row[0];
#pragma omp simd reduction(max : largest)
  for (std::size_t k = 0; k < n; ++k) { largest = row[k] > largest ? row[k] : largest; }
  auto sum = 0.0F;
#pragma omp simd reduction(+ : sum)
  for (std::size_t k = 0; k < n; ++k) {
    row[k] = exp_fast(row[k] - largest);
    sum += row[k];
  }
  auto const inverse = 1.0F / sum;
#pragma omp simd
  for (std::size_t k = 0; k < n; ++k) { row[k] *= inverse * keep(bytes[k]); }
  return largest + std::log(sum);
}

// scores -> dropped-out probabilities, gradients of those -> gradients of scores
void softmax_gradient(float* scores,
                      float* gradients,
                      std::size_t n,
                      float lse,
                      float delta,
                      std::uint8_t const* bytes,
                      dropout const& drop) {
  auto const keep = byte_factor{drop};
#pragma omp simd
  for (std::size_t k = 0; k < n; ++k) {
    auto const p    = exp_fast(scores[k] - lse);
    auto const kept = keep(bytes[k]);
    scores[k]       = p * kept;
    gradients[k]    = p * (gradients[k] * kept - delta);
  }
}

}  // namespace

template <class Value>
template <class Work>
void attention_operations<Value>::for_each_head(batch_index const& rows,
                                                std::size_t heads,
                                                std::size_t hidden,
                                                dropout const& drop,
                                                Work const& work) {
  auto const sequences = rows.data().sequence_count();
  if (sequences == 0) { return; }
  by_length_.resize(sequences);
  std::iota(by_length_.begin(), by_length_.end(), std::size_t{0});
  std::sort(by_length_.begin(), by_length_.end(), [&](std::size_t a, std::size_t b) {
    return rows.length(a) != rows.length(b) ? rows.length(a) > rows.length(b) : a < b;
  });
  auto const longest = rows.length(by_length_.front());
  auto const d       = hidden / heads;
  auto const room    = task::floats(longest, d);
  auto const stride  = (longest + 63) / 64 * 64;
  space_.grow(on_.count() * room);
  bytes_.grow(on_.count() * 32 * stride);
  std::fill(bytes_.begin(), bytes_.end(), std::uint8_t{0});
  for_each_dynamic(on_, sequences * heads, [&](std::size_t i, std::size_t thread) {
    auto const s      = by_length_[i / heads];
    auto const number = i % heads;
    auto const n      = rows.length(s);
    auto own          = drop;
    own.site += static_cast<std::uint32_t>(number);
    work(task{static_cast<std::size_t>(rows.data().starts[s]),
              n,
              number,
              d,
              hidden,
              rows.data().samples[s],
              own,
              space_.data() + thread * room,
              bytes_.data() + thread * 32 * stride,
              (n + 63) / 64 * 64});
  });
}

template <class Value>
void attention_operations<Value>::attention(batch_index const& rows,
                                            in qkv,
                                            std::size_t heads,
                                            dropout const& drop,
                                            out context,
                                            std::span<float> lse) {
  auto const hidden = context.cols;
  for_each_head(rows, heads, hidden, drop, [&](task const& t) {
    auto const scale = 1.0F / std::sqrt(static_cast<float>(t.d));
    auto* const q    = t.vectors(0);
    auto* const k    = t.vectors(1);
    auto* const v    = t.vectors(2);
    auto* const o    = t.vectors(3);
    auto* const p    = t.scores(0);
    t.read(qkv, t.column(0), scale, q);
    t.read(qkv, t.column(1), 1.0F, k);
    t.read(qkv, t.column(2), 1.0F, v);
    multiply('N', 'T', t.n, t.n, t.d, q, k, p);
    for (auto i = std::size_t{0}; i < t.n; ++i) {
      lse[t.number * qkv.rows + t.first + i] = softmax(p + i * t.n, t.n, t.bytes_of(i), t.drop);
    }
    multiply('N', 'N', t.n, t.d, t.n, p, v, o);
    t.write(o, 1.0F, context, t.number * t.d);
  });
}

template <class Value>
void attention_operations<Value>::attention_gradient(batch_index const& rows,
                                                     in qkv,
                                                     std::size_t heads,
                                                     dropout const& drop,
                                                     in context,
                                                     reals lse,
                                                     in dcontext,
                                                     out dqkv) {
  auto const hidden = context.cols;
  for_each_head(rows, heads, hidden, drop, [&](task const& t) {
    auto const scale = 1.0F / std::sqrt(static_cast<float>(t.d));
    auto* const q    = t.vectors(0);
    auto* const k    = t.vectors(1);
    auto* const v    = t.vectors(2);
    auto* const o    = t.vectors(3);
    auto* const go   = t.vectors(4);  // gradients of o, q, k, v
    auto* const gq   = t.vectors(5);
    auto* const gk   = t.vectors(6);
    auto* const gv   = t.vectors(7);
    auto* const p    = t.scores(0);
    auto* const gp   = t.scores(1);
    t.read(qkv, t.column(0), scale, q);
    t.read(qkv, t.column(1), 1.0F, k);
    t.read(qkv, t.column(2), 1.0F, v);
    t.read(context, t.number * t.d, 1.0F, o);
    t.read(dcontext, t.number * t.d, 1.0F, go);
    multiply('N', 'T', t.n, t.n, t.d, q, k, p);
    multiply('N', 'T', t.n, t.n, t.d, go, v, gp);
    for (auto i = std::size_t{0}; i < t.n; ++i) {
      auto delta = 0.0F;
#pragma omp simd reduction(+ : delta)
      for (std::size_t j = 0; j < t.d; ++j) { delta += o[i * t.d + j] * go[i * t.d + j]; }
      softmax_gradient(p + i * t.n,
                       gp + i * t.n,
                       t.n,
                       lse[t.number * qkv.rows + t.first + i],
                       delta,
                       t.bytes_of(i),
                       t.drop);
    }
    multiply('T', 'N', t.n, t.d, t.n, p, go, gv);
    multiply('N', 'N', t.n, t.d, t.n, gp, k, gq);
    multiply('T', 'N', t.n, t.d, t.n, gp, q, gk);  // q is scaled already
    t.write(gq, scale, dqkv, t.column(0));
    t.write(gk, 1.0F, dqkv, t.column(1));
    t.write(gv, 1.0F, dqkv, t.column(2));
  });
}

template class attention_operations<float>;
template class attention_operations<gradlane::bf16>;

}  // namespace bert::cpu

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "batch_index.hpp"  // for batch_index
#include "dropout.hpp"      // for row_factor, attention_factor
#include "entropy.hpp"      // for entropy
#include "matrix_view.hpp"  // for matrix_view, weight_matrix, norm_state
#include "step_value.hpp"   // for step_value

#include <algorithm>  // for max
#include <cmath>      // for sqrt, exp, log, erf, tanh
#include <cstddef>    // for size_t
#include <cstdint>    // for int32_t
#include <numbers>    // for inv_sqrtpi, sqrt2
#include <span>       // for span
#include <vector>     // for vector

namespace bert {

/// The operations that the model is made of, written as their definitions: one thread, no care for
/// speed. What they mean is stated here; every other device must agree with this one.
///
/// Rows are tokens (or predictions, or sequences) and every operation treats each row, attention
/// each sequence, on its own; only gradients of parameters sum over rows. Those sums overwrite
/// their target unless `accumulate` is set. Outputs may alias inputs of the same shape.
///
/// Value is the type of activations, Real that of parameters, their gradients and statistics.
template <class T>
class reference_device {
 public:
  using value = T;
  using real  = T;
  using index = batch_index;
  template <class E>
  using buffer = std::vector<E>;
  using in     = matrix_view<T const>;
  using out    = matrix_view<T>;
  using state  = norm_state<T, T>;

  /// Rows that buffers must have room for, given the rows in use.
  [[nodiscard]] static std::size_t capacity(std::size_t rows) { return rows; }
  /// The stride that matrices of activations must have.
  [[nodiscard]] static std::size_t stride(std::size_t columns) { return columns; }

  /// Announces the flat vector that weight_matrix::offset counts in, anew after each change.
  void load(std::span<T const> parameters) { parameters_ = parameters; }
  /// Elements of what was loaded have changed.
  void load_part(std::span<T const> /*loaded*/, std::size_t /*begin*/, std::size_t /*size*/) {}

  /// Takes a batch, which need not outlive the call.
  void assign(batch const& data, index& rows) const { rows.assign(data); }
  /// Makes room of its own for batches up to this size; returns the bytes.
  std::size_t reserve(model_config const&, batch_shape const&, index const&) const { return 0; }

  void zero(std::span<T> x) const {
    for (auto& element : x) { element = 0; }
  }

  /// y (n, out) = x (n, in) wᵀ + bias (out), which may be empty
  void linear(in x, weight_matrix w, std::span<T const> bias, out y) const {
    for (auto i = std::size_t{0}; i < x.rows; ++i) {
      for (auto o = std::size_t{0}; o < w.out; ++o) {
        auto sum = bias.empty() ? T{0} : bias[o];
        for (auto k = std::size_t{0}; k < w.in; ++k) { sum += x(i, k) * at(w, o, k); }
        y(i, o) = sum;
      }
    }
  }

  /// dx (n, in) = dy (n, out) w
  void linear_input_gradient(in dy, weight_matrix w, out dx) const {
    for (auto i = std::size_t{0}; i < dy.rows; ++i) {
      for (auto k = std::size_t{0}; k < w.in; ++k) {
        auto sum = T{0};
        for (auto o = std::size_t{0}; o < w.out; ++o) { sum += dy(i, o) * at(w, o, k); }
        dx(i, k) = sum;
      }
    }
  }

  /// dw (out, in) = dyᵀ x
  void linear_weight_gradient(in dy, in x, std::span<T> dw, bool accumulate) const {
    start(dw, accumulate);
    for (auto i = std::size_t{0}; i < dy.rows; ++i) {
      for (auto o = std::size_t{0}; o < dy.cols; ++o) {
        for (auto k = std::size_t{0}; k < x.cols; ++k) { dw[o * x.cols + k] += dy(i, o) * x(i, k); }
      }
    }
  }

  /// db (cols) = Σ_rows dy
  void column_sums(in dy, std::span<T> db, bool accumulate) const {
    start(db, accumulate);
    for (auto i = std::size_t{0}; i < dy.rows; ++i) {
      for (auto j = std::size_t{0}; j < dy.cols; ++j) { db[j] += dy(i, j); }
    }
  }

  /// y (n, H) = LayerNorm(x)
  void norm(in x,
            std::span<T const> weight,
            std::span<T const> bias,
            double epsilon,
            state s,
            out y) const {
    auto const h = x.cols;
    for (auto i = std::size_t{0}; i < x.rows; ++i) {
      auto mean     = T{0};
      auto variance = T{0};
      for (auto j = std::size_t{0}; j < h; ++j) { mean += x(i, j) / static_cast<T>(h); }
      for (auto j = std::size_t{0}; j < h; ++j) {
        variance += (x(i, j) - mean) * (x(i, j) - mean) / static_cast<T>(h);
      }
      auto const inverse     = 1 / std::sqrt(variance + static_cast<T>(epsilon));
      s.inverse_deviation[i] = inverse;
      for (auto j = std::size_t{0}; j < h; ++j) {
        s.normalised(i, j) = (x(i, j) - mean) * inverse;
        y(i, j)            = s.normalised(i, j) * weight[j] + bias[j];
      }
    }
  }

  void norm_gradient(in dy,
                     std::span<T const> weight,
                     state s,
                     out dx,
                     std::span<T> dweight,
                     std::span<T> dbias,
                     bool accumulate) const {
    start(dweight, accumulate);
    start(dbias, accumulate);
    auto const h = dy.cols;
    for (auto i = std::size_t{0}; i < dy.rows; ++i) {
      auto mean       = T{0};
      auto projection = T{0};
      for (auto j = std::size_t{0}; j < h; ++j) {
        dweight[j] += dy(i, j) * s.normalised(i, j);
        dbias[j] += dy(i, j);
        mean += dy(i, j) * weight[j] / static_cast<T>(h);
        projection += dy(i, j) * weight[j] * s.normalised(i, j) / static_cast<T>(h);
      }
      for (auto j = std::size_t{0}; j < h; ++j) {
        dx(i, j) = s.inverse_deviation[i] *
                   (dy(i, j) * weight[j] - mean - s.normalised(i, j) * projection);
      }
    }
  }

  /// y (T, H) = LayerNorm(residual + dropout(branch + branch_bias))
  void add_norm(index const& rows,
                in branch,
                std::span<T const> branch_bias,
                in residual,
                std::span<T const> weight,
                std::span<T const> bias,
                double epsilon,
                dropout const& drop,
                state s,
                out y) const {
    auto sum = matrix(branch.rows, branch.cols);
    for (auto i = std::size_t{0}; i < branch.rows; ++i) {
      for (auto j = std::size_t{0}; j < branch.cols; ++j) {
        sum.view(i, j) =
            residual(i, j) + (branch(i, j) + branch_bias[j]) * factor(drop, rows, i, j);
      }
    }
    norm(sum.view, weight, bias, epsilon, s, y);
  }

  /// The gradient of y is dy + dy_more, where dy_more may be empty.
  void add_norm_gradient(index const& rows,
                         in dy,
                         in dy_more,
                         std::span<T const> weight,
                         dropout const& drop,
                         state s,
                         out dresidual,
                         out dbranch,
                         std::span<T> dbranch_bias,
                         std::span<T> dweight,
                         std::span<T> dbias,
                         bool accumulate) const {
    auto sum = matrix(dy.rows, dy.cols);
    for (auto i = std::size_t{0}; i < dy.rows; ++i) {
      for (auto j = std::size_t{0}; j < dy.cols; ++j) {
        sum.view(i, j) = dy(i, j) + (dy_more.empty() ? T{0} : dy_more(i, j));
      }
    }
    norm_gradient(sum.view, weight, s, sum.view, dweight, dbias, accumulate);
    for (auto i = std::size_t{0}; i < dy.rows; ++i) {
      for (auto j = std::size_t{0}; j < dy.cols; ++j) {
        dresidual(i, j) = sum.view(i, j);
        dbranch(i, j)   = sum.view(i, j) * factor(drop, rows, i, j);
      }
    }
    column_sums(dbranch, dbranch_bias, accumulate);
  }

  /// y (T, H) = dropout(LayerNorm(word[token] + type[segment] + position[place]))
  void embed(index const& rows,
             std::span<T const> word,
             std::span<T const> position,
             std::span<T const> type,
             std::span<T const> weight,
             std::span<T const> bias,
             double epsilon,
             dropout const& drop,
             state s,
             out y) const {
    auto const h = y.cols;
    for (auto i = std::size_t{0}; i < y.rows; ++i) {
      for (auto j = std::size_t{0}; j < h; ++j) {
        y(i, j) = word[static_cast<std::size_t>(rows.data().tokens[i]) * h + j] +
                  type[static_cast<std::size_t>(rows.data().segments[i]) * h + j] +
                  position[static_cast<std::size_t>(rows.positions()[i]) * h + j];
      }
    }
    norm(y, weight, bias, epsilon, s, y);
    for (auto i = std::size_t{0}; i < y.rows; ++i) {
      for (auto j = std::size_t{0}; j < h; ++j) { y(i, j) *= factor(drop, rows, i, j); }
    }
  }

  /// Adds to dword, whose other part comes from the decoder; token 0 ([PAD]) adds nothing, as in
  /// Hugging Face, where it is the embedding's padding_idx. The other targets are as usual.
  void embed_gradient(index const& rows,
                      in dy,
                      in dy_more,
                      std::span<T const> weight,
                      dropout const& drop,
                      state s,
                      std::span<T> dword,
                      std::span<T> dposition,
                      std::span<T> dtype,
                      std::span<T> dweight,
                      std::span<T> dbias,
                      bool accumulate) const {
    auto const h = dy.cols;
    auto sum     = matrix(dy.rows, h);
    for (auto i = std::size_t{0}; i < dy.rows; ++i) {
      for (auto j = std::size_t{0}; j < h; ++j) {
        auto const both = dy(i, j) + (dy_more.empty() ? T{0} : dy_more(i, j));
        sum.view(i, j)  = both * factor(drop, rows, i, j);
      }
    }
    norm_gradient(sum.view, weight, s, sum.view, dweight, dbias, accumulate);
    start(dposition, accumulate);
    start(dtype, accumulate);
    for (auto i = std::size_t{0}; i < dy.rows; ++i) {
      auto const token = static_cast<std::size_t>(rows.data().tokens[i]);
      for (auto j = std::size_t{0}; j < h; ++j) {
        if (token != 0) { dword[token * h + j] += sum.view(i, j); }
        dtype[static_cast<std::size_t>(rows.data().segments[i]) * h + j] += sum.view(i, j);
        dposition[static_cast<std::size_t>(rows.positions()[i]) * h + j] += sum.view(i, j);
      }
    }
  }

  /// y (n, I) = gelu(x + bias), gelu(z) = z Φ(z) with Φ by erf, not the tanh approximation.
  void gelu(in x, std::span<T const> bias, out y) const {
    for (auto i = std::size_t{0}; i < x.rows; ++i) {
      for (auto j = std::size_t{0}; j < x.cols; ++j) {
        auto const z = x(i, j) + bias[j];
        y(i, j)      = z * normal_cdf(z);
      }
    }
  }

  /// dx = dy gelu'(x + bias); dbias = Σ_rows dx
  void gelu_gradient(
      in x, std::span<T const> bias, in dy, out dx, std::span<T> dbias, bool accumulate) const {
    for (auto i = std::size_t{0}; i < x.rows; ++i) {
      for (auto j = std::size_t{0}; j < x.cols; ++j) {
        auto const z = x(i, j) + bias[j];
        auto const density =
            std::exp(-z * z / 2) * std::numbers::inv_sqrtpi_v<T> / std::numbers::sqrt2_v<T>;
        dx(i, j) = dy(i, j) * (normal_cdf(z) + z * density);
      }
    }
    column_sums(dx, dbias, accumulate);
  }

  /// y (n, H) = tanh(x + bias)
  void tanh(in x, std::span<T const> bias, out y) const {
    for (auto i = std::size_t{0}; i < x.rows; ++i) {
      for (auto j = std::size_t{0}; j < x.cols; ++j) { y(i, j) = std::tanh(x(i, j) + bias[j]); }
    }
  }

  /// dx = dy (1 - y²); dbias = Σ_rows dx
  void tanh_gradient(in y, in dy, out dx, std::span<T> dbias, bool accumulate) const {
    for (auto i = std::size_t{0}; i < y.rows; ++i) {
      for (auto j = std::size_t{0}; j < y.cols; ++j) {
        dx(i, j) = dy(i, j) * (1 - y(i, j) * y(i, j));
      }
    }
    column_sums(dx, dbias, accumulate);
  }

  /// context (T, H) from qkv (T, 3 H), for each sequence and each of the A heads:
  /// softmax(q kᵀ / √d), dropped out, times v. lse (A, T) is the log of each softmax's sum.
  void attention(index const& rows,
                 in qkv,
                 std::size_t heads,
                 dropout const& drop,
                 out context,
                 std::span<T> lse) const {
    for_each_head(rows, qkv, heads, [&](head const& a) {
      auto weights = std::vector<T>(a.length);  // of the values, for one query
      for (auto q = std::size_t{0}; q < a.length; ++q) {
        auto sum = T{0};
        for (auto k = std::size_t{0}; k < a.length; ++k) {
          weights[k] = std::exp(a.score(q, k));
          sum += weights[k];
        }
        lse[a.number * qkv.rows + a.first + q] = std::log(sum);
        for (auto k = std::size_t{0}; k < a.length; ++k) {
          weights[k] = weights[k] / sum * a.factor(drop, q, k);
        }
        for (auto j = std::size_t{0}; j < a.size; ++j) {
          auto sum_v = T{0};
          for (auto k = std::size_t{0}; k < a.length; ++k) { sum_v += weights[k] * a.v(k, j); }
          context(a.first + q, a.number * a.size + j) = sum_v;
        }
      }
    });
  }

  /// dqkv (T, 3 H) from dcontext (T, H)
  void attention_gradient(index const& rows,
                          in qkv,
                          std::size_t heads,
                          dropout const& drop,
                          in context,
                          std::span<T const> lse,
                          in dcontext,
                          out dqkv) const {
    for (auto i = std::size_t{0}; i < dqkv.rows; ++i) { zero({dqkv.row(i), dqkv.cols}); }
    for_each_head(rows, qkv, heads, [&](head const& a) {
      auto const scale  = 1 / std::sqrt(static_cast<T>(a.size));
      auto const column = a.number * a.size;
      for (auto q = std::size_t{0}; q < a.length; ++q) {
        auto delta = T{0};
        for (auto j = std::size_t{0}; j < a.size; ++j) {
          delta += dcontext(a.first + q, column + j) * context(a.first + q, column + j);
        }
        for (auto k = std::size_t{0}; k < a.length; ++k) {
          auto const p    = std::exp(a.score(q, k) - lse[a.number * qkv.rows + a.first + q]);
          auto const kept = a.factor(drop, q, k);
          auto dp         = T{0};
          for (auto j = std::size_t{0}; j < a.size; ++j) {
            dp += dcontext(a.first + q, column + j) * a.v(k, j);
            dqkv(a.first + k, 2 * a.hidden + column + j) +=
                p * kept * dcontext(a.first + q, column + j);
          }
          auto const ds = p * (dp * kept - delta) * scale;
          for (auto j = std::size_t{0}; j < a.size; ++j) {
            dqkv(a.first + q, column + j) += ds * a.k(k, j);
            dqkv(a.first + k, a.hidden + column + j) += ds * a.q(q, j);
          }
        }
      }
    });
  }

  /// y (n, H) = the given rows of x; zeros for a row of -1
  void gather(in x, std::span<std::int32_t const> rows, out y) const {
    for (auto i = std::size_t{0}; i < rows.size(); ++i) {
      for (auto j = std::size_t{0}; j < x.cols; ++j) {
        y(i, j) = rows[i] < 0 ? T{0} : x(static_cast<std::size_t>(rows[i]), j);
      }
    }
  }

  /// x[rows[i]] += y[i], where rows are distinct; nothing for a row of -1
  void scatter_add(in y, std::span<std::int32_t const> rows, out x) const {
    for (auto i = std::size_t{0}; i < rows.size(); ++i) {
      if (rows[i] < 0) { continue; }
      for (auto j = std::size_t{0}; j < x.cols; ++j) {
        x(static_cast<std::size_t>(rows[i]), j) += y(i, j);
      }
    }
  }

  /// Σ_rows -log softmax(logits)[label] of logits (n, V); leaves the log of each softmax's sum in
  /// lse (n), and the result in the device's memory. A label of -1 counts for nothing.
  void cross_entropy(in logits,
                     std::span<std::int32_t const> labels,
                     std::span<T> lse,
                     entropy* target) const {
    auto result = entropy{};
    for (auto i = std::size_t{0}; i < labels.size(); ++i) {
      auto largest = logits(i, 0);
      auto sum     = T{0};
      for (auto j = std::size_t{0}; j < logits.cols; ++j) {
        largest = std::max(largest, logits(i, j));
      }
      for (auto j = std::size_t{0}; j < logits.cols; ++j) {
        sum += std::exp(logits(i, j) - largest);
      }
      lse[i] = largest + std::log(sum);
      if (labels[i] < 0) { continue; }
      auto const correct = logits(i, static_cast<std::size_t>(labels[i]));
      result.loss += static_cast<double>(lse[i] - correct);
      result.correct += correct == largest ? 1 : 0;
    }
    *target = result;
  }

  /// A result, when the operations before have come to it.
  [[nodiscard]] entropy sync_read(entropy const* target) const { return *target; }

  /// Turns logits into the gradient of scale * loss, in place.
  void cross_entropy_gradient(out logits,
                              std::span<std::int32_t const> labels,
                              std::span<T const> lse,
                              step_value<double> scale) const {
    for (auto i = std::size_t{0}; i < labels.size(); ++i) {
      auto const factor = labels[i] < 0 ? T{0} : static_cast<T>(scale.read());
      for (auto j = std::size_t{0}; j < logits.cols; ++j) {
        auto const hit = j == static_cast<std::size_t>(labels[i]);
        logits(i, j)   = factor * (std::exp(logits(i, j) - lse[i]) - (hit ? 1 : 0));
      }
    }
  }

 private:
  struct owned_matrix {
    std::vector<T> data;
    out view;
  };

  struct head {
    in qkv;
    std::size_t first;
    std::size_t length;
    std::size_t number;
    std::size_t size;
    std::size_t hidden;
    std::uint32_t sample;

    [[nodiscard]] T at(std::size_t part, std::size_t row, std::size_t j) const {
      return qkv(first + row, part * hidden + number * size + j);
    }
    [[nodiscard]] T q(std::size_t row, std::size_t j) const { return at(0, row, j); }
    [[nodiscard]] T k(std::size_t row, std::size_t j) const { return at(1, row, j); }
    [[nodiscard]] T v(std::size_t row, std::size_t j) const { return at(2, row, j); }
    [[nodiscard]] T score(std::size_t query, std::size_t key) const {
      auto sum = T{0};
      for (auto j = std::size_t{0}; j < size; ++j) { sum += q(query, j) * k(key, j); }
      return sum / std::sqrt(static_cast<T>(size));
    }
    [[nodiscard]] T factor(dropout drop, std::size_t query, std::size_t key) const {
      drop.site += static_cast<std::uint32_t>(number);
      return static_cast<T>(attention_factor(
          drop, sample, static_cast<std::uint32_t>(query), static_cast<std::uint32_t>(key)));
    }
  };

  template <class Function>
  static void for_each_head(index const& rows, in qkv, std::size_t heads, Function const& apply) {
    auto const hidden = qkv.cols / 3;
    for (auto s = std::size_t{0}; s < rows.data().sequence_count(); ++s) {
      for (auto number = std::size_t{0}; number < heads; ++number) {
        apply(head{qkv,
                   static_cast<std::size_t>(rows.data().starts[s]),
                   rows.length(s),
                   number,
                   hidden / heads,
                   hidden,
                   rows.data().samples[s]});
      }
    }
  }

  [[nodiscard]] static owned_matrix matrix(std::size_t rows, std::size_t cols) {
    auto result = owned_matrix{std::vector<T>(rows * cols), {}};
    result.view = {result.data.data(), rows, cols};
    return result;
  }
  [[nodiscard]] static T factor(dropout const& drop,
                                index const& rows,
                                std::size_t i,
                                std::size_t j) {
    return static_cast<T>(row_factor(drop,
                                     rows.row_samples()[i],
                                     static_cast<std::uint32_t>(rows.positions()[i]),
                                     static_cast<std::uint32_t>(j)));
  }
  [[nodiscard]] T at(weight_matrix w, std::size_t o, std::size_t k) const {
    return parameters_[w.offset + o * w.in + k];
  }
  [[nodiscard]] static T normal_cdf(T z) { return std::erfc(-z / std::numbers::sqrt2_v<T>) / 2; }
  void start(std::span<T> sum, bool accumulate) const {
    if (!accumulate) { zero(sum); }
  }

  std::span<T const> parameters_;
};

}  // namespace bert

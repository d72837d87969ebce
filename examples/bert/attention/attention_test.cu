// SPDX-License-Identifier: Apache-2.0
#include "attention.cuh"

#include <doctest/doctest.h>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>    // for all_of, count_if, equal
#include <cmath>        // for sqrt, exp, isfinite, log, abs
#include <cstddef>      // for size_t
#include <cstdint>      // for int32_t, uint32_t, uint64_t
#include <cstring>      // for memcmp, memset
#include <limits>       // for numeric_limits
#include <span>         // for span
#include <stdexcept>    // for invalid_argument
#include <type_traits>  // for is_same_v
#include <vector>       // for vector

// Outside of the unnamed namespace, where nvcc 13.0 would not find them again as types of kernels.
using bf16 = __nv_bfloat16;
using fp16 = __half;

namespace {

namespace attention = bert::attention;
using bert::attention_factor;
using bert::dropout;

constexpr auto d    = std::size_t{attention::head_size};
constexpr auto drop = dropout{11, 22, 33, 230, 256.0F / 230.0F};

void require(cudaError_t code) { REQUIRE_MESSAGE(code == cudaSuccess, cudaGetErrorString(code)); }

/// Device memory whose bytes are 0xFF (NaN in every type) until it is written.
template <class T>
class device_buffer {
 public:
  explicit device_buffer(std::size_t size) : size_{size} {
    require(cudaMalloc(&data_, (size + 1) * sizeof(T)));
    require(cudaMemset(data_, 0xFF, (size + 1) * sizeof(T)));
  }
  explicit device_buffer(std::vector<T> const& values) : device_buffer{values.size()} {
    write(values);
  }
  ~device_buffer() { static_cast<void>(cudaFree(data_)); }
  device_buffer(device_buffer const&)            = delete;
  device_buffer& operator=(device_buffer const&) = delete;

  void write(std::vector<T> const& values) {
    require(cudaMemcpy(data_, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
  }
  [[nodiscard]] std::vector<T> read() const {
    auto values = std::vector<T>(size_);
    require(cudaMemcpy(values.data(), data_, size_ * sizeof(T), cudaMemcpyDeviceToHost));
    return values;
  }
  [[nodiscard]] std::span<T> span() const { return {data_, size_}; }

  /// A view of `size` elements that has ours from element `first` on, and nothing else.
  [[nodiscard]] std::span<T> as_part(std::size_t first, std::size_t size) const {
    auto const address = reinterpret_cast<std::uintptr_t>(data_) - first * sizeof(T);
    return {reinterpret_cast<T*>(address), size};
  }

 private:
  std::size_t size_;
  T* data_ = nullptr;
};

template <class T>
bool same_bits(std::vector<T> const& a, std::vector<T> const& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

template <class T>
bool poisoned(std::span<T const> values) {
  auto const bytes = std::as_bytes(values);
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{0xFF}; });
}

/// A batch with inputs that depend on the samples' ids alone and are exact in 16 bits.
struct problem {
  std::vector<std::int32_t> starts{0};  // (B + 1)
  std::vector<std::uint32_t> samples;   // (B)
  std::size_t heads;
  dropout drop;
  std::vector<double> qkv;       // (T, 3, H, 64)
  std::vector<double> dcontext;  // (T, H, 64)

  problem(std::vector<std::int32_t> const& lengths,
          std::size_t head_count,
          dropout const& with,
          std::uint32_t first_sample = 100)
      : heads{head_count}, drop{with} {
    for (auto const length : lengths) { append(first_sample++, length); }
  }

  explicit problem(std::size_t head_count, dropout const& with) : heads{head_count}, drop{with} {}

  void append(std::uint32_t sample, std::int32_t length) {
    starts.push_back(starts.back() + length);
    samples.push_back(sample);
    auto state = std::uint64_t{sample} << 32U;
    auto next  = [&] {  // -1.75 … 1.75 in 64ths; by Vigna's splitmix64
      auto z = state += 0x9E3779B97F4A7C15U;
      z      = (z ^ z >> 30U) * 0xBF58476D1CE4E5B9U;
      z      = (z ^ z >> 27U) * 0x94D049BB133111EBU;
      return static_cast<double>((z ^ z >> 31U) % 225) / 64 - 1.75;
    };
    auto const row = heads * d;
    for (auto i = std::size_t{0}; i < static_cast<std::size_t>(length) * row; ++i) {
      for (auto part = 0; part < 3; ++part) { qkv.push_back(next()); }
      dcontext.push_back(next());
    }
  }

  [[nodiscard]] std::size_t rows() const { return static_cast<std::size_t>(starts.back()); }
  [[nodiscard]] std::size_t place(std::size_t row, std::size_t part, std::size_t head) const {
    return ((row * 3 + part) * heads + head) * d;
  }
  [[nodiscard]] std::vector<attention::tile> tiles(std::size_t spare = 0) const {
    auto list = std::vector<attention::tile>(attention::count_tiles(starts) + spare);
    attention::fill_tiles(starts, list);
    return list;
  }
};

template <class Value>
struct result {
  std::vector<Value> context;  // (T, H, 64)
  std::vector<float> lse;      // (H, T)
  std::vector<Value> dqkv;     // (T, 3, H, 64)
};

template <class Value>
bool same_bits(result<Value> const& a, result<Value> const& b) {
  return same_bits(a.context, b.context) && same_bits(a.lse, b.lse) && same_bits(a.dqkv, b.dqkv);
}

/// What the formulas say, in fp64.
result<double> reference(problem const& p) {
  auto r = result<double>{std::vector<double>(p.rows() * p.heads * d),
                          std::vector<float>(p.rows() * p.heads),
                          std::vector<double>(p.rows() * 3 * p.heads * d)};
  for (auto s = std::size_t{0}; s < p.samples.size(); ++s) {
    auto const first = static_cast<std::size_t>(p.starts[s]);
    auto const n     = static_cast<std::size_t>(p.starts[s + 1]) - first;
    for (auto h = std::size_t{0}; h < p.heads; ++h) {
      auto head = p.drop;
      head.site += static_cast<std::uint32_t>(h);
      auto const dot = [](double const* x, double const* y) {
        auto sum = 0.0;
        for (auto i = std::size_t{0}; i < d; ++i) { sum += x[i] * y[i]; }
        return sum;
      };
      auto const add = [](double factor, double const* x, double* to) {
        for (auto i = std::size_t{0}; i < d; ++i) { to[i] += factor * x[i]; }
      };
      auto const in = [&](std::size_t row, std::size_t part) {
        return &p.qkv[p.place(first + row, part, h)];
      };
      auto const out = [&](std::size_t row, std::size_t part) {
        return &r.dqkv[p.place(first + row, part, h)];
      };
      auto weights = std::vector<double>(n);
      for (auto q = std::size_t{0}; q < n; ++q) {
        auto const at        = ((first + q) * p.heads + h) * d;
        auto const* const dc = &p.dcontext[at];
        auto sum             = 0.0;
        for (auto k = std::size_t{0}; k < n; ++k) {
          weights[k] = std::exp(dot(in(q, 0), in(k, 1)) / 8);
          sum += weights[k];
        }
        r.lse[h * p.rows() + first + q] = static_cast<float>(std::log(sum));
        auto delta                      = 0.0;
        auto const factor               = [&](std::size_t k) {
          return double{attention_factor(
              head, p.samples[s], static_cast<std::uint32_t>(q), static_cast<std::uint32_t>(k))};
        };
        for (auto k = std::size_t{0}; k < n; ++k) {
          weights[k] /= sum;
          add(weights[k] * factor(k), in(k, 2), &r.context[at]);
          add(weights[k] * factor(k), dc, out(k, 2));
          delta += weights[k] * factor(k) * dot(dc, in(k, 2));
        }
        for (auto k = std::size_t{0}; k < n; ++k) {
          auto const ds = weights[k] * (factor(k) * dot(dc, in(k, 2)) - delta) / 8;
          add(ds, in(k, 1), out(q, 0));
          add(ds, in(q, 0), out(k, 1));
        }
      }
    }
  }
  return r;
}

template <class Value>
std::vector<Value> converted(std::vector<double> const& x) {
  auto y = std::vector<Value>(x.size());
  for (auto i = std::size_t{0}; i < x.size(); ++i) { y[i] = Value(static_cast<float>(x[i])); }
  return y;
}

/// Device memory of a problem, whose outputs have `beyond` rows more than the problem.
template <class Value>
struct on_device {
  std::size_t heads;
  dropout drop;
  device_buffer<std::int32_t> starts;
  device_buffer<std::uint32_t> samples;
  device_buffer<attention::tile> tiles;
  device_buffer<Value> qkv, dcontext, context, dqkv;
  device_buffer<float> lse;
  device_buffer<attention::row_terms> scratch;

  explicit on_device(problem const& p, std::size_t beyond = 0, std::size_t spare_tiles = 0)
      : heads{p.heads},
        drop{p.drop},
        starts{p.starts},
        samples{p.samples},
        tiles{p.tiles(spare_tiles)},
        qkv{(p.rows() + beyond) * 3 * p.heads * d},
        dcontext{(p.rows() + beyond) * p.heads * d},
        context{dcontext.span().size()},
        dqkv{qkv.span().size()},
        lse{(p.rows() + beyond) * p.heads},
        scratch{lse.span().size()} {
    qkv.write(converted<Value>(p.qkv));
    dcontext.write(converted<Value>(p.dcontext));
  }

  [[nodiscard]] attention::ragged_batch batch() const {
    return {starts.span(), samples.span(), tiles.span(), heads};
  }
  [[nodiscard]] attention::forward_arguments<Value> forward() const {
    return {batch(), drop, qkv.span(), context.span(), lse.span()};
  }
  [[nodiscard]] attention::backward_arguments<Value> backward() const {
    return {batch(),
            drop,
            qkv.span(),
            context.span(),
            lse.span(),
            dcontext.span(),
            dqkv.span(),
            scratch.span()};
  }
  [[nodiscard]] result<Value> read() const { return {context.read(), lse.read(), dqkv.read()}; }
};

template <class Value>
result<Value> run(problem const& p) {
  auto const device = on_device<Value>{p};
  attention::forward(nullptr, device.forward());
  attention::backward(nullptr, device.backward());
  require(cudaDeviceSynchronize());
  return device.read();
}

/// ‖x - r‖ / ‖r‖, NaN where x is.
template <class Value, class Real>
double relative_error(std::vector<Value> const& x, std::vector<Real> const& r) {
  auto difference = 0.0;
  auto norm       = 0.0;
  for (auto i = std::size_t{0}; i < r.size(); ++i) {
    auto const error = double{static_cast<float>(x[i])} - double{r[i]};
    difference += error * error;
    norm += double{r[i]} * double{r[i]};
  }
  return std::sqrt(difference / norm);
}

/// dq, dk or dv of a dqkv.
template <class T>
std::vector<T> part_of(problem const& p, std::vector<T> const& dqkv, std::size_t part) {
  auto values = std::vector<T>{};
  for (auto row = std::size_t{0}; row < p.rows(); ++row) {
    auto const first = dqkv.begin() + static_cast<std::ptrdiff_t>(p.place(row, part, 0));
    values.insert(values.end(), first, first + static_cast<std::ptrdiff_t>(p.heads * d));
  }
  return values;
}

template <class Value>
void check_against_reference(problem const& p) {
  // bf16: inputs are exact, so what remains is the rounding of p, ds and results: 2^-9 each at
  // most, about half of that on average, over two to three of them in a row; fp16: an eighth.
  constexpr auto tolerance = std::is_same_v<Value, bf16>   ? 3e-3
                             : std::is_same_v<Value, fp16> ? 3e-3 / 8
                                                           : 2e-6;
  auto const x             = run<Value>(p);
  auto const r             = reference(p);
  CHECK(relative_error(x.context, r.context) < tolerance);
  CHECK(relative_error(x.lse, r.lse) < 1e-6);
  for (auto part = std::size_t{0}; part < 3; ++part) {
    CAPTURE(part);
    CHECK(relative_error(part_of(p, x.dqkv, part), part_of(p, r.dqkv, part)) < tolerance);
  }
}

auto const edges = std::vector<std::int32_t>{65, 0, 1, 130, 63, 64, 0, 5, 128, 129, 0};

TEST_CASE_TEMPLATE(
    "attention agrees with fp64 around the edges of tiles", Value, float, bf16, fp16) {
  check_against_reference<Value>(problem{edges, 2, dropout{}});
  check_against_reference<Value>(problem{edges, 2, drop});
}

TEST_CASE_TEMPLATE(
    "attention agrees with fp64 at lengths of 511, 512, 513", Value, float, bf16, fp16) {
  check_against_reference<Value>(problem{{511, 512, 513}, 1, drop});
}

TEST_CASE("attention agrees with fp64 at a length of 2048") {
  check_against_reference<bf16>(problem{{2048}, 1, drop});
}

TEST_CASE("attention stands scores far from zero") {
  auto p = problem{{200, 70, 9}, 1, dropout{}};
  for (auto& x : p.qkv) { x *= 8; }  // scores of up to ± 500: a softmax that is almost a maximum
  auto const x = run<bf16>(p);
  auto const r = reference(p);
  CHECK(relative_error(x.context, r.context) < 3e-3);
  CHECK(relative_error(x.lse, r.lse) < 1e-6);
}

// What an optimizer may skip must show: a loss scale that is too high is found by its Inf alone.
TEST_CASE("attention in fp16 carries what is too large for it into the gradients") {
  auto p = problem{{70}, 1, dropout{}};
  for (auto row = std::size_t{0}; row < 70; ++row) {
    for (auto i = std::size_t{0}; i < d; ++i) { p.qkv[p.place(row, 2, 0) + i] *= 64; }
  }
  for (auto i = std::size_t{0}; i < d; ++i) { p.dcontext[5 * d + i] *= 32768; }  // within range
  auto const x      = run<fp16>(p);
  auto const finite = [](std::vector<fp16> const& values) {
    return std::count_if(values.begin(), values.end(), [](fp16 value) {
      return std::isfinite(static_cast<float>(value));
    });
  };
  CHECK(finite(x.context) == static_cast<std::ptrdiff_t>(x.context.size()));
  auto const dq = part_of(p, x.dqkv, 0);
  CHECK(finite({dq.begin() + 5 * d, dq.begin() + 6 * d}) == 0);
  CHECK(finite(dq) == static_cast<std::ptrdiff_t>(dq.size() - d));
  CHECK(finite(part_of(p, x.dqkv, 1)) < static_cast<std::ptrdiff_t>(70 * d));
}

TEST_CASE_TEMPLATE("attention gives the same bits every time", Value, float, bf16, fp16) {
  auto const p = problem{{130, 65}, 2, drop};
  CHECK(same_bits(run<Value>(p), run<Value>(p)));
}

TEST_CASE_TEMPLATE("attention of a sequence depends on nothing else in the batch",
                   Value,
                   float,
                   bf16) {
  auto alone = problem{2, drop};
  alone.append(7, 130);
  auto crowd = problem{2, drop};
  crowd.append(3, 200);
  crowd.append(7, 130);
  crowd.append(5, 0);
  crowd.append(4, 3);
  auto const a     = run<Value>(alone);
  auto const b     = run<Value>(crowd);
  auto const slice = [](auto const& values, std::size_t first, std::size_t count) {
    auto const from = values.begin() + static_cast<std::ptrdiff_t>(first);
    return std::vector(from, from + static_cast<std::ptrdiff_t>(count));
  };
  CHECK(same_bits(a.context, slice(b.context, 200 * 2 * d, 130 * 2 * d)));
  CHECK(same_bits(a.dqkv, slice(b.dqkv, 200 * 6 * d, 130 * 6 * d)));
  for (auto head = std::size_t{0}; head < 2; ++head) {
    CHECK(same_bits(slice(a.lse, head * 130, 130), slice(b.lse, head * 333 + 200, 130)));
  }
}

TEST_CASE("attention gives the same bits with blocks of 64 and of 128 rows") {
  for (auto const& with : {dropout{}, drop}) {
    auto const p    = problem{{200, 1, 64, 65}, 2, with};
    auto const big  = on_device<bf16>{p};
    auto const less = on_device<bf16>{p};
    attention::forward<128>(nullptr, big.forward());
    attention::forward<64>(nullptr, less.forward());
    CHECK(same_bits(big.context.read(), less.context.read()));
    CHECK(same_bits(big.lse.read(), less.lse.read()));
  }
}

// With q = 0 all n probabilities are 1 / n, and unit vectors in k, v and dcontext show single
// elements: columns b * 64 … b * 64 + 63 of the mask in context and dq, such rows in dv.
TEST_CASE_TEMPLATE("attention drops what the pure function says, in all kernels",
                   Value,
                   float,
                   bf16) {
  constexpr auto n  = std::size_t{130};
  auto const mask   = dropout{1, 2, 3, 128, 2};
  auto p            = problem{{3, static_cast<std::int32_t>(n)}, 2, mask, 0xFFFFFFF0U};
  auto const sample = p.samples[1];
  auto kept_in_all  = std::size_t{0};
  auto differences  = std::size_t{0};
  for (auto block = std::size_t{0}; block * 64 < n; ++block) {
    for (auto row = std::size_t{0}; row < n; ++row) {
      for (auto head = std::size_t{0}; head < 2; ++head) {
        for (auto i = std::size_t{0}; i < d; ++i) {
          auto const unit                            = row == block * 64 + i ? 1.0 : 0.0;
          p.qkv[p.place(3 + row, 0, head) + i]       = 0;
          p.qkv[p.place(3 + row, 1, head) + i]       = unit;
          p.qkv[p.place(3 + row, 2, head) + i]       = unit;
          p.dcontext[((3 + row) * 2 + head) * d + i] = unit;
        }
      }
    }
    auto device = on_device<Value>{p};
    attention::forward(nullptr, device.forward());
    attention::backward(nullptr, device.backward());
    auto const x = device.read();
    // again with v = dcontext = the first unit vector and context = 0: then dp = 1 and delta = 0
    for (auto row = std::size_t{0}; row < n; ++row) {
      for (auto head = std::size_t{0}; head < 2; ++head) {
        for (auto i = std::size_t{0}; i < d; ++i) {
          p.qkv[p.place(3 + row, 2, head) + i]       = i == 0 ? 1 : 0;
          p.dcontext[((3 + row) * 2 + head) * d + i] = i == 0 ? 1 : 0;
        }
      }
    }
    device.qkv.write(converted<Value>(p.qkv));
    device.dcontext.write(converted<Value>(p.dcontext));
    device.context.write(std::vector<Value>(p.rows() * 2 * d, Value(0.0F)));
    attention::backward(nullptr, device.backward());
    auto const dq = device.dqkv.read();
    for (auto head = std::size_t{0}; head < 2; ++head) {
      auto at = mask;
      at.site += static_cast<std::uint32_t>(head);
      for (auto row = std::size_t{0}; row < n; ++row) {
        for (auto i = std::size_t{0}; i < d && block * 64 + i < n; ++i) {
          auto const other   = static_cast<std::uint32_t>(block * 64 + i);
          auto const own     = static_cast<std::uint32_t>(row);
          auto const by_key  = attention_factor(at, sample, own, other) != 0;
          auto const by_row  = attention_factor(at, sample, other, own) != 0;
          auto const shows   = [](Value value) { return static_cast<float>(value) != 0; };
          auto const context = x.context[((3 + row) * 2 + head) * d + i];
          differences += shows(context) == by_key ? 0 : 1;
          differences += shows(dq[p.place(3 + row, 0, head) + i]) == by_key ? 0 : 1;
          differences += shows(x.dqkv[p.place(3 + row, 2, head) + i]) == by_row ? 0 : 1;
          kept_in_all += by_key ? 1 : 0;
        }
      }
    }
  }
  CHECK(differences == 0);
  // 33,800 draws of one half: standard deviation of the rate 2.7e-3; five of them
  CHECK(std::abs(static_cast<double>(kept_in_all) / (2 * n * n) - 0.5) < 1.4e-2);
}

TEST_CASE_TEMPLATE("attention drops at any threshold", Value, float, bf16) {
  constexpr auto n = std::size_t{64};
  auto p           = problem{{64}, 1, dropout{}};
  for (auto row = std::size_t{0}; row < n; ++row) {  // q = 0, v = 1: context is the mask, scaled
    for (auto i = std::size_t{0}; i < d; ++i) {
      p.qkv[p.place(row, 0, 0) + i] = 0;
      p.qkv[p.place(row, 2, 0) + i] = row == i ? 1 : 0;
    }
  }
  for (auto const threshold : {1U, 2U, 126U, 127U, 128U, 129U, 130U, 230U, 254U, 255U}) {
    CAPTURE(threshold);
    p.drop            = dropout{1, 2, 3, threshold, 256.0F / static_cast<float>(threshold)};
    auto const device = on_device<Value>{p};
    attention::forward(nullptr, device.forward());
    auto const context = device.context.read();
    auto differences   = std::size_t{0};
    for (auto q = std::uint32_t{0}; q < n; ++q) {
      for (auto k = std::uint32_t{0}; k < n; ++k) {
        auto const kept = attention_factor(p.drop, p.samples[0], q, k) != 0;
        differences += (static_cast<float>(context[q * d + k]) != 0) == kept ? 0 : 1;
      }
    }
    CHECK(differences == 0);
  }
}

TEST_CASE_TEMPLATE("attention touches no row but those of the sequences", Value, float, bf16) {
  for (auto const& lengths : {std::vector<std::int32_t>{0, 5, 0, 1, 0}, {0, 0}, {}}) {
    auto const p      = problem{lengths, 2, drop};
    auto const device = on_device<Value>{p, 3, 2};
    attention::forward(nullptr, device.forward());
    attention::backward(nullptr, device.backward());
    require(cudaDeviceSynchronize());
    auto const x    = device.read();
    auto const rows = p.rows();
    CHECK(poisoned(std::span{x.context}.subspan(rows * 2 * d)));
    CHECK(poisoned(std::span{x.dqkv}.subspan(rows * 6 * d)));
    for (auto head = std::size_t{0}; head < 2; ++head) {
      CHECK(poisoned(std::span{x.lse}.subspan(head * (rows + 3) + rows, 3)));
    }
    for (auto const value : std::span{x.dqkv}.first(rows * 6 * d)) {
      CHECK_UNARY(static_cast<float>(value) == static_cast<float>(value));
    }
  }
}

TEST_CASE_TEMPLATE("attention of one row copies its value and has no gradient of scores",
                   Value,
                   float,
                   bf16) {
  auto const p = problem{{1, 1}, 2, dropout{}};
  auto const x = run<Value>(p);
  for (auto row = std::size_t{0}; row < 2; ++row) {
    for (auto i = std::size_t{0}; i < 2 * d; ++i) {
      CHECK(static_cast<float>(x.context[row * 2 * d + i]) == p.qkv[p.place(row, 2, 0) + i]);
      CHECK(static_cast<float>(x.dqkv[p.place(row, 2, 0) + i]) == p.dcontext[row * 2 * d + i]);
      // dp - delta are the same 64 products, summed in different orders: within 64 eps of ± 1.75²
      CHECK(std::abs(static_cast<float>(x.dqkv[p.place(row, 0, 0) + i])) < 2e-4);
      CHECK(std::abs(static_cast<float>(x.dqkv[p.place(row, 1, 0) + i])) < 2e-4);
    }
  }
}

TEST_CASE_TEMPLATE("attention reaches elements beyond 2^31", Value, float, bf16) {
  // Rows from 2^31 / 64 on, in buffers that begin there: what lies before is not to be touched.
  constexpr auto first = std::size_t{1} << 25U;
  auto const p         = problem{{65}, 1, drop};
  auto const expected  = run<Value>(p);
  auto x               = on_device<Value>{p};
  x.starts.write({static_cast<std::int32_t>(first), static_cast<std::int32_t>(first) + 65});
  auto const rows    = first + 65;
  auto const context = x.context.as_part(first * d, rows * d);
  auto const qkv     = x.qkv.as_part(first * 3 * d, rows * 3 * d);
  auto const lse     = x.lse.as_part(first, rows);
  attention::forward<128, Value>(nullptr, {x.batch(), drop, qkv, context, lse});
  attention::backward<Value>(nullptr,
                             {x.batch(),
                              drop,
                              qkv,
                              context,
                              lse,
                              x.dcontext.as_part(first * d, rows * d),
                              x.dqkv.as_part(first * 3 * d, rows * 3 * d),
                              x.scratch.as_part(first, rows)});
  require(cudaDeviceSynchronize());
  CHECK(same_bits(x.read(), expected));
}

TEST_CASE("attention can be captured, and replayed with other lengths and inputs") {
  auto const before = problem{{130, 65, 60}, 2, drop};
  auto const after  = problem{{1, 254, 0}, 2, drop, 500};
  auto device       = on_device<bf16>{before, 0, 3};
  cudaStream_t stream{};
  cudaGraph_t graph{};
  cudaGraphExec_t executable{};
  require(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  require(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  attention::forward(stream, device.forward());
  attention::backward(stream, device.backward());
  require(cudaStreamEndCapture(stream, &graph));
  require(cudaGraphInstantiate(&executable, graph, 0));
  for (auto const* p : {&before, &after}) {
    auto list = std::vector<attention::tile>(device.tiles.span().size());
    attention::fill_tiles(p->starts, list);
    device.tiles.write(list);
    device.starts.write(p->starts);
    device.samples.write(p->samples);
    device.qkv.write(converted<bf16>(p->qkv));
    device.dcontext.write(converted<bf16>(p->dcontext));
    require(cudaDeviceSynchronize());  // writes are of another stream
    require(cudaGraphLaunch(executable, stream));
    require(cudaStreamSynchronize(stream));
    CHECK(same_bits(device.read(), run<bf16>(*p)));
  }
  require(cudaGraphExecDestroy(executable));
  require(cudaGraphDestroy(graph));
  require(cudaStreamDestroy(stream));
}

TEST_CASE("attention refuses arguments that do not fit together") {
  auto const p      = problem{{5}, 2, drop};
  auto const device = on_device<float>{p};
  auto const fails  = [&](auto const& change) {
    auto x = device.forward();
    change(x);
    CHECK_THROWS_AS(attention::forward(nullptr, x), std::invalid_argument);
  };
  fails([](auto& x) { x.batch.heads = 0; });
  fails([](auto& x) { x.batch.heads = 3; });
  fails([](auto& x) { x.batch.samples = {}; });
  fails([](auto& x) { x.drop.threshold = 0; });
  fails([](auto& x) { x.lse = x.lse.first(9); });
  fails([](auto& x) { x.context = x.context.first(64); });
  fails([](auto& x) { x.qkv = {x.qkv.data() + 1, x.qkv.size()}; });
  auto y    = device.backward();
  y.scratch = y.scratch.first(1);
  CHECK_THROWS_AS(attention::backward(nullptr, y), std::invalid_argument);
  y      = device.backward();
  y.dqkv = {};
  CHECK_THROWS_AS(attention::backward(nullptr, y), std::invalid_argument);
}

TEST_CASE("attention reports a launch that fails") {
  auto const p      = problem{{5}, 2, drop};
  auto const device = on_device<float>{p};
  cudaStream_t stream{};
  cudaGraph_t graph{};
  require(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  require(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  CHECK(cudaStreamSynchronize(stream) != cudaSuccess);  // forbidden: the capture is invalid now
  CHECK_THROWS_AS(attention::forward(stream, device.forward()), attention::cuda_error);
  CHECK(cudaGetLastError() == cudaSuccess);
  CHECK(cudaStreamEndCapture(stream, &graph) != cudaSuccess);
  static_cast<void>(cudaGetLastError());
  require(cudaStreamDestroy(stream));
}

}  // namespace

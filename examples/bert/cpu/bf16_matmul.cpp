// SPDX-License-Identifier: Apache-2.0
#include "bf16_matmul.hpp"

#include <oneapi/dnnl/dnnl.hpp>

#include <algorithm>  // for copy, fill
#include <map>        // for map
#include <tuple>      // for tuple

namespace bert::cpu {

namespace {

using gradlane::bf16;

enum class kind { transposed_weight, plain_weight, sum_rows, sum_rows_accumulated };

struct product {
  dnnl::matmul primitive;
  dnnl::memory a;  // these point to new data in each call
  dnnl::memory b;
  dnnl::memory c;
};

// The rows between those in use and the rounded count must hold no NaN, and zeros where summed.
bf16* clear_spare_rows(matrix_view<bf16 const> x) {
  auto* data       = const_cast<bf16*>(x.data);  // spare rows are ours by the class's contract
  auto const first = x.rows * x.cols;
  auto const last  = bf16_matmul::capacity(x.rows) * x.cols;
  std::fill(data + first, data + last, bf16{0.0F});
  return data;
}

}  // namespace

struct bf16_matmul::implementation {
  execution on;
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  std::map<std::tuple<kind, std::size_t, std::size_t, std::size_t>, product> products;
  aligned_buffer<bf16> dense;

  // C (m, n) = A (m, k) B (k, n)
  void run(kind what, std::size_t m, std::size_t n, std::size_t k, void* a, void* b, void* c) {
    auto const key = std::tuple{what, m, n, k};
    auto found     = products.find(key);
    if (found == products.end()) { found = products.emplace(key, make(what, m, n, k)).first; }
    auto& p = found->second;
    p.a.set_data_handle(a);
    p.b.set_data_handle(b);
    p.c.set_data_handle(c);
    p.primitive.execute(stream,
                        {{DNNL_ARG_SRC, p.a}, {DNNL_ARG_WEIGHTS, p.b}, {DNNL_ARG_DST, p.c}});
    stream.wait();
  }

  product make(kind what, std::size_t m, std::size_t n, std::size_t k) {
    using dnnl::memory;
    auto const dims = [](std::size_t rows, std::size_t cols) {
      return memory::dims{static_cast<memory::dim>(rows), static_cast<memory::dim>(cols)};
    };
    auto const sums = what == kind::sum_rows || what == kind::sum_rows_accumulated;
    auto const a    = memory::desc{dims(m, k),
                                memory::data_type::bf16,
                                sums ? memory::format_tag::ba : memory::format_tag::ab};
    auto const b    = memory::desc{
        dims(k, n),
        memory::data_type::bf16,
        what == kind::transposed_weight ? memory::format_tag::ba : memory::format_tag::ab};
    auto const c    = memory::desc{dims(m, n),
                                sums ? memory::data_type::f32 : memory::data_type::bf16,
                                memory::format_tag::ab};
    auto attributes = dnnl::primitive_attr{};
    if (what == kind::sum_rows_accumulated) {
      auto after = dnnl::post_ops{};
      after.append_sum(1.0F);
      attributes.set_post_ops(after);
    }
    auto const description = dnnl::matmul::primitive_desc{{a, b, c}, attributes, engine};
    return {dnnl::matmul{description},
            {a, engine, nullptr},
            {b, engine, nullptr},
            {c, engine, nullptr}};
  }

  matrix_view<bf16 const> make_dense(matrix_view<bf16 const> x) {
    if (x.stride == x.cols) { return x; }
    dense.grow(capacity(x.rows) * x.cols);
    for_parts(on, x.rows, [&](std::size_t first, std::size_t last, std::size_t) {
      for (auto i = first; i < last; ++i) {
        std::copy(x.row(i), x.row(i) + x.cols, dense.data() + i * x.cols);
      }
    });
    return {dense.data(), x.rows, x.cols};
  }
};

bf16_matmul::bf16_matmul(execution const& on) : self_{std::make_unique<implementation>()} {
  self_->on = on;
}
bf16_matmul::~bf16_matmul() = default;

bool bf16_matmul::has_amx() {
  auto const bits = [](auto isa) { return static_cast<unsigned>(isa); };  // a set of features
  auto const amx  = bits(dnnl::cpu_isa::avx512_core_amx);
  return (bits(dnnl::get_effective_cpu_isa()) & amx) == amx;
}

void bf16_matmul::multiply_transposed(matrix_view<bf16 const> x,
                                      matrix_view<bf16 const> w,
                                      matrix_view<bf16> y) {
  self_->run(kind::transposed_weight,
             capacity(x.rows),
             w.rows,
             w.cols,
             clear_spare_rows(x),
             const_cast<bf16*>(w.data),
             y.data);
}

void bf16_matmul::multiply(matrix_view<bf16 const> x,
                           matrix_view<bf16 const> w,
                           matrix_view<bf16> y) {
  self_->run(kind::plain_weight,
             capacity(x.rows),
             w.cols,
             w.rows,
             clear_spare_rows(x),
             const_cast<bf16*>(w.data),
             y.data);
}

void bf16_matmul::multiply_sum_rows(matrix_view<bf16 const> y,
                                    matrix_view<bf16 const> x,
                                    matrix_view<float> w,
                                    bool accumulate) {
  self_->run(accumulate ? kind::sum_rows_accumulated : kind::sum_rows,
             y.cols,
             x.cols,
             capacity(y.rows),
             clear_spare_rows(self_->make_dense(y)),
             clear_spare_rows(x),
             w.data);
}

}  // namespace bert::cpu

// SPDX-License-Identifier: Apache-2.0
// The CUDA kernels against the CPU program's attention: two implementations, one result.
#include "support.hpp"  // for noise, relative_error

#include <gradlane/cuda/error.hpp>   // for check
#include <gradlane/cuda/memory.hpp>  // for buffer
#include <gradlane/types.hpp>        // for bf16

#include <doctest/doctest.h>

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <bert/batch_index.hpp>    // for batch_index
#include <bert/cpu/attention.hpp>  // for attention_operations
#include <bert/matrix_view.hpp>    // for matrix_view

#include <bert/attention/attention.cuh>
#include <cstddef>  // for size_t
#include <cstdint>  // for int32_t
#include <span>     // for span
#include <vector>   // for vector

namespace {

namespace attention = bert::attention;
using gradlane::cuda::check;

/// Elements on the device, as type T; whoever copies may call them by another name.
template <class T>
class on_device {
 public:
  explicit on_device(std::size_t size) : bytes_{0, size * sizeof(T)} {}
  template <class U>
  explicit on_device(std::vector<U> const& values) : on_device{values.size()} {
    static_assert(sizeof(T) == sizeof(U));
    check(cudaMemcpy(bytes_.data(), values.data(), bytes_.size(), cudaMemcpyHostToDevice));
  }
  [[nodiscard]] std::span<T> span() const {
    return {reinterpret_cast<T*>(bytes_.data()), bytes_.size() / sizeof(T)};
  }
  template <class U>
  [[nodiscard]] std::vector<U> read() const {
    static_assert(sizeof(T) == sizeof(U));
    auto values = std::vector<U>(bytes_.size() / sizeof(U));
    check(cudaMemcpy(values.data(), bytes_.data(), bytes_.size(), cudaMemcpyDeviceToHost));
    return values;
  }

 private:
  gradlane::cuda::buffer bytes_;
};

template <class Cpu, class Cuda>
void compare(bert::dropout const& drop, double tolerance) {
  constexpr auto heads = std::size_t{3};
  constexpr auto h     = heads * 64;
  auto b               = bert::batch{};
  b.starts             = {0, 1, 64, 127, 257, 322};
  b.samples            = {5, 0xFFFFFFFFU, 7, 0, 123456};
  auto const t         = static_cast<std::size_t>(b.starts.back());
  b.tokens.assign(t, 0);
  auto rows = bert::batch_index{};
  rows.assign(b);
  auto qkv      = bert::test::noise<Cpu>(t * 3 * h, 1);
  auto dcontext = bert::test::noise<Cpu>(t * h, 2);
  for (auto& x : qkv) { x = static_cast<Cpu>(3 * static_cast<float>(x)); }

  auto context = std::vector<Cpu>(t * h);
  auto dqkv    = std::vector<Cpu>(t * 3 * h);
  auto lse     = std::vector<float>(heads * t);
  auto cpu     = bert::cpu::attention_operations<Cpu>{bert::cpu::execution{}};
  cpu.attention(rows, {qkv.data(), t, 3 * h}, heads, drop, {context.data(), t, h}, lse);
  cpu.attention_gradient(rows,
                         {qkv.data(), t, 3 * h},
                         heads,
                         drop,
                         {context.data(), t, h},
                         lse,
                         {dcontext.data(), t, h},
                         {dqkv.data(), t, 3 * h});

  auto tiles = std::vector<attention::tile>(attention::count_tiles(b.starts));
  attention::fill_tiles(b.starts, tiles);
  auto const starts     = on_device<std::int32_t>{b.starts};
  auto const samples    = on_device<std::uint32_t>{b.samples};
  auto const list       = on_device<attention::tile>{tiles};
  auto const qkv_there  = on_device<Cuda>{qkv};
  auto const there      = on_device<Cuda>{t * h};
  auto const lse_there  = on_device<float>{heads * t};
  auto const dthere     = on_device<Cuda>{dcontext};
  auto const dqkv_there = on_device<Cuda>{t * 3 * h};
  auto const scratch    = on_device<attention::row_terms>{heads * t};
  auto const of = attention::ragged_batch{starts.span(), samples.span(), list.span(), heads};
  attention::forward<128, Cuda>(nullptr,
                                {of, drop, qkv_there.span(), there.span(), lse_there.span()});
  attention::backward<Cuda>(nullptr,
                            {of,
                             drop,
                             qkv_there.span(),
                             there.span(),
                             lse_there.span(),
                             dthere.span(),
                             dqkv_there.span(),
                             scratch.span()});
  auto const error = [](auto const& a, auto const& other) {
    auto const b_values = std::vector<float>(other.begin(), other.end());
    return bert::test::relative_error(std::span{a}, std::span{b_values});
  };
  CHECK(error(there.template read<Cpu>(), context) < tolerance);
  CHECK(error(lse_there.template read<float>(), lse) < 1e-6);
  CHECK(error(dqkv_there.template read<Cpu>(), dqkv) < tolerance);
}

TEST_CASE("attention on CUDA in fp32 is that of the CPU, dropout included") {
  compare<float, float>(bert::dropout{}, 3e-6);
  compare<float, float>(bert::dropout{3, 4, 5, 230, 256.0F / 230.0F}, 3e-6);
}

TEST_CASE("attention on CUDA in bf16 is that of the CPU, up to rounding") {
  compare<gradlane::bf16, __nv_bfloat16>(bert::dropout{}, 4e-3);
  compare<gradlane::bf16, __nv_bfloat16>(bert::dropout{3, 4, 5, 230, 256.0F / 230.0F}, 4e-3);
}

}  // namespace

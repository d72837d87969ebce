// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "block_work.cuh"           // for kernel_arguments, row_terms
#include "cuda_core_kernels.cuh"    // for cuda_core
#include "dropout.hpp"              // for dropout
#include "tensor_core_kernels.cuh"  // for tensor_core
#include "work_list.hpp"            // for tile, tile_rows

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <concepts>   // for same_as
#include <cstddef>    // for size_t
#include <cstdint>    // for int32_t, uint32_t, uintptr_t
#include <limits>     // for numeric_limits
#include <span>       // for span
#include <stdexcept>  // for invalid_argument, runtime_error
#include <string>     // for string, to_string

/// Attention of sequences of any lengths that lie back to back, without padding, for head size 64:
///
///     context = dropout(softmax(q kᵀ / 8)) v      for each head of each sequence
///
/// in bf16 or fp16 on tensor cores (sm_80 and newer; sums, softmax and lse in fp32) or in fp32 on
/// any GPU. What fp16 cannot hold becomes Inf, and NaN further on; nothing is clamped. Two calls,
/// forward and backward, which only enqueue kernels: they allocate nothing, wait for nothing, and
/// can be captured into a graph. All spans are device memory.
///
/// The same inputs give the same bits in every run, and the results of a sequence do not depend on
/// what else is in the batch: sums have a fixed order, there are no atomics, and dropout's mask
/// depends on the sample's global id alone. The price is that backward is two kernels, 7 products
/// of matrices instead of the least possible 5.
///
/// What bounds the speed, for n rows: forward has 4 · 64 n² FLOPs a head and backward 14 · 64 n²
/// (10 are counted in TFLOP/s as usual), all in mma.sync m16n8k16. Fed from shared memory at 128
/// bytes a clock and SM, a warp does 16 FLOPs a byte for 16 rows (backward; forward with 64-row
/// blocks) and 32 for 32 rows (forward): 2048 and 4096 FLOPs a clock and SM, against the tensor
/// cores' 2048 on A100 and 4096 on H100 (of which mma.sync reaches about 60 %). Exponentials: one a
/// score, 16 a clock and SM, bound forward at 4096. Memory is read about n / 128 times from L2.
namespace bert::attention {

/// A CUDA call failed: most likely the kernels are not compiled for this GPU.
class cuda_error : public std::runtime_error {
 public:
  cuda_error(std::string const& where, cudaError_t code)
      : std::runtime_error{where + ": " + cudaGetErrorName(code) + ", " + cudaGetErrorString(code)},
        code_{code} {}

  [[nodiscard]] cudaError_t code() const noexcept { return code_; }

 private:
  cudaError_t code_;
};

using detail::head_size;
using detail::row_terms;

/// float, __nv_bfloat16 or __half.
template <class T>
concept attention_value =
    std::same_as<T, float> || std::same_as<T, __nv_bfloat16> || std::same_as<T, __half>;

/// B sequences, T rows in all, and the list of work that fill_tiles made of them. Rows that belong
/// to no sequence are neither read nor written.
struct ragged_batch {
  std::span<std::int32_t const> starts;    // (B + 1) ascending, within 0 … T
  std::span<std::uint32_t const> samples;  // (B) global ids, which key dropout; () without
  std::span<tile const> tiles;
  std::size_t heads = 0;  // H
};

template <attention_value Value>
struct forward_arguments {
  ragged_batch batch;
  dropout drop;                // of head 0; head h has site + h
  std::span<Value const> qkv;  // (T, 3, H, 64)
  std::span<Value> context;    // (T, H, 64), out
  std::span<float> lse;        // (H, T), out: log of the sum of exponentials of each row of scores
};

/// The forward's arguments and results again, and the gradient of its result.
template <attention_value Value>
struct backward_arguments {
  ragged_batch batch;
  dropout drop;
  std::span<Value const> qkv;       // (T, 3, H, 64)
  std::span<Value const> context;   // (T, H, 64)
  std::span<float const> lse;       // (H, T)
  std::span<Value const> dcontext;  // (T, H, 64)
  std::span<Value> dqkv;            // (T, 3, H, 64), out; no alias of qkv
  std::span<row_terms> scratch;     // (H, T), of no interest afterwards
};

namespace detail {

[[nodiscard]] inline std::invalid_argument wrong_size(char const* what,
                                                      std::size_t has,
                                                      std::size_t wants) {
  return std::invalid_argument{std::string{"attention: "} + what + " has " + std::to_string(has) +
                               " elements, must have " + std::to_string(wants)};
}

template <class T>
void expect_size(char const* what, std::span<T> x, std::size_t size) {
  if (x.size() != size) { throw wrong_size(what, x.size(), size); }
}

/// Rows are read and written 16 bytes at a time.
template <class T>
void expect_aligned(char const* what, std::span<T> x) {
  if (reinterpret_cast<std::uintptr_t>(x.data()) % 16 != 0) {
    throw std::invalid_argument{std::string{"attention: "} + what +
                                " must begin at a multiple of 16 bytes"};
  }
}

/// T, after checking what forward and backward have in common.
template <class Value>
std::size_t checked_rows(ragged_batch const& batch,
                         dropout const& drop,
                         std::span<Value const> qkv) {
  if (batch.heads == 0) { throw std::invalid_argument{"attention: needs at least one head"}; }
  auto const row_size = 3 * batch.heads * head_size;
  if (qkv.size() % row_size != 0) {
    throw wrong_size("qkv", qkv.size(), (qkv.size() + row_size - 1) / row_size * row_size);
  }
  auto const sequences = batch.starts.empty() ? 0 : batch.starts.size() - 1;
  if (drop.enabled() || !batch.samples.empty()) {
    expect_size("samples", batch.samples, sequences);
  }
  if (drop.threshold == 0 || drop.threshold > 256) {
    throw std::invalid_argument{"attention: dropout must keep 1 to 256 of 256"};
  }
  expect_aligned("qkv", qkv);
  auto const rows      = qkv.size() / row_size;
  constexpr auto limit = static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max());
  if (rows > limit || row_size > limit ||
      batch.tiles.size() > limit / batch.heads / (tile_rows / cuda_core::block_rows)) {
    throw std::invalid_argument{"attention: more than 2^31 rows, columns or blocks"};
  }
  return rows;
}

template <class Value>
kernel_arguments<Value> common_arguments(ragged_batch const& batch,
                                         dropout const& drop,
                                         std::span<Value const> qkv,
                                         std::size_t rows) {
  auto a    = kernel_arguments<Value>{};
  a.starts  = batch.starts.data();
  a.samples = batch.samples.empty() ? nullptr : batch.samples.data();
  a.tiles   = batch.tiles.data();
  a.heads   = static_cast<int>(batch.heads);
  a.rows    = static_cast<int>(rows);
  a.drop    = drop;
  a.qkv     = qkv.data();
  return a;
}

/// Enqueues one block for every head and every `block_rows` rows of every tile.
template <class Value>
void launch(char const* name,
            void (*kernel)(kernel_arguments<Value>),
            cudaStream_t stream,
            ragged_batch const& batch,
            int block_rows,
            int threads,
            kernel_arguments<Value> const& arguments) {
  auto const parts  = static_cast<std::size_t>(tile_rows / block_rows);
  auto const blocks = batch.tiles.size() * parts * batch.heads;
  if (blocks == 0) { return; }
  auto config     = cudaLaunchConfig_t{};
  config.gridDim  = dim3{static_cast<unsigned>(blocks)};
  config.blockDim = dim3{static_cast<unsigned>(threads)};
  config.stream   = stream;
  auto const code = cudaLaunchKernelEx(&config, kernel, arguments);
  if (code != cudaSuccess) {
    static_cast<void>(cudaGetLastError());  // it is reported here, nobody else shall find it
    throw cuda_error{std::string{"attention: "} + name, code};
  }
}

}  // namespace detail

/// Enqueues context and lse.
/// @tparam BlockRows  queries of a block on tensor cores, 128 or 64: a matter of speed, the bits
/// are the same. 64 may pay where most sequences are short.
/// @throws std::invalid_argument if sizes do not fit together, cuda_error if the launch fails.
template <int BlockRows = 128, attention_value Value>
void forward(cudaStream_t stream, forward_arguments<Value> const& x) {
  static_assert(BlockRows == 128 || BlockRows == 64);
  auto const rows = detail::checked_rows(x.batch, x.drop, x.qkv);
  detail::expect_size("context", x.context, rows * x.batch.heads * head_size);
  detail::expect_size("lse", x.lse, rows * x.batch.heads);
  detail::expect_aligned("context", x.context);

  auto a    = detail::common_arguments(x.batch, x.drop, x.qkv, rows);
  a.out     = x.context.data();
  a.lse_out = x.lse.data();
  if constexpr (std::same_as<Value, float>) {
    namespace k = cuda_core;
    detail::launch(
        "forward", k::forward_kernel<Value>, stream, x.batch, k::block_rows, k::threads, a);
  } else {
    namespace k       = tensor_core;
    auto const kernel = x.drop.enabled() ? k::forward_kernel<Value, BlockRows, true>
                                         : k::forward_kernel<Value, BlockRows, false>;
    detail::launch("forward", kernel, stream, x.batch, BlockRows, k::threads, a);
  }
}

/// Enqueues dqkv.
/// @throws std::invalid_argument if sizes do not fit together, cuda_error if a launch fails.
template <attention_value Value>
void backward(cudaStream_t stream, backward_arguments<Value> const& x) {
  auto const rows = detail::checked_rows(x.batch, x.drop, x.qkv);
  detail::expect_size("context", x.context, rows * x.batch.heads * head_size);
  detail::expect_size("lse", x.lse, rows * x.batch.heads);
  detail::expect_size("dcontext", x.dcontext, rows * x.batch.heads * head_size);
  detail::expect_size("dqkv", x.dqkv, x.qkv.size());
  detail::expect_size("scratch", x.scratch, rows * x.batch.heads);
  detail::expect_aligned("context", x.context);
  detail::expect_aligned("dcontext", x.dcontext);
  detail::expect_aligned("dqkv", x.dqkv);
  detail::expect_aligned("scratch", x.scratch);

  auto a     = detail::common_arguments(x.batch, x.drop, x.qkv, rows);
  a.context  = x.context.data();
  a.dcontext = x.dcontext.data();
  a.lse      = x.lse.data();
  a.terms    = x.scratch.data();
  a.out      = x.dqkv.data();
  if constexpr (std::same_as<Value, float>) {
    namespace k = cuda_core;
    detail::launch("dq", k::dq_kernel<Value>, stream, x.batch, k::block_rows, k::threads, a);
    detail::launch("dkv", k::dkv_kernel<Value>, stream, x.batch, k::block_rows, k::threads, a);
  } else {
    namespace k    = tensor_core;
    auto const dq  = x.drop.enabled() ? k::dq_kernel<Value, true> : k::dq_kernel<Value, false>;
    auto const dkv = x.drop.enabled() ? k::dkv_kernel<Value, true> : k::dkv_kernel<Value, false>;
    detail::launch("dq", dq, stream, x.batch, k::backward_rows, k::threads, a);
    detail::launch("dkv", dkv, stream, x.batch, k::backward_rows, k::threads, a);
  }
}

}  // namespace bert::attention

// SPDX-License-Identifier: Apache-2.0
#include "matmul.hpp"

#include "memory.hpp"  // for device_buffer
#include "tuning.hpp"  // for matmul_workspace

#include <gradlane/detail/unique_handle.hpp>  // for unique_handle
#include <gradlane/error.hpp>                 // for error, expects
#include <gradlane/types.hpp>                 // for bf16, fp16

#include <cublasLt.h>

#include <algorithm>    // for min
#include <array>        // for array
#include <cstddef>      // for byte, size_t
#include <cstdint>      // for uint32_t, uint64_t, uintptr_t
#include <map>          // for map
#include <string>       // for string
#include <type_traits>  // for remove_const_t

namespace bert::cuda {

namespace {

void check(cublasStatus_t status, char const* what) {
  if (status != CUBLAS_STATUS_SUCCESS) {
    throw gradlane::error{std::string{what}.append(": ").append(cublasLtGetStatusString(status))};
  }
}

template <class Handle, cublasStatus_t (*Destroy)(Handle)>
struct lt_traits {
  using handle_type = Handle;
  [[nodiscard]] static handle_type empty() noexcept { return nullptr; }
  static void destroy(handle_type handle) noexcept { static_cast<void>(Destroy(handle)); }
};
using lt_handle = gradlane::detail::unique_handle<lt_traits<cublasLtHandle_t, cublasLtDestroy>>;
using lt_operation =
    gradlane::detail::unique_handle<lt_traits<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>>;
using lt_layout =
    gradlane::detail::unique_handle<lt_traits<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>>;
using lt_preference = gradlane::detail::unique_handle<
    lt_traits<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>>;

template <class T>
constexpr cudaDataType type_of = CUDA_R_32F;
template <>
constexpr cudaDataType type_of<gradlane::bf16> = CUDA_R_16BF;
template <>
constexpr cudaDataType type_of<gradlane::fp16> = CUDA_R_16F;

/// In bytes, 256 at most; 0 for null.
[[nodiscard]] std::uint32_t alignment_of(void const* data) {
  auto const address = reinterpret_cast<std::uintptr_t>(data);
  return static_cast<std::uint32_t>(std::min<std::uintptr_t>(address & (~address + 1), 256));
}

/// A matrix as cuBLASLt sees ours: by columns, so that our (rows, cols) is its (cols, rows).
struct operand {
  void const* data;
  cudaDataType type;
  std::uint64_t rows;
  std::uint64_t cols;
  std::int64_t stride;
  bool transposed;

  template <class T>
  operand(matrix_view<T> m, bool transpose)
      : data{m.data},
        type{type_of<std::remove_const_t<T>>},
        rows{m.cols},
        cols{m.rows},
        stride{static_cast<std::int64_t>(m.stride)},
        transposed{transpose} {}

  [[nodiscard]] std::uint32_t alignment() const { return alignment_of(data); }
  [[nodiscard]] lt_layout layout() const {
    auto handle = cublasLtMatrixLayout_t{};
    check(cublasLtMatrixLayoutCreate(&handle, type, rows, cols, stride),
          "cublasLtMatrixLayoutCreate");
    return lt_layout{handle};
  }
};

template <class T>
void set(cublasLtMatmulDesc_t operation, cublasLtMatmulDescAttributes_t attribute, T value) {
  check(cublasLtMatmulDescSetAttribute(operation, attribute, &value, sizeof value),
        "cublasLtMatmulDescSetAttribute");
}

template <class T>
void set(cublasLtMatmulPreference_t preference,
         cublasLtMatmulPreferenceAttributes_t attribute,
         T value) {
  check(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof value),
        "cublasLtMatmulPreferenceSetAttribute");
}

/// All that cuBLASLt's choice of a kernel may depend on.
using key = std::array<std::uint64_t, 14>;

key key_of(operand const& a, operand const& b, operand const& c, void const* bias) {
  auto result    = key{};
  auto next      = result.begin();
  auto const add = [&](operand const& x) {
    *next++ = x.rows;
    *next++ = x.cols;
    *next++ = static_cast<std::uint64_t>(x.stride);
    *next++ = (x.transposed ? 1024U : 0U) + x.alignment();
  };
  add(a);
  add(b);
  add(c);
  *next++ = static_cast<std::uint64_t>(c.type);
  *next   = alignment_of(bias);
  return result;
}

/// One product, ready to run with other data of the same shape.
struct plan {
  lt_operation operation;
  lt_layout a;
  lt_layout b;
  lt_layout c;
  cublasLtMatmulAlgo_t algorithm;
};

plan make_plan(cublasLtHandle_t handle,
               operand const& a,
               operand const& b,
               operand const& c,
               void const* bias) {
  auto raw = cublasLtMatmulDesc_t{};
  check(cublasLtMatmulDescCreate(&raw, CUBLAS_COMPUTE_32F, CUDA_R_32F), "cublasLtMatmulDescCreate");
  auto result       = plan{lt_operation{raw}, a.layout(), b.layout(), c.layout(), {}};
  auto const letter = [](operand const& x) { return x.transposed ? CUBLAS_OP_T : CUBLAS_OP_N; };
  set(raw, CUBLASLT_MATMUL_DESC_TRANSA, letter(a));
  set(raw, CUBLASLT_MATMUL_DESC_TRANSB, letter(b));
  if (bias != nullptr) {
    set(raw, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    set(raw, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
  }

  auto preferred = cublasLtMatmulPreference_t{};
  check(cublasLtMatmulPreferenceCreate(&preferred), "cublasLtMatmulPreferenceCreate");
  auto const preference = lt_preference{preferred};
  set(preferred, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::uint64_t{tuning::matmul_workspace});
  set(preferred, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, a.alignment());
  set(preferred, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, b.alignment());
  set(preferred, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, c.alignment());
  set(preferred, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, c.alignment());
  // parts of a sum are added up in fp32, too, not in the type of the result
  set(preferred,
      CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
      std::uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
  auto found = cublasLtMatmulHeuristicResult_t{};
  auto count = 0;
  check(cublasLtMatmulAlgoGetHeuristic(handle,
                                       raw,
                                       result.a.get(),
                                       result.b.get(),
                                       result.c.get(),
                                       result.c.get(),
                                       preferred,
                                       1,
                                       &found,
                                       &count),
        "cublasLtMatmulAlgoGetHeuristic");
  gradlane::expects(count == 1, "cuBLASLt has no kernel for a product of the model");
  result.algorithm = found.algo;
  return result;
}

}  // namespace

template <class Value>
struct matmul<Value>::implementation {
  execution on;
  lt_handle handle;
  device_buffer<std::byte> workspace{tuning::matmul_workspace};
  std::map<key, plan> plans;

  explicit implementation(execution const& execution) : on{execution} {
    auto raw = cublasLtHandle_t{};
    check(cublasLtCreate(&raw), "cublasLtCreate");
    handle = lt_handle{raw};
  }

  // c = op(a) op(b) + bias + beta c
  void run(operand const& a, operand const& b, operand const& c, void const* bias, float beta) {
    if (c.rows == 0 || c.cols == 0) { return; }
    auto const wanted = key_of(a, b, c, bias);
    auto at           = plans.find(wanted);
    if (at == plans.end()) {
      at = plans.emplace(wanted, make_plan(handle.get(), a, b, c, bias)).first;
    }
    auto const& p = at->second;
    if (bias != nullptr) { set(p.operation.get(), CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias); }
    auto const one  = 1.0F;
    auto* const out = const_cast<void*>(c.data);  // operand is the same for what is read
    check(cublasLtMatmul(handle.get(),
                         p.operation.get(),
                         &one,
                         a.data,
                         p.a.get(),
                         b.data,
                         p.b.get(),
                         &beta,
                         out,
                         p.c.get(),
                         out,
                         p.c.get(),
                         &p.algorithm,
                         workspace.data(),
                         workspace.size(),
                         on.stream()),
          "cublasLtMatmul");
  }
};

template <class Value>
matmul<Value>::matmul(execution const& on) : self_{std::make_unique<implementation>(on)} {}
template <class Value>
matmul<Value>::~matmul() = default;
template <class Value>
matmul<Value>::matmul(matmul&&) noexcept = default;

// By columns, y is (n, m): w's rows times x's columns.
template <class Value>
void matmul<Value>::multiply_transposed(matrix_view<Value const> x,
                                        matrix_view<Value const> w,
                                        Value const* bias,
                                        matrix_view<Value> y) {
  self_->run({w, true}, {x, false}, {y, false}, bias, 0);
}

template <class Value>
void matmul<Value>::multiply(matrix_view<Value const> x,
                             matrix_view<Value const> w,
                             matrix_view<Value> y) {
  self_->run({w, false}, {x, false}, {y, false}, nullptr, 0);
}

template <class Value>
void matmul<Value>::multiply_sum_rows(matrix_view<Value const> y,
                                      matrix_view<Value const> x,
                                      matrix_view<float> w,
                                      bool accumulate) {
  self_->run({x, false}, {y, true}, {w, false}, nullptr, accumulate ? 1 : 0);
}

template class matmul<float>;
template class matmul<gradlane::bf16>;
template class matmul<gradlane::fp16>;

}  // namespace bert::cuda

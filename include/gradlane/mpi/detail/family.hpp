// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/detail/combine.hpp>        // for accumulator_t, add, greater_of
#include <gradlane/detail/unique_handle.hpp>  // for unique_handle
#include <gradlane/mpi/environment.hpp>       // for health, may_call, thread_support
#include <gradlane/mpi/error.hpp>             // for check
#include <gradlane/types.hpp>                 // for bf16, dtype, element, fp16, reduction

#include <mpi.h>

#include <cstddef>  // for size_t
#include <memory>   // for shared_ptr
#include <thread>   // for thread::id, this_thread

namespace gradlane::mpi::detail {

struct op_traits {
  using handle_type = MPI_Op;
  static handle_type empty() noexcept { return MPI_OP_NULL; }
  static void destroy(handle_type op) noexcept {
    if (may_call()) { MPI_Op_free(&op); }  // else it goes with the process
  }
};
using unique_op = gradlane::detail::unique_handle<op_traits>;

/// MPI_Comm_free is collective by the letter, but says nothing to the peers where nothing is under
/// way: in MPICH it gives back the local object and its context number, which is reused only after
/// all ranks have given it back.
struct communicator_traits {
  using handle_type = MPI_Comm;
  static handle_type empty() noexcept { return MPI_COMM_NULL; }
  static void destroy(handle_type comm) noexcept {
    if (may_call()) { MPI_Comm_free(&comm); }
  }
};
using unique_communicator = gradlane::detail::unique_handle<communicator_traits>;

[[nodiscard]] inline MPI_Datatype mpi_type(dtype type) noexcept {
  switch (type) {
    case dtype::fp32:
      return MPI_FLOAT;
    case dtype::fp64:
      return MPI_DOUBLE;
    case dtype::bf16:
    case dtype::fp16:
      return MPI_UINT16_T;  // as bits; the operations below know what they are
    case dtype::uint8:
      return MPI_UINT8_T;
    case dtype::int32:
      return MPI_INT32_T;
    case dtype::uint32:
      return MPI_UINT32_T;
    case dtype::int64:
      return MPI_INT64_T;
    case dtype::uint64:
      return MPI_UINT64_T;
  }
  return MPI_DATATYPE_NULL;
}

/// inout[i] = in[i] combined with inout[i], in fp32 for 16-bit types and rounded once.
template <element T, reduction Op>
void combine(void* in,
             void* inout,
             int* count,  // NOLINT(readability-non-const-parameter): MPI's signature
             MPI_Datatype* /*type*/) noexcept {
  using accumulator   = gradlane::detail::accumulator_t<T>;
  auto const* const x = static_cast<T const*>(in);
  auto* const y       = static_cast<T*>(inout);
  auto const n        = static_cast<std::size_t>(*count);
  for (std::size_t i = 0; i < n; ++i) {
    auto const a = static_cast<accumulator>(x[i]);
    auto const b = static_cast<accumulator>(y[i]);
    if constexpr (Op == reduction::max) {
      y[i] = static_cast<T>(gradlane::detail::greater_of(b, a));
    } else {
      y[i] = static_cast<T>(gradlane::detail::add(b, a));
    }
  }
}

template <element T, reduction Op>
[[nodiscard]] unique_op make_op() {
  auto made = MPI_OP_NULL;
  check(MPI_Op_create(&combine<T, Op>, 1, &made), "MPI_Op_create");
  return unique_op{made};
}

/// What MPI does not have: sums and maxima of 16-bit types, and maxima that keep NaN.
struct operations {
  unique_op bf16_sum = make_op<bf16, reduction::sum>();
  unique_op fp16_sum = make_op<fp16, reduction::sum>();
  unique_op bf16_max = make_op<bf16, reduction::max>();
  unique_op fp16_max = make_op<fp16, reduction::max>();
  unique_op fp32_max = make_op<float, reduction::max>();
  unique_op fp64_max = make_op<double, reduction::max>();

  /// An average is a sum here, to be divided at the end.
  [[nodiscard]] MPI_Op of(reduction op, dtype type) const noexcept {
    auto const max = op == reduction::max;
    switch (type) {
      case dtype::bf16:
        return max ? bf16_max.get() : bf16_sum.get();
      case dtype::fp16:
        return max ? fp16_max.get() : fp16_sum.get();
      case dtype::fp32:
        return max ? fp32_max.get() : MPI_SUM;
      case dtype::fp64:
        return max ? fp64_max.get() : MPI_SUM;
      default:
        return max ? MPI_MAX : MPI_SUM;
    }
  }
};

/// What a communicator shares with those that are split from it.
struct family {
  std::size_t max_chunk;
  bool abort_world;
  std::shared_ptr<health> reports_to;

  operations reduce{};
  thread_support level{thread_level()};
  std::thread::id owner{std::this_thread::get_id()};  // the thread that may call MPI

  /// Whether the threads of streams may call MPI.
  [[nodiscard]] bool streams_drive() const noexcept { return level == thread_support::multiple; }
  [[nodiscard]] bool is_owner() const noexcept { return std::this_thread::get_id() == owner; }
};

}  // namespace gradlane::mpi::detail

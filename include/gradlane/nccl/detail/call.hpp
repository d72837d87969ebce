// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/buffer_view.hpp>        // for buffer_view, const_buffer_view
#include <gradlane/detail/collective.hpp>  // for operation, sum_of, text_of
#include <gradlane/types.hpp>              // for dtype, reduction, size_of

#include <nccl.h>

#include <cstddef>          // for size_t
#include <source_location>  // for source_location
#include <string>           // for string
#include <vector>           // for vector

namespace gradlane::nccl::detail {

using gradlane::detail::operation;

[[nodiscard]] constexpr ncclDataType_t nccl_type(dtype type) noexcept {
  switch (type) {
    case dtype::fp32:
      return ncclFloat32;
    case dtype::fp64:
      return ncclFloat64;
    case dtype::bf16:
      return ncclBfloat16;
    case dtype::fp16:
      return ncclFloat16;
    case dtype::uint8:
      return ncclUint8;
    case dtype::int32:
      return ncclInt32;
    case dtype::uint32:
      return ncclUint32;
    case dtype::int64:
      return ncclInt64;
    case dtype::uint64:
      return ncclUint64;
  }
  return ncclNumTypes;
}

[[nodiscard]] constexpr ncclRedOp_t nccl_op(reduction op) noexcept {
  switch (op) {
    case reduction::sum:
      return ncclSum;
    case reduction::average:
      return ncclAvg;
    case reduction::max:
      return ncclMax;
  }
  return ncclNumOps;
}

/// One call of a communicator, on its way to NCCL.
struct call {
  operation what{};
  reduction op{};
  const_buffer_view in{};
  buffer_view out{};
  float const* coefficient{};          // in device memory
  int peer{-1};                        // root or other rank
  std::vector<std::size_t> send{};     // elements to each rank; capacity is kept for later calls
  std::vector<std::size_t> receive{};  // elements from each rank
  std::source_location at{};

  [[nodiscard]] std::string describe() const {
    return gradlane::detail::text_of(what, op, in, out, peer);
  }

  /// A group of one rank copies `in` to `out`, and NCCL has nothing to do.
  [[nodiscard]] bool is_copy(int size) const noexcept {
    return size == 1 && what != operation::all_reduce_scaled &&
           !gradlane::detail::is_point_to_point(what);
  }

  [[nodiscard]] bool is_empty() const noexcept { return in.empty() && out.empty(); }
};

/// Hands calls to NCCL, between ncclGroupStart and ncclGroupEnd.
class enqueuer {
 public:
  enqueuer(ncclComm_t comm, int rank, cudaStream_t on) noexcept
      : comm_{comm}, rank_{rank}, stream_{on} {}

  [[nodiscard]] ncclResult_t operator()(call const& c) const {
    auto const type         = nccl_type(c.out.empty() ? c.in.type() : c.out.type());
    auto const* const in    = c.in.data();
    auto* const out         = c.out.data();
    auto const in_elements  = c.in.count();
    auto const out_elements = c.out.count();
    switch (c.what) {
      case operation::all_reduce:
        return ncclAllReduce(in, out, in_elements, type, nccl_op(c.op), comm_, stream_);
      case operation::all_reduce_scaled:
        return all_reduce_scaled(c, type);
      case operation::reduce_scatter:
        return ncclReduceScatter(in, out, out_elements, type, nccl_op(c.op), comm_, stream_);
      case operation::all_gather:
        return ncclAllGather(in, out, in_elements, type, comm_, stream_);
      case operation::all_gather_v:
        return all_gather_v(c, type);
      case operation::broadcast:
        return ncclBroadcast(in, out, out_elements, type, c.peer, comm_, stream_);
      case operation::all_to_all_v:
        return all_to_all_v(c, type);
      case operation::send:
        return ncclSend(in, in_elements, type, c.peer, comm_, stream_);
      case operation::receive:
        return ncclRecv(out, out_elements, type, c.peer, comm_, stream_);
      case operation::split:
        break;
    }
    return ncclInternalError;
  }

 private:
  /// NCCL reads the coefficient when the reduction runs, and the operator until the call returns.
  [[nodiscard]] ncclResult_t all_reduce_scaled(call const& c, ncclDataType_t type) const {
    auto op = ncclRedOp_t{};
    // NOLINTNEXTLINE(cppcoreguidelines-pro-type-const-cast): NCCL's signature; it only reads
    auto* const scalar = const_cast<float*>(c.coefficient);
    auto result        = ncclRedOpCreatePreMulSum(&op, scalar, type, ncclScalarDevice, comm_);
    if (result != ncclSuccess) { return result; }
    result = ncclAllReduce(c.in.data(), c.out.data(), c.in.count(), type, op, comm_, stream_);
    auto const destroyed = ncclRedOpDestroy(op, comm_);
    return result == ncclSuccess ? destroyed : result;
  }

  [[nodiscard]] ncclResult_t all_gather_v(call const& c, ncclDataType_t type) const {
    auto* block = c.out.data();
    auto result = ncclSuccess;
    for (std::size_t r = 0; r < c.receive.size() && result == ncclSuccess; ++r) {
      auto const root = static_cast<int>(r);
      auto const n    = c.receive[r];
      if (n > 0) {
        auto const* const from = root == rank_ ? c.in.data() : block;
        result                 = ncclBroadcast(from, block, n, type, root, comm_, stream_);
      }
      block += n * size_of(c.out.type());
    }
    return result;
  }

  [[nodiscard]] ncclResult_t all_to_all_v(call const& c, ncclDataType_t type) const {
    auto const* from = c.in.data();
    auto* to         = c.out.data();
    auto result      = ncclSuccess;
    for (std::size_t r = 0; r < c.send.size() && result == ncclSuccess; ++r) {
      auto const peer = static_cast<int>(r);
      if (c.send[r] > 0) { result = ncclSend(from, c.send[r], type, peer, comm_, stream_); }
      if (c.receive[r] > 0 && result == ncclSuccess) {
        result = ncclRecv(to, c.receive[r], type, peer, comm_, stream_);
      }
      from += c.send[r] * size_of(c.in.type());
      to += c.receive[r] * size_of(c.out.type());
    }
    return result;
  }

  ncclComm_t comm_;
  int rank_;
  cudaStream_t stream_;
};

}  // namespace gradlane::nccl::detail

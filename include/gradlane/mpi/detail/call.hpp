// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/buffer_view.hpp>        // for buffer_view, const_buffer_view
#include <gradlane/concepts.hpp>           // for timeout, no_deadline
#include <gradlane/detail/collective.hpp>  // for operation, has_reduction, sum_of, text_of
#include <gradlane/detail/combine.hpp>     // for accumulator_t, with_element
#include <gradlane/error.hpp>              // for communication_error
#include <gradlane/mpi/detail/family.hpp>  // for family, mpi_type
#include <gradlane/mpi/error.hpp>          // for check, error
#include <gradlane/types.hpp>              // for reduction, size_of

#include <mpi.h>

#include <algorithm>        // for min
#include <cstddef>          // for size_t, byte
#include <cstdint>          // for uint64_t, uint8_t
#include <cstring>          // for memcpy
#include <source_location>  // for source_location
#include <span>             // for span
#include <string>           // for string, to_string
#include <type_traits>      // for is_floating_point_v, type_identity
#include <utility>          // for exchange, move
#include <vector>           // for vector

namespace gradlane::mpi::detail {

using gradlane::detail::operation;

/// Memory for results that cannot arrive where they belong, kept for later calls.
class scratch_pool {
 public:
  /// At least `bytes`; the last one given back is the first to be used again.
  [[nodiscard]] std::vector<std::byte> take(std::size_t bytes) {
    auto taken = std::vector<std::byte>{};
    if (!spare_.empty()) {
      taken = std::move(spare_.back());
      spare_.pop_back();
    }
    if (taken.size() < bytes) { taken.resize(bytes); }
    return taken;
  }

  void give_back(std::vector<std::byte> used) { spare_.push_back(std::move(used)); }

 private:
  std::vector<std::vector<std::byte>> spare_;
};

/// What was asked for, and how far it is.
struct call_state {
  enum class stage : std::uint8_t { queued, started, done };

  operation what{};
  reduction op{};
  const_buffer_view in{};
  buffer_view out{};
  int peer{-1};                        // root or other rank
  std::vector<std::size_t> send{};     // elements to each rank
  std::vector<std::size_t> receive{};  // elements from each rank
  std::size_t lane{};                  // operations of one lane start in order
  std::uint64_t sequence{};            // in the lane
  timeout deadline{no_deadline};
  std::source_location at{};
  stage now{stage::queued};
  bool reached{false};  // the stream has come to it

  [[nodiscard]] std::string describe() const {
    return gradlane::detail::text_of(what, op, in, out, peer);
  }
};

/// One operation on its way: a small state machine over MPI's non-blocking calls.
///
/// `start` begins all of its requests at once, cut into chunks where counts pass MPI's int, so
/// that operations are begun in the same order on all ranks. `test` looks after them. `finish`
/// does what remains without MPI. Vectors keep their capacity for later calls.
class call : public call_state {
 public:
  /// Empties the call for use by `ranks` ranks.
  void reset(std::size_t ranks) {
    op = reduction::sum;
    send.clear();
    receive.clear();
    requests_.clear();
    expected_.clear();
    completed_ = 0;
    now        = stage::queued;
    reached    = false;
    send.reserve(ranks);
    receive.reserve(ranks);
    counts_.reserve(ranks);
    begins_.reserve(ranks);
    auto const pieces = 2 * ranks + 2;
    requests_.reserve(pieces);
    expected_.reserve(pieces);
  }

  void start(MPI_Comm comm, int rank, int size, family const& shared, scratch_pool& pool) {
    auto const context = context_of{comm, rank, size, shared, pool};
    now                = stage::started;
    switch (what) {
      case operation::all_reduce:
        start_all_reduce(context);
        break;
      case operation::reduce_scatter:
        start_reduce_scatter(context);
        break;
      case operation::all_gather:
        receive.assign(static_cast<std::size_t>(size), in.count());
        start_all_gather(context);
        break;
      case operation::all_gather_v:
        start_all_gather_v(context);
        break;
      case operation::broadcast:
        for_each_chunk(context, out.count(), [&](std::size_t begin, int n) {
          check(MPI_Ibcast(to(begin), n, type(), peer, comm, request()), "MPI_Ibcast", at);
        });
        break;
      case operation::all_to_all_v:
        start_all_to_all_v(context);
        break;
      case operation::send:
        post_send(context, 0, in.count(), peer, message_tag);
        break;
      case operation::receive:
        post_receive(context, 0, out.count(), peer, message_tag);
        break;
      case operation::split:  // all ranks are here: MPI's blocking split will not wait long
        check(MPI_Ibarrier(comm, request()), "MPI_Ibarrier", at);
        break;
      case operation::all_reduce_scaled:
        break;  // not offered
    }
  }

  /// True once all requests are complete. A short message is an error, as a long one is to MPI.
  [[nodiscard]] bool test() {
    for (; completed_ < requests_.size(); ++completed_) {
      auto complete = 0;
      auto status   = MPI_Status{};
      check(MPI_Test(&requests_[completed_], &complete, &status), "MPI_Test", at);
      if (complete == 0) { return false; }
      if (expected_[completed_] >= 0) { check_length(status, expected_[completed_]); }
    }
    now = stage::done;
    return true;
  }

  /// On the stream, after test() was true.
  void finish(int size) {
    if (!scratch_.empty()) { std::memcpy(out.data(), scratch_.data(), out.size_bytes()); }
    if (has_reduction(what) && op == reduction::average && size > 1) { divide(size); }
  }

  /// Gives back what start() took.
  void leave(scratch_pool& pool) {
    if (!scratch_.empty()) { pool.give_back(std::exchange(scratch_, {})); }
  }

  /// The whole operation in a group of one rank: nothing moves but in to out.
  void copy_alone() const noexcept {
    if (what == operation::broadcast || in.empty() || in.data() == out.data()) { return; }
    std::memcpy(out.data(), in.data(), in.size_bytes());
  }

 private:
  static constexpr int message_tag  = 0;
  static constexpr int exchange_tag = 1;

  struct context_of {
    MPI_Comm comm;
    int rank;
    int size;
    family const& shared;
    scratch_pool& pool;

    [[nodiscard]] std::size_t self() const noexcept { return static_cast<std::size_t>(rank); }
    [[nodiscard]] std::size_t ranks() const noexcept { return static_cast<std::size_t>(size); }
  };

  [[nodiscard]] MPI_Datatype type() const noexcept {
    return mpi_type(out.data() == nullptr ? in.type() : out.type());
  }
  [[nodiscard]] std::byte const* from(std::size_t element) const noexcept {
    return in.data() + element * size_of(in.type());
  }
  [[nodiscard]] std::byte* to(std::size_t element) const noexcept {
    return out.data() + element * size_of(out.type());
  }

  /// Room for one more request, of a message that brings `elements` or of anything else.
  [[nodiscard]] MPI_Request* request(int elements = -1) {
    expected_.push_back(elements);
    return &requests_.emplace_back(MPI_REQUEST_NULL);
  }

  template <class F>
  static void for_each_chunk(context_of const& context, std::size_t count, F f) {
    for (std::size_t begin = 0; begin < count; begin += context.shared.max_chunk) {
      f(begin, static_cast<int>(std::min(context.shared.max_chunk, count - begin)));
    }
  }

  void start_all_reduce(context_of const& context) {
    auto const mpi_op = context.shared.reduce.of(op, in.type());
    for_each_chunk(context, in.count(), [&](std::size_t begin, int n) {
      auto const* const source = in.data() == out.data() ? MPI_IN_PLACE : from(begin);
      check(MPI_Iallreduce(source, to(begin), n, type(), mpi_op, context.comm, request()),
            "MPI_Iallreduce",
            at);
    });
  }

  void start_reduce_scatter(context_of const& context) {
    auto const mpi_op   = context.shared.reduce.of(op, in.type());
    auto const count    = out.count();
    auto const in_place = count > 0 && from(context.self() * count) == out.data();
    if (in.count() <= context.shared.max_chunk) {
      if (in.empty()) { return; }
      if (in_place) { scratch_ = context.pool.take(out.size_bytes()); }  // MPI's in place differs
      auto* const target = in_place ? scratch_.data() : out.data();
      check(
          MPI_Ireduce_scatter_block(
              in.data(), target, static_cast<int>(count), type(), mpi_op, context.comm, request()),
          "MPI_Ireduce_scatter_block",
          at);
      return;
    }
    for (int root = 0; root < context.size; ++root) {  // its part to each rank, in chunks
      auto const part = static_cast<std::size_t>(root) * count;
      auto const mine = root == context.rank;
      for_each_chunk(context, count, [&](std::size_t begin, int n) {
        auto const* const source = mine && in_place ? MPI_IN_PLACE : from(part + begin);
        auto* const target       = mine ? to(begin) : nullptr;
        check(MPI_Ireduce(source, target, n, type(), mpi_op, root, context.comm, request()),
              "MPI_Ireduce",
              at);
      });
    }
  }

  void start_all_gather(context_of const& context) {
    if (out.empty()) { return; }
    if (out.count() > context.shared.max_chunk) {
      gather_by_root(context);
      return;
    }
    auto const n             = static_cast<int>(in.count());
    auto const in_place      = to(context.self() * in.count()) == in.data();
    auto const* const source = in_place ? MPI_IN_PLACE : static_cast<void const*>(in.data());
    check(MPI_Iallgather(source, n, type(), out.data(), n, type(), context.comm, request()),
          "MPI_Iallgather",
          at);
  }

  void start_all_gather_v(context_of const& context) {
    if (out.empty()) { return; }
    if (out.count() > context.shared.max_chunk) {
      gather_by_root(context);
      return;
    }
    counts_.clear();
    begins_.clear();
    for (std::size_t r = 0, begin = 0; r < context.ranks(); begin += receive[r], ++r) {
      counts_.push_back(static_cast<int>(receive[r]));
      begins_.push_back(static_cast<int>(begin));
    }
    auto const own           = static_cast<std::size_t>(begins_[context.self()]);
    auto const* const source = to(own) == in.data() ? MPI_IN_PLACE : in.data();
    check(MPI_Iallgatherv(source,
                          static_cast<int>(in.count()),
                          type(),
                          out.data(),
                          counts_.data(),
                          begins_.data(),
                          type(),
                          context.comm,
                          request()),
          "MPI_Iallgatherv",
          at);
  }

  /// Every rank broadcasts its block in chunks: for totals that pass MPI's int.
  void gather_by_root(context_of const& context) {
    for (std::size_t r = 0, block = 0; r < context.ranks(); block += receive[r], ++r) {
      if (r == context.self()) { copy(0, block, in.count()); }
      for_each_chunk(context, receive[r], [&](std::size_t begin, int n) {
        check(
            MPI_Ibcast(to(block + begin), n, type(), static_cast<int>(r), context.comm, request()),
            "MPI_Ibcast",
            at);
      });
    }
  }

  /// Pairwise messages: how a block is cut is known to the two ranks that it concerns.
  void start_all_to_all_v(context_of const& context) {
    for (std::size_t r = 0, block = 0; r < context.ranks(); block += receive[r], ++r) {
      if (r != context.self() && receive[r] > 0) {
        post_receive(context, block, receive[r], static_cast<int>(r), exchange_tag);
      }
    }
    for (std::size_t r = 0, block = 0; r < context.ranks(); block += send[r], ++r) {
      if (r == context.self()) {
        copy(block, gradlane::detail::sum_of(std::span{receive}.first(r)), send[r]);
      } else if (send[r] > 0) {
        post_send(context, block, send[r], static_cast<int>(r), exchange_tag);
      }
    }
  }

  void post_send(
      context_of const& context, std::size_t first, std::size_t count, int rank, int tag) {
    auto const post = [&](std::size_t begin, int n) {
      check(MPI_Isend(from(first + begin), n, type(), rank, tag, context.comm, request()),
            "MPI_Isend",
            at);
    };
    if (count == 0) { post(0, 0); }  // empty messages are messages too
    for_each_chunk(context, count, post);
  }

  void post_receive(
      context_of const& context, std::size_t first, std::size_t count, int rank, int tag) {
    auto const post = [&](std::size_t begin, int n) {
      check(MPI_Irecv(to(first + begin), n, type(), rank, tag, context.comm, request(n)),
            "MPI_Irecv",
            at);
    };
    if (count == 0) { post(0, 0); }  // empty messages are messages too
    for_each_chunk(context, count, post);
  }

  void copy(std::size_t in_begin, std::size_t out_begin, std::size_t count) const noexcept {
    auto const* const source = from(in_begin);
    auto* const target       = to(out_begin);
    if (count > 0 && source != target) { std::memcpy(target, source, count * size_of(in.type())); }
  }

  void divide(int size) {
    gradlane::detail::with_element(out.type(), [&]<class T>(std::type_identity<T>) {
      using accumulator = gradlane::detail::accumulator_t<T>;
      if constexpr (std::is_floating_point_v<accumulator>) {
        auto const ranks = static_cast<accumulator>(size);
        for (auto& x : out.as<T>()) { x = static_cast<T>(static_cast<accumulator>(x) / ranks); }
      }
    });
  }

  void check_length(MPI_Status const& status, int expected) const {
    auto received = 0;
    check(MPI_Get_count(&status, type(), &received), "MPI_Get_count", at);
    if (received != expected) {
      throw communication_error{
          "rank " + std::to_string(status.MPI_SOURCE) + " sent " + std::to_string(received) +
              " elements, " + std::to_string(expected) +
              " were expected; check that counts and options::max_chunk agree",
          at};
    }
  }

  std::vector<MPI_Request> requests_{};
  std::vector<int> expected_{};  // elements that a request brings, or -1
  std::size_t completed_{0};     // requests, in order
  std::vector<int> counts_{};
  std::vector<int> begins_{};
  std::vector<std::byte> scratch_{};
};

}  // namespace gradlane::mpi::detail

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/adasum/buffer.hpp>          // for adasum_buffer, check_buffers, layout_text, ...
#include <gradlane/adasum/combine.hpp>         // for adasum_squares, pair_products
#include <gradlane/adasum/device.hpp>          // for adasum_device
#include <gradlane/adasum/tree.hpp>            // for rank_tree, tree_level
#include <gradlane/buffer_view.hpp>            // for buffer_view, const_buffer_view
#include <gradlane/concepts.hpp>               // for communicator_for, no_deadline, timeout
#include <gradlane/detail/agreement.hpp>       // for sync_agree
#include <gradlane/detail/fnv1a.hpp>           // for fnv1a
#include <gradlane/detail/host_device.hpp>     // for GRADLANE_HOST_DEVICE
#include <gradlane/detail/leave_for_ever.hpp>  // for leave_for_ever
#include <gradlane/element_range.hpp>          // for element_range, intersection
#include <gradlane/error.hpp>                  // for contract_error, expects
#include <gradlane/types.hpp>                  // for dtype, is_floating, name_of, size_of

#include <algorithm>    // for max
#include <chrono>       // for minutes
#include <cstddef>      // for byte, size_t
#include <span>         // for as_writable_bytes, span
#include <string>       // for string, to_string
#include <string_view>  // for string_view
#include <utility>      // for move
#include <vector>       // for vector

namespace gradlane {

namespace detail {

/// The scalars of a buffer's segments as they go over the wire.
struct adasum_scalars {
  pair_products* products;  // (segments)
  double* leaf_squares;     // (segments): Σ ‖g_r‖² over the ranks r that a group stands for
};

/// Before the scalars are added up over the ranks that hold slices of a and b: puts this rank's
/// part of Σ ‖g_r‖² over both groups' leaves in place of what it knew of its own group.
struct share_leaf_squares {
  adasum_scalars scalars;
  std::size_t segments;
  double share;    // of what is known of its own group, as all its holders know it; 0: it is a leaf
  bool a_is_leaf;  // then ‖a‖² has just been computed, slice by slice
  bool b_is_leaf;

  GRADLANE_HOST_DEVICE void operator()() const {
    for (auto t = std::size_t{0}; t < segments; ++t) {
      auto& sum = scalars.leaf_squares[t];
      sum       = share > 0 ? share * sum : 0.0;
      if (a_is_leaf) { sum += scalars.products[t].a; }
      if (b_is_leaf) { sum += scalars.products[t].b; }
    }
  }
};

/// Adds the segments' ‖Adasum‖² / Σ ‖g_r‖² to to[0] and their number to to[1], but for those that
/// are NaN; 1 for each where nothing was joined.
struct sum_orthogonality {
  adasum_scalars scalars{};  // null on one rank
  std::size_t segments;
  double* to;

  GRADLANE_HOST_DEVICE void operator()() const {
    for (auto t = std::size_t{0}; t < segments; ++t) {
      auto const ratio = scalars.products == nullptr
                             ? 1.0
                             : adasum_squares(scalars.products[t]) / scalars.leaf_squares[t];
      if (ratio != ratio) { continue; }
      to[0] += ratio;
      to[1] += 1.0;
    }
  }
};

}  // namespace detail

/// Joins buffers over all ranks by Adasum, segment by segment, in place.
///
/// The result, on every rank with the same bits, is the rank_tree over
///
///     adasum(a, b) = (1 − a·b / (2‖a‖²)) a + (1 − a·b / (2‖b‖²)) b
///
/// for any number of ranks, wherever they run. Each level halves the slice that a rank works on;
/// the levels run backwards gather the result: a rank sends as many bytes as for a sum. Products
/// are summed in fp64, combined in fp64 and rounded to the buffer's dtype once a level: reduce
/// 16-bit gradients in fp32 where that is too coarse. The error is at most 4·log2(W)·eps of the
/// norms of what is joined: of the result's own, but where vectors nearly cancel. Inf or NaN in a
/// segment on one rank makes that segment NaN on all. Elements outside of the segments end up
/// undefined.
///
/// Stream-ordered; calls follow each other also where they are made on different streams, and all
/// ranks make the same calls in the same order. Device and communicator must outlive this object,
/// which waits in its destructor for the work that it has enqueued, and aborts the communicator
/// where that failed, since peers may wait for what was skipped.
///
/// Source: Maleki et al. 2020, arXiv 2006.02924.
template <adasum_device Device, communicator_for<Device> Comm>
class adasum_all_reduce {
 public:
  using stream = typename Device::stream;

  /// Collective; blocks until all ranks have made theirs. Allocates the workspace.
  /// @throws contract_error for a dtype that is not floating and segments that are not as said;
  ///   plan_mismatch_error, on all ranks alike, where they differ in counts, dtypes or segments;
  ///   timeout_error where a rank is missing.
  adasum_all_reduce(Device& device,
                    Comm& comm,
                    std::vector<adasum_buffer> buffers,
                    timeout deadline = std::chrono::minutes{5})
      : adasum_all_reduce{device, comm, nullptr, std::move(buffers), deadline} {}

  /// The same for vectors that are cut into shards: all ranks of `comm` hold the same shard, each
  /// of its own vector, all ranks of `shards` a shard each of one vector.
  ///
  /// Segment t of a buffer is what of segment t lies in this rank's shard: maybe nothing. The
  /// groups are the rows and columns of a grid: rank r of `comm` is rank r of the groups of all
  /// others in `shards`, which must outlive this object as well. Products are summed over the
  /// shards too, in the order of their ranks.
  /// @throws as above; plan_mismatch_error may then come to the ranks of one group alone.
  adasum_all_reduce(Device& device,
                    Comm& comm,
                    Comm& shards,
                    std::vector<adasum_buffer> buffers,
                    timeout deadline = std::chrono::minutes{5})
      : adasum_all_reduce{device, comm, &shards, std::move(buffers), deadline} {}
  adasum_all_reduce(adasum_all_reduce const&)            = delete;
  adasum_all_reduce& operator=(adasum_all_reduce const&) = delete;

  ~adasum_all_reduce() {
    try {
      device_.sync(done_, no_deadline);
    } catch (...) {
      comm_.abort();
      if (shards_ != nullptr) { shards_->abort(); }
      if constexpr (Comm::capabilities.writes_after_failure) {
        detail::leave_for_ever(received_);
        detail::leave_for_ever(scalars_);
      }
    }
  }

  /// Enqueues the reduction of one buffer behind the work already on `s`.
  /// @throws contract_error for an unknown buffer.
  void reduce(stream& s, std::size_t buffer = 0) {
    expects(buffer < buffers_.size(), "adasum_all_reduce: no such buffer");
    if (!is_communicated(buffer)) { return; }
    auto& own = layouts_[buffer];
    device_.wait(s, done_);
    try {
      for (auto& level : own.levels) { join(s, own, level); }
      for (auto level = own.levels.rbegin(); level != own.levels.rend(); ++level) {
        auto const& part = level->part;
        exchange(s, part.partner, slice(own, part.keep), slice(own, part.give));
      }
      if (surplus_ > 0) { tell_folded(s, own); }
    } catch (...) {
      device_.record(done_, s);  // what was enqueued still uses the workspace
      throw;
    }
    device_.record(done_, s);
  }

  /// Bytes of device memory held beyond the buffers.
  [[nodiscard]] std::size_t workspace_bytes() const noexcept {
    return received_.size() + scalars_.size();
  }

  /// Enqueues what sum_orthogonality says of all buffers as they were reduced last.
  /// @param to  (2), in device memory.
  void add_up_orthogonality(stream& s, double* to) {
    device_.wait(s, done_);
    device_.zero(s, {reinterpret_cast<std::byte*>(to), 2, dtype::fp64});
    for (auto b = std::size_t{0}; b < buffers_.size(); ++b) {
      auto sum = detail::sum_orthogonality{.segments = buffers_[b].segments.size(), .to = to};
      if (comm_.size() > 1) { sum.scalars = scalars_at(layouts_[b]); }
      device_.invoke(s, sum);
    }
    device_.record(done_, s);
  }

  /// Enqueues the copy of all buffers' scalars to the host, for orthogonality().
  void download(stream& s) {
    device_.wait(s, done_);
    auto const bytes = std::as_writable_bytes(std::span{host_scalars_});
    device_.download(s, {scalars_.data(), host_scalars_.size(), dtype::fp64}, bytes);
    device_.record(done_, s);
  }

  /// ‖Adasum‖² / Σ_r ‖g_r‖² of a segment when download() was passed: 1 where the ranks' gradients
  /// are orthogonal, 1 / W where they are equal, NaN where all are 0; 1 on one rank. Same bits on
  /// all ranks.
  [[nodiscard]] double orthogonality(std::size_t buffer, std::size_t segment) const {
    expects(buffer < buffers_.size() && segment < buffers_[buffer].segments.size(),
            "adasum_all_reduce: no such segment");
    if (comm_.size() == 1) { return 1.0; }
    auto const& own      = layouts_[buffer];
    auto const* const at = host_scalars_.data() + own.first_scalar + 3 * segment;
    auto const* const leaf_squares =
        host_scalars_.data() + own.first_scalar + 3 * buffers_[buffer].segments.size();
    return adasum_squares({.dot = at[0], .a = at[1], .b = at[2]}) / leaf_squares[segment];
  }

 private:
  using tensor_list = typename Device::tensor_list;

  /// In bytes: kernels meet memory that is aligned as gradients in their buckets are.
  static constexpr auto slice_alignment = std::size_t{256};

  /// A level, and the segments' parts in what is kept of the own slice and in what is received.
  struct level_lists {
    tree_level part;
    tensor_list kept;
    tensor_list received;
  };

  struct layout {
    buffer_view memory;
    std::size_t segments;
    std::size_t first_scalar;  // among all doubles; 3 products and 1 sum of squares a segment
    std::vector<level_lists> levels;
  };

  adasum_all_reduce(Device& device,
                    Comm& comm,
                    Comm* shards,
                    std::vector<adasum_buffer> buffers,
                    timeout deadline)
      : device_{device}, comm_{comm}, shards_{shards}, buffers_{std::move(buffers)} {
    detail::check_buffers(buffers_);
    agree(comm, detail::layout_text(buffers_), deadline);
    if (shards != nullptr) {
      agree(*shards, detail::shards_text(buffers_, comm.rank(), comm.size()), deadline);
    }
    counts_.resize(2 * static_cast<std::size_t>(comm.size()));
    if (comm.size() > 1) { allocate(); }
  }

  [[nodiscard]] std::size_t shards() const noexcept {
    return shards_ == nullptr ? 1 : static_cast<std::size_t>(shards_->size());
  }

  [[nodiscard]] bool is_communicated(std::size_t buffer) const {
    return comm_.size() > 1 && !buffers_[buffer].segments.empty();
  }

  void agree(Comm& group, std::string const& own, timeout deadline) {
    auto hash = detail::fnv1a{};
    hash.feed(own);
    auto s = device_.make_stream(stream_priority::normal);
    detail::sync_agree(
        device_,
        s,
        group,
        hash.value(),
        [&] { return std::string_view{own}; },
        "adasum_all_reduce: ranks were made with different buffers: ",
        deadline);
  }

  void allocate() {
    auto const tree     = rank_tree{comm_.size()};
    surplus_            = tree.surplus();
    auto received_bytes = std::size_t{0};
    auto doubles        = std::size_t{0};
    auto most_segments  = std::size_t{0};
    auto parts          = std::vector<std::vector<tree_level>>{};
    for (auto const& [memory, segments] : buffers_) {
      auto const width = size_of(memory.type());
      parts.push_back(tree.levels(comm_.rank(), memory.count(), slice_alignment / width));
      for (auto const& level : parts.back()) {
        received_bytes = std::max(received_bytes, level.keep.count() * width);
      }
      layouts_.push_back({memory, segments.size(), doubles, {}});
      doubles += 4 * segments.size();
      most_segments = std::max(most_segments, segments.size());
    }
    received_ = device_.allocate(received_bytes);
    scalars_  = device_.allocate((doubles + shards() * 4 * most_segments) * sizeof(double));
    host_scalars_.resize(doubles);
    auto s = device_.make_stream(stream_priority::normal);
    for (auto* const memory : {&received_, &scalars_}) {  // read even where a receive was aborted
      device_.zero(s, {memory->data(), memory->size(), dtype::uint8});
    }
    device_.sync(s);
    for (auto b = std::size_t{0}; b < buffers_.size(); ++b) {
      for (auto& level : parts[b]) {
        auto kept     = lists_of(b, level, buffers_[b].memory, 0);
        auto received = lists_of(b,
                                 level,
                                 {received_.data(), level.keep.count(), buffers_[b].memory.type()},
                                 level.keep.begin);
        layouts_[b].levels.push_back({std::move(level), std::move(kept), std::move(received)});
      }
    }
  }

  /// The segments' parts of a level's slice in memory whose first element is number `origin`.
  [[nodiscard]] tensor_list lists_of(std::size_t buffer,
                                     tree_level const& level,
                                     buffer_view memory,
                                     std::size_t origin) {
    auto views = std::vector<buffer_view>{};
    for (auto const& segment : buffers_[buffer].segments) {
      auto const part = intersection(segment, level.keep);
      views.push_back(memory.subview(part.begin - origin, part.count()));
    }
    return device_.make_tensor_list(views);
  }

  [[nodiscard]] double* scalar(std::size_t index) const noexcept {
    return reinterpret_cast<double*>(scalars_.data()) + index;
  }
  [[nodiscard]] buffer_view doubles(std::size_t first, std::size_t count) const noexcept {
    return {reinterpret_cast<std::byte*>(scalar(first)), count, dtype::fp64};
  }
  [[nodiscard]] buffer_view scalars_of(layout const& own) const noexcept {
    return doubles(own.first_scalar, 4 * own.segments);
  }
  [[nodiscard]] detail::adasum_scalars scalars_at(layout const& own) const noexcept {
    return {.products     = reinterpret_cast<pair_products*>(scalar(own.first_scalar)),
            .leaf_squares = scalar(own.first_scalar + 3 * own.segments)};
  }
  /// Room behind all buffers' scalars, for those of other ranks.
  [[nodiscard]] buffer_view others_scalars(layout const& own, std::size_t ranks) const noexcept {
    return doubles(host_scalars_.size(), ranks * 4 * own.segments);
  }
  [[nodiscard]] static buffer_view slice(layout const& own, element_range range) {
    return own.memory.subview(range.begin, range.count());
  }

  /// One level: the partner's half comes, both vectors' products are added up, and joined.
  void join(stream& s, layout const& own, level_lists& level) {
    auto const& part = level.part;
    exchange(s,
             part.partner,
             slice(own, part.give),
             {received_.data(), part.keep.count(), own.memory.type()});
    auto const takes_part = part.partner != tree_level::nobody;
    auto& a               = part.holds_a ? level.kept : level.received;
    auto& b               = part.holds_a ? level.received : level.kept;
    auto const scalars    = scalars_at(own);
    if (takes_part) {
      device_.dot_products(s, a, b, scalars.products);
      auto const holders = static_cast<double>(part.holders) * static_cast<double>(shards());
      auto const is_leaf = (part.holds_a ? part.a_leaves : part.b_leaves) == 1;
      device_.invoke(s,
                     detail::share_leaf_squares{.scalars   = scalars,
                                                .segments  = own.segments,
                                                .share     = is_leaf ? 0.0 : 1.0 / holders,
                                                .a_is_leaf = part.a_leaves == 1,
                                                .b_is_leaf = part.b_leaves == 1});
      if (shards() > 1) { add_up_shards(s, own); }
    }
    for (auto const peer : part.sharers) { add_scalars_of(s, own, peer); }
    if (takes_part) { device_.combine(s, a, b, scalars.products, level.kept); }
  }

  /// Adds up the scalars of all shards, on each rank in the same order: the same bits on all, and
  /// on all ranks of `comm` alike, of which all or none come here.
  void add_up_shards(stream& s, layout const& own) {
    auto const mine = scalars_of(own);
    auto const all  = others_scalars(own, shards());
    shards_->all_gather(s, mine, all);
    device_.copy(s, all.subview(0, mine.count()), mine);
    for (auto shard = std::size_t{1}; shard < shards(); ++shard) {
      device_.accumulate(s, all.subview(shard * mine.count(), mine.count()), mine);
    }
  }

  /// Adds a peer's scalars to the own ones, as the peer does: the same bits on both.
  void add_scalars_of(stream& s, layout const& own, int peer) {
    auto const talks = peer != tree_level::nobody;
    auto const mine  = scalars_of(own);
    auto const other = others_scalars(own, 1);
    exchange(s, peer, talks ? mine : doubles(0, 0), talks ? other : doubles(0, 0));
    if (talks) { device_.accumulate(s, other, mine); }
  }

  /// Ranks that were folded into a neighbour get the last level's scalars from it.
  void tell_folded(stream& s, layout const& own) {
    auto const& fold   = own.levels.front().part;
    auto const nothing = doubles(0, 0);
    auto const talks   = fold.partner != tree_level::nobody;
    exchange(s,
             fold.partner,
             talks && fold.holds_a ? scalars_of(own) : nothing,
             talks && !fold.holds_a ? scalars_of(own) : nothing);
  }

  /// Sends `in` to a rank and receives `out` from it at the same time; every rank calls it, with
  /// nothing where it has no peer. all_to_all_v is the exchange that no transport has to buffer.
  void exchange(stream& s, int peer, const_buffer_view in, buffer_view out) {
    auto const ranks   = static_cast<std::size_t>(comm_.size());
    auto const send    = std::span{counts_}.first(ranks);
    auto const receive = std::span{counts_}.last(ranks);
    if (peer != tree_level::nobody) {
      send[static_cast<std::size_t>(peer)]    = in.count();
      receive[static_cast<std::size_t>(peer)] = out.count();
    }
    comm_.all_to_all_v(s, in, send, out, receive);
    if (peer != tree_level::nobody) {
      send[static_cast<std::size_t>(peer)]    = 0;
      receive[static_cast<std::size_t>(peer)] = 0;
    }
  }

  Device& device_;
  Comm& comm_;
  Comm* shards_;  // null: the vectors are whole
  std::vector<adasum_buffer> buffers_;
  std::vector<layout> layouts_;  // by buffer; none on one rank
  int surplus_{0};
  std::vector<std::size_t> counts_;   // (2, ranks): to send, to receive; 0 between exchanges
  std::vector<double> host_scalars_;  // (Σ segments, 4)
  typename Device::buffer received_{device_.allocate(0)};
  typename Device::buffer scalars_{device_.allocate(0)};  // as above, and room for other ranks'
  typename Device::event done_{device_.make_event()};
};

}  // namespace gradlane

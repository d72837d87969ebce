// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gradlane/buffer_view.hpp>            // for buffer_view
#include <gradlane/concepts.hpp>               // for communicator_for, device
#include <gradlane/detail/exchange.hpp>        // for upload_all
#include <gradlane/detail/leave_for_ever.hpp>  // for leave_for_ever
#include <gradlane/detail/presort_plan.hpp>    // for presort_plan, sample_piece
#include <gradlane/detail/segments.hpp>        // for copy_segments, segment
#include <gradlane/sample_window.hpp>          // for dealt_memory, sample_array
#include <gradlane/types.hpp>                  // for dtype

#include <cstddef>  // for byte, size_t
#include <cstdint>  // for int32_t, uint64_t
#include <span>     // for as_bytes, span
#include <utility>  // for move
#include <vector>   // for vector

namespace gradlane::detail {

/// Device memory for one window on its way, and for its result; used again for the one after next.
///
/// Memory grows to what the largest window needs. What was outgrown is kept until the work that
/// used it is done.
template <device Device>
class presort_slot {
 public:
  using stream = typename Device::stream;

  explicit presort_slot(Device& device) : device_{device} {}

  /// Enqueues the exchange, behind what reads the result that the slot held.
  template <communicator_for<Device> Comm>
  void exchange(stream& on,
                Comm& comm,
                presort_plan const& plan,
                std::span<sample_array const> arrays,
                std::span<std::span<std::byte const> const> own) {
    forget_outgrown();
    auto const sent     = sum_of(plan.send);
    auto const received = sum_of(plan.receive);
    auto const segments = plan.outgoing.size() + plan.kept.size() + plan.incoming.size();
    fit(wire_, sent + received);
    fit(table_, segments * sizeof(segment));
    lay_out(plan, arrays);
    device_.wait(on, released_);

    auto* const outbox = wire_.data();
    auto* const inbox  = wire_.data() + sent;
    auto list          = std::vector<segment>{};
    list.reserve(segments);
    auto const place = [&](sample_piece const& p) { return memory_.arrays[p.array] + p.to; };
    for (auto const& p : plan.outgoing) {
      list.push_back({own[p.array].data() + p.from, outbox + p.to, p.bytes});
    }
    for (auto const& p : plan.kept) {
      list.push_back({own[p.array].data() + p.from, place(p), p.bytes});
    }
    for (auto const& p : plan.incoming) { list.push_back({inbox + p.from, place(p), p.bytes}); }
    upload_all(device_, on, std::as_bytes(std::span{list}), table_.data());

    auto const* const table = reinterpret_cast<segment const*>(table_.data());
    auto const leaving      = plan.outgoing.size();
    copy_segments(device_, on, table, leaving);
    if (plan.moved > 0) {  // as all ranks know
      comm.all_to_all_v(on,
                        buffer_view{outbox, sent, dtype::uint8},
                        plan.send,
                        buffer_view{inbox, received, dtype::uint8},
                        plan.receive);
    }
    copy_segments(device_, on, table + leaving, list.size() - leaving);
    upload_lists(on, plan.result);
    device_.record(done_, on);
  }

  [[nodiscard]] dealt_memory const& memory() const noexcept { return memory_; }

  /// Makes a stream wait for the result.
  void admit(stream& reader) { device_.wait(reader, done_); }

  /// The result may be overwritten once `reader` has come here.
  void release(stream& reader) { device_.record(released_, reader); }

  /// Never frees the memory: a transport that failed may still write to it.
  void leave_memory() noexcept {
    leave_for_ever(wire_);
    leave_for_ever(table_);
    leave_for_ever(result_);
    leave_for_ever(outgrown_);
  }

 private:
  using buffer = typename Device::buffer;

  static constexpr std::size_t alignment = 256;

  [[nodiscard]] static std::size_t sum_of(std::vector<std::size_t> const& sizes) noexcept {
    auto sum = std::size_t{0};
    for (auto const size : sizes) { sum += size; }
    return sum;
  }
  [[nodiscard]] static std::size_t aligned(std::size_t bytes) noexcept {
    return (bytes + alignment - 1) / alignment * alignment;
  }

  void forget_outgrown() {
    if (device_.is_done(done_) && device_.is_done(released_)) { outgrown_.clear(); }
  }

  /// Makes room, a little more than asked for; contents are lost.
  void fit(buffer& held, std::size_t bytes) {
    if (bytes <= held.size()) { return; }
    auto larger = device_.allocate(aligned(bytes + bytes / 8));
    outgrown_.push_back(std::move(held));
    held = std::move(larger);
  }

  /// Room for ids, cumulative rows and arrays, each of them aligned.
  void lay_out(presort_plan const& plan, std::span<sample_array const> arrays) {
    auto const samples = plan.result.ids.size();
    auto const list    = aligned((samples + plan.result.batches()) * sizeof(std::int32_t));
    auto bytes         = aligned(samples * sizeof(std::uint64_t)) + list * plan.result.rows.size();
    auto begins        = std::vector<std::size_t>{};
    for (auto a = std::size_t{0}; a < arrays.size(); ++a) {
      begins.push_back(bytes);
      bytes += aligned(plan.first_row[a].back() * arrays[a].row_bytes);
    }
    fit(result_, bytes);
    auto* const data  = result_.data();
    memory_           = {};
    memory_.ids       = reinterpret_cast<std::uint64_t*>(data);
    memory_.first_row = plan.first_row;
    for (auto l = std::size_t{0}; l < plan.result.rows.size(); ++l) {
      memory_.rows.push_back(reinterpret_cast<std::int32_t*>(
          data + aligned(samples * sizeof(std::uint64_t)) + l * list));
    }
    for (auto a = std::size_t{0}; a < arrays.size(); ++a) {
      memory_.arrays.push_back(data + begins[a]);
      memory_.row_bytes.push_back(arrays[a].row_bytes);
    }
  }

  void upload_lists(stream& on, dealt_samples const& result) {
    upload_all(device_,
               on,
               std::as_bytes(std::span{result.ids}),
               reinterpret_cast<std::byte*>(memory_.ids));
    for (auto l = std::size_t{0}; l < result.rows.size(); ++l) {
      upload_all(device_,
                 on,
                 std::as_bytes(std::span{result.rows[l]}),
                 reinterpret_cast<std::byte*>(memory_.rows[l]));
    }
  }

  Device& device_;
  buffer wire_{device_.allocate(0)};    // what is sent, then what is received
  buffer table_{device_.allocate(0)};   // segment (…)
  buffer result_{device_.allocate(0)};  // ids, cumulative rows, arrays
  std::vector<buffer> outgrown_;
  dealt_memory memory_;
  typename Device::event done_{device_.make_event()};
  typename Device::event released_{device_.make_event()};
};

}  // namespace gradlane::detail

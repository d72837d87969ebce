// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>  // for size_t
#include <cstdint>  // for uint32_t
#include <vector>   // for vector

namespace gradlane::balance::detail {

/// One of the parts that samples are dealt to, while they are.
struct part_load {
  double cost{};
  std::uint32_t count{};
  std::uint32_t part{};

  /// The cheaper one gets the next sample; of equals the one with fewer samples, then the first.
  [[nodiscard]] bool before(part_load const& other) const noexcept {
    if (cost != other.cost) { return cost < other.cost; }
    if (count != other.count) { return count < other.count; }
    return part < other.part;
  }
};

/// The parts that may still be given samples, least loaded on top: a binary heap.
class least_loaded {
 public:
  explicit least_loaded(std::size_t parts) : heap_(parts) {
    for (std::size_t p = 0; p < parts; ++p) { heap_[p].part = static_cast<std::uint32_t>(p); }
  }

  [[nodiscard]] part_load const& top() const { return heap_.front(); }

  void give(double cost) {
    heap_.front().cost += cost;
    ++heap_.front().count;
    sink();
  }

  void close_top() {
    heap_.front() = heap_.back();
    heap_.pop_back();
    if (!heap_.empty()) { sink(); }
  }

 private:
  void sink() {
    auto const moving = heap_.front();
    auto const size   = heap_.size();
    auto hole         = std::size_t{0};
    for (auto child = std::size_t{1}; child < size; child = 2 * hole + 1) {
      if (child + 1 < size && heap_[child + 1].before(heap_[child])) { ++child; }
      if (!heap_[child].before(moving)) { break; }
      heap_[hole] = heap_[child];
      hole        = child;
    }
    heap_[hole] = moving;
  }

  std::vector<part_load> heap_;
};

}  // namespace gradlane::balance::detail

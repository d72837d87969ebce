// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bert/dropout.hpp>
#include <bert/matrix_view.hpp>

#include <array>    // for array
#include <cstddef>  // for size_t
#include <span>     // for span
#include <utility>  // for forward
#include <vector>   // for vector

namespace bert::bench {

/// What the time of a step goes into. `reduction` is what is left of it after backward: what was
/// done beside backward is not seen.
enum class part : std::size_t { attention, products, optimizer, reduction, other };

inline constexpr auto parts = std::size_t{5};

/// Seconds, by part.
using part_seconds = std::array<double, parts>;

/// Tells how long each part of a step took.
///
/// A Clock has now(), a point in the order of the work on a device, seconds(a, b) between two
/// points, and reuse(), after which it may hand out its points again.
template <class Clock>
class part_times {
 public:
  explicit part_times(Clock& clock) : clock_{clock} {}

  /// What follows belongs to `next`, if a step is being timed.
  void enter(part next) {
    if (timing_) { marks_.push_back({next, clock_.now()}); }
  }

  void start() {
    marks_.clear();
    clock_.reuse();
    timing_ = true;
    enter(part::other);
  }
  /// Waits for the device.
  [[nodiscard]] part_seconds sync_stop() {
    enter(part::other);
    timing_     = false;
    auto result = part_seconds{};
    for (auto i = std::size_t{1}; i < marks_.size(); ++i) {
      auto const& begin = marks_[i - 1];
      result[static_cast<std::size_t>(begin.what)] += clock_.seconds(begin.from, marks_[i].from);
    }
    return result;
  }

 private:
  struct mark {
    part what;
    typename Clock::point from;
  };

  Clock& clock_;
  std::vector<mark> marks_;
  bool timing_ = false;
};

/// A model's device that tells when it computes products and attention.
template <class Device, class Clock>
class timed_device : public Device {
  using in    = matrix_view<typename Device::value const>;
  using out   = matrix_view<typename Device::value>;
  using reals = std::span<float const>;

 public:
  using index = typename Device::index;

  template <class... Arguments>
  explicit timed_device(part_times<Clock>& times, Arguments&&... arguments)
      : Device{std::forward<Arguments>(arguments)...}, times_{times} {}

  void linear(in x, weight_matrix w, reals bias, out y) {
    auto const inside = scope{times_, part::products};
    Device::linear(x, w, bias, y);
  }
  void linear_input_gradient(in dy, weight_matrix w, out dx) {
    auto const inside = scope{times_, part::products};
    Device::linear_input_gradient(dy, w, dx);
  }
  void linear_weight_gradient(in dy, in x, std::span<float> dw, bool accumulate) {
    auto const inside = scope{times_, part::products};
    Device::linear_weight_gradient(dy, x, dw, accumulate);
  }
  void attention(index const& rows,
                 in qkv,
                 std::size_t heads,
                 dropout const& drop,
                 out context,
                 std::span<float> lse) {
    auto const inside = scope{times_, part::attention};
    Device::attention(rows, qkv, heads, drop, context, lse);
  }
  void attention_gradient(index const& rows,
                          in qkv,
                          std::size_t heads,
                          dropout const& drop,
                          in context,
                          reals lse,
                          in dcontext,
                          out dqkv) {
    auto const inside = scope{times_, part::attention};
    Device::attention_gradient(rows, qkv, heads, drop, context, lse, dcontext, dqkv);
  }

 private:
  class scope {
   public:
    scope(part_times<Clock>& times, part what) : times_{times} { times_.enter(what); }
    scope(scope const&)            = delete;
    scope& operator=(scope const&) = delete;
    ~scope() { times_.enter(part::other); }

   private:
    part_times<Clock>& times_;
  };

  part_times<Clock>& times_;
};

}  // namespace bert::bench

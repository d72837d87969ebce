// SPDX-License-Identifier: Apache-2.0
#pragma once

// What every device must do, as test cases over a fixture `On`:
//   On::device                       default constructible
//   On::gate                         g.hold(device, stream) enqueues work that ends once g.open()
//                                    was called; a gate may be held by one stream
//   On::delay(device, stream, us)    enqueues work that takes about that many microseconds
//   On::fail(device, stream, text)   enqueues work that throws a std::runtime_error of that text;
//                                    only where an error leaves the device usable
// A test file says GRADLANE_DEVICE_CONFORMANCE(fixture), and where there is On::fail also
// GRADLANE_DEVICE_ERROR_CONFORMANCE(fixture).

#include <gradlane/buffer_view.hpp>         // for buffer_view
#include <gradlane/concepts.hpp>            // for device, non_finite_location
#include <gradlane/detail/host_device.hpp>  // for GRADLANE_HOST_DEVICE
#include <gradlane/error.hpp>               // for contract_error, timeout_error
#include <gradlane/types.hpp>               // for bf16, fp16, element, floating_element

#include <doctest/doctest.h>

#include <support/rounding.hpp>  // for nearest, same, finite_values, integers, quad

#include <algorithm>    // for all_of, copy, min
#include <array>        // for array
#include <bit>          // for bit_cast
#include <chrono>       // for milliseconds
#include <cmath>        // for abs, isnan, nanf
#include <cstddef>      // for size_t
#include <cstdint>      // for uint64_t, uintptr_t
#include <cstring>      // for memcmp
#include <limits>       // for numeric_limits
#include <optional>     // for optional
#include <random>       // for mt19937_64
#include <span>         // for span, as_bytes, as_writable_bytes
#include <stdexcept>    // for runtime_error
#include <string>       // for string
#include <type_traits>  // for type_identity
#include <utility>      // for move
#include <vector>       // for vector

namespace gradlane::test {

/// *x = 3 · *x + y mod 1009, on the device: the order of such steps shows in the result.
struct mix_step {
  double* x;
  double const* y;
  double plus;
  GRADLANE_HOST_DEVICE void operator()() const {
    auto const sum = 3 * *x + *y + plus;
    *x             = sum - 1009 * static_cast<double>(static_cast<int>(sum / 1009));
  }
};

/// Elements in device memory between two stretches of poison (NaN, or -1), `offset` elements off
/// the alignment of the buffer.
template <device Device, element T>
class guarded {
 public:
  guarded(Device& on, std::vector<T> const& values, std::size_t offset = 0)
      : device_{on},
        front_{16 + offset},
        count_{values.size()},
        memory_{on.allocate((front_ + count_ + 16) * sizeof(T))} {
    auto all = std::vector<T>(front_ + count_ + 16, poison());
    std::copy(values.begin(), values.end(), all.begin() + static_cast<std::ptrdiff_t>(front_));
    auto const bytes = std::as_bytes(std::span{all});
    for (std::size_t at = 0; at < bytes.size(); at += 65536) {
      auto const part = bytes.subspan(at, std::min<std::size_t>(65536, bytes.size() - at));
      device_.upload(stream_, part, {memory_.data() + at, part.size(), dtype::uint8});
    }
    device_.sync(stream_);
  }

  [[nodiscard]] buffer_view view() const {
    return {memory_.data() + front_ * sizeof(T), count_, dtype_of<T>};
  }
  [[nodiscard]] T* data() const { return reinterpret_cast<T*>(view().data()); }

  /// What the elements are now; checks that the poison is untouched.
  [[nodiscard]] std::vector<T> values() {
    auto all = std::vector<T>(front_ + count_ + 16);
    device_.download(stream_,
                     {memory_.data(), all.size() * sizeof(T), dtype::uint8},
                     std::as_writable_bytes(std::span{all}));
    device_.sync(stream_);
    auto const before    = std::span{all}.first(front_);
    auto const after     = std::span{all}.last(16);
    auto const is_poison = [](T value) { return same_bits(value, poison()); };
    CHECK(std::all_of(before.begin(), before.end(), is_poison));
    CHECK(std::all_of(after.begin(), after.end(), is_poison));
    auto const own = std::span{all}.subspan(front_, count_);
    return {own.begin(), own.end()};
  }

 private:
  [[nodiscard]] static bool same_bits(T a, T b) { return std::memcmp(&a, &b, sizeof(T)) == 0; }
  [[nodiscard]] static T poison() {
    if constexpr (floating_element<T>) {
      return T{std::numeric_limits<float>::quiet_NaN()};
    } else {
      return static_cast<T>(-1);
    }
  }

  Device& device_;
  std::size_t front_;
  std::size_t count_;
  typename Device::buffer memory_;
  typename Device::stream stream_ = device_.make_stream(stream_priority::normal);
};

template <class F>
void for_each_floating(F f) {
  f(std::type_identity<float>{});
  f(std::type_identity<double>{});
  f(std::type_identity<bf16>{});
  f(std::type_identity<fp16>{});
}

template <device Device>
[[nodiscard]] typename Device::tensor_list list_of(Device& d,
                                                   std::vector<buffer_view> const& views) {
  return d.make_tensor_list(views);
}

/// Streams that read and write a few cells in a random order, held together by events alone. Each
/// cell ends up as if all steps had run one after the other.
template <class On>
[[nodiscard]] bool random_schedule_is_sequential(std::uint64_t seed) {
  using device                  = typename On::device;
  constexpr std::size_t streams = 4;
  constexpr std::size_t cells   = 5;
  struct cell {
    std::optional<typename device::event> written;
    std::array<std::optional<typename device::event>, streams> read;  // by each stream
  };

  auto d      = device{};
  auto random = std::mt19937_64{seed};
  auto below  = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  auto queue  = std::vector<typename device::stream>{};
  for (std::size_t i = 0; i < streams; ++i) {
    queue.push_back(d.make_stream(stream_priority::normal));
  }
  auto memory   = guarded<device, double>{d, std::vector<double>(cells, 1.0)};
  auto expected = std::vector<double>(cells, 1.0);
  auto state    = std::array<cell, cells>{};
  for (auto& c : state) {
    c.written = d.make_event();
    for (auto& e : c.read) { e = d.make_event(); }
  }

  for (int step = 0; step < 30; ++step) {
    auto const s  = below(streams);
    auto const to = below(cells);
    auto const by = below(cells);
    if (below(3) == 0) { On::delay(d, queue[s], static_cast<int>(below(60))); }
    d.wait(queue[s], *state[to].written);
    d.wait(queue[s], *state[by].written);
    for (auto& read : state[to].read) { d.wait(queue[s], *read); }
    auto const work = mix_step{memory.data() + to, memory.data() + by, static_cast<double>(step)};
    d.invoke(queue[s], work);
    d.record(*state[to].written, queue[s]);
    d.record(*state[by].read[s], queue[s]);
    mix_step{&expected[to], &expected[by], work.plus}();
    if (below(10) == 0) {  // an event may end while streams wait for it
      auto fresh = d.make_event();
      d.wait(queue[below(streams)], *state[by].written);
      d.record(fresh, queue[s]);
      std::swap(fresh, *state[to].written);
    }
  }
  for (auto& s : queue) { d.sync(s); }
  return memory.values() == expected;
}

}  // namespace gradlane::test

TEST_CASE_TEMPLATE_DEFINE("device: a stream runs its work in order", On, device_order) {
  using namespace gradlane;
  auto d        = typename On::device{};
  auto s        = d.make_stream(stream_priority::high);
  auto x        = test::guarded<typename On::device, double>{d, {1.0, 0.0}};
  auto expected = 1.0;
  auto zero     = 0.0;
  for (int i = 0; i < 1000; ++i) {
    d.invoke(s, test::mix_step{x.data(), x.data() + 1, static_cast<double>(i)});
    test::mix_step{&expected, &zero, static_cast<double>(i)}();
  }
  d.sync(s);
  CHECK(x.values() == std::vector{expected, 0.0});
}

TEST_CASE_TEMPLATE_DEFINE("device: wait before any record is a no-op", On, device_wait_unrecorded) {
  auto d = typename On::device{};
  auto s = d.make_stream(gradlane::stream_priority::normal);
  auto e = d.make_event();
  CHECK(d.is_done(e));
  d.wait(s, e);
  d.sync(s);
  d.sync(e, gradlane::no_deadline);
}

TEST_CASE_TEMPLATE_DEFINE("device: a mark is done once the work before it is", On, device_mark) {
  auto d    = typename On::device{};
  auto s    = d.make_stream(gradlane::stream_priority::normal);
  auto e    = d.make_event();
  auto gate = typename On::gate{};
  d.record(e, s);
  CHECK_NOTHROW(d.sync(e, gradlane::no_deadline));
  CHECK(d.is_done(e));
  gate.hold(d, s);
  CHECK(d.is_done(e));  // the gate came after the mark
  d.record(e, s);
  CHECK_FALSE(d.is_done(e));
  gate.open();
  d.sync(e, gradlane::no_deadline);
  CHECK(d.is_done(e));
}

TEST_CASE_TEMPLATE_DEFINE("device: wait holds a stream until the mark is done", On, device_wait) {
  using namespace gradlane;
  auto d      = typename On::device{};
  auto first  = d.make_stream(stream_priority::normal);
  auto second = d.make_stream(stream_priority::normal);
  auto ready  = d.make_event();
  auto after  = d.make_event();
  auto x      = test::guarded<typename On::device, double>{d, {1.0, 0.0}};
  auto gate   = typename On::gate{};
  gate.hold(d, first);
  d.invoke(first, test::mix_step{x.data(), x.data() + 1, 5.0});
  d.record(ready, first);
  d.wait(second, ready);
  d.invoke(second, test::mix_step{x.data(), x.data() + 1, 7.0});
  d.record(after, second);
  CHECK_FALSE(d.is_done(after));
  gate.open();
  d.sync(second);
  CHECK(x.values() == std::vector{31.0, 0.0});  // 3 · (3 · 1 + 5) + 7
}

TEST_CASE_TEMPLATE_DEFINE("device: wait binds to the latest record made before it",
                          On,
                          device_rebind) {
  using namespace gradlane;
  auto d       = typename On::device{};
  auto slow    = d.make_stream(stream_priority::normal);
  auto other   = d.make_stream(stream_priority::normal);
  auto early   = d.make_stream(stream_priority::normal);
  auto late    = d.make_stream(stream_priority::normal);
  auto e       = d.make_event();
  auto of_late = d.make_event();
  auto first   = typename On::gate{};
  auto second  = typename On::gate{};
  first.hold(d, slow);
  second.hold(d, other);
  d.record(e, slow);
  d.wait(early, e);
  d.record(e, other);  // `early` goes on waiting for `slow`
  d.wait(late, e);
  d.record(of_late, late);
  first.open();
  d.sync(early);
  CHECK_FALSE(d.is_done(of_late));
  CHECK_FALSE(d.is_done(e));
  second.open();
  d.sync(late);

  // a later record that is done at once does not release who waits for the earlier one
  auto third    = typename On::gate{};
  auto of_early = d.make_event();
  third.hold(d, slow);
  d.record(e, slow);
  d.wait(early, e);
  d.record(of_early, early);
  d.record(e, other);
  d.sync(e, no_deadline);
  CHECK_FALSE(d.is_done(of_early));
  third.open();
  d.sync(early);
}

TEST_CASE_TEMPLATE_DEFINE("device: events may be recorded again and again", On, device_rerecord) {
  using namespace gradlane;
  auto d        = typename On::device{};
  auto a        = d.make_stream(stream_priority::normal);
  auto b        = d.make_stream(stream_priority::normal);
  auto e        = d.make_event();
  auto x        = test::guarded<typename On::device, double>{d, {1.0, 0.0}};
  auto expected = 1.0;
  auto zero     = 0.0;
  for (int i = 0; i < 500; ++i) {  // one event takes turns between two streams
    d.invoke(a, test::mix_step{x.data(), x.data() + 1, 1.0});
    d.record(e, a);
    d.wait(b, e);
    d.invoke(b, test::mix_step{x.data(), x.data() + 1, 2.0});
    d.record(e, b);
    d.wait(a, e);
    test::mix_step{&expected, &zero, 1.0}();
    test::mix_step{&expected, &zero, 2.0}();
  }
  d.sync(a);
  CHECK(x.values() == std::vector{expected, 0.0});
}

TEST_CASE_TEMPLATE_DEFINE("device: an event may end while streams wait for it",
                          On,
                          device_event_end) {
  using namespace gradlane;
  auto d     = typename On::device{};
  auto a     = d.make_stream(stream_priority::normal);
  auto b     = d.make_stream(stream_priority::normal);
  auto after = d.make_event();
  auto gate  = typename On::gate{};
  gate.hold(d, a);
  {
    auto e = d.make_event();
    d.record(e, a);
    d.wait(b, e);
  }
  d.record(after, b);
  CHECK_FALSE(d.is_done(after));
  gate.open();
  d.sync(b);
}

TEST_CASE_TEMPLATE_DEFINE("device: the end of a stream finishes its work", On, device_drain) {
  using namespace gradlane;
  auto d = typename On::device{};
  auto x = test::guarded<typename On::device, double>{d, {1.0, 0.0}};
  auto e = d.make_event();
  {
    auto s = d.make_stream(stream_priority::normal);
    On::delay(d, s, 2000);
    d.invoke(s, test::mix_step{x.data(), x.data() + 1, 4.0});
    d.record(e, s);
    auto moved = std::move(s);
    d.invoke(moved, test::mix_step{x.data(), x.data() + 1, 6.0});
  }
  CHECK(d.is_done(e));
  CHECK(x.values() == std::vector{27.0, 0.0});  // 3 · (3 · 1 + 4) + 6
}

TEST_CASE_TEMPLATE_DEFINE("device: sync gives up at its deadline, and only then",
                          On,
                          device_deadline) {
  using namespace gradlane;
  using namespace std::chrono_literals;
  auto d    = typename On::device{};
  auto s    = d.make_stream(stream_priority::normal);
  auto e    = d.make_event();
  auto gate = typename On::gate{};
  gate.hold(d, s);
  d.record(e, s);
  CHECK_THROWS_AS(d.sync(s, 1ms), timeout_error);
  CHECK_THROWS_AS(d.sync(e, 0ms), timeout_error);
  CHECK_THROWS_AS(d.sync(e, -5ms), timeout_error);
  gate.open();
  CHECK_NOTHROW(d.sync(s, std::chrono::hours{1}));
  CHECK_NOTHROW(d.sync(e, no_deadline));
  CHECK_NOTHROW(d.sync(e, 0ms));  // done already
}

TEST_CASE_TEMPLATE_DEFINE("device: random schedules over events equal the sequential one",
                          On,
                          device_random) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    CAPTURE(seed);
    REQUIRE(gradlane::test::random_schedule_is_sequential<On>(seed));
  }
}

TEST_CASE_TEMPLATE_DEFINE("device: buffers are aligned, movable and may be empty",
                          On,
                          device_buffer) {
  auto d    = typename On::device{};
  auto some = d.allocate(1000);
  auto none = d.allocate(0);
  CHECK(reinterpret_cast<std::uintptr_t>(some.data()) % 256 == 0);
  CHECK(some.size() == 1000);
  CHECK(none.size() == 0);
  auto* const data = some.data();
  none             = std::move(some);
  CHECK(none.data() == data);
  CHECK(none.size() == 1000);
}

TEST_CASE_TEMPLATE_DEFINE(
    "device: zero, copy, upload and download move what they are given, no more", On, device_moves) {
  using namespace gradlane;
  auto d = typename On::device{};
  auto s = d.make_stream(stream_priority::normal);
  for (auto const n : {std::size_t{0}, std::size_t{1}, std::size_t{77}, std::size_t{5000}}) {
    auto const values = test::integers<float>(n, n);
    auto from         = test::guarded<typename On::device, float>{d, values, 1};
    auto to = test::guarded<typename On::device, float>{d, std::vector<float>(n, 9.0F), 3};
    d.copy(s, from.view(), to.view());
    d.zero(s, from.view());
    d.sync(s);
    CHECK(to.values() == values);
    CHECK(from.values() == std::vector<float>(n, 0.0F));
  }
  auto bytes =
      test::guarded<typename On::device, std::uint8_t>{d, std::vector<std::uint8_t>(3, 9), 5};
  auto sent = std::array<std::uint8_t, 3>{1, 2, 3};
  auto gate = typename On::gate{};
  gate.hold(d, s);
  d.upload(s, std::as_bytes(std::span{sent}), bytes.view());
  sent.fill(0);  // upload has copied them
  gate.open();
  d.sync(s);
  CHECK(bytes.values() == std::vector<std::uint8_t>{1, 2, 3});
  auto received = std::array<std::uint8_t, 2>{};
  d.download(s, bytes.view().subview(1, 2), std::as_writable_bytes(std::span{received}));
  d.sync(s);
  CHECK(received == std::array<std::uint8_t, 2>{2, 3});
}

TEST_CASE_TEMPLATE_DEFINE(
    "device: cast rounds the product with its coefficient once, and clears by 0", On, device_cast) {
  using namespace gradlane;
  auto d = typename On::device{};
  auto s = d.make_stream(stream_priority::normal);
  auto c = test::guarded<typename On::device, float>{d, {0.3F, 0.0F}};
  test::for_each_floating([&]<class In>(std::type_identity<In>) {
    test::for_each_floating([&]<class Out>(std::type_identity<Out>) {
      auto const x = test::finite_values<In>(777, 1);
      auto in      = test::guarded<typename On::device, In>{d, x, 1};
      auto plain   = test::guarded<typename On::device, Out>{d, std::vector<Out>(777)};
      auto times   = test::guarded<typename On::device, Out>{d, std::vector<Out>(777), 3};
      d.cast(s, in.view(), plain.view(), nullptr);
      d.cast(s, in.view(), times.view(), c.data());
      d.sync(s);
      auto const got       = plain.values();
      auto const got_times = times.values();
      auto wrong           = 0;
      for (std::size_t i = 0; i < x.size(); ++i) {
        auto const exact = static_cast<test::quad>(test::to_double(x[i]));
        auto const good =
            test::same(got[i], test::nearest<Out>(exact)) &&
            test::same(got_times[i], test::nearest<Out>(exact * static_cast<test::quad>(0.3F)));
        wrong += good ? 0 : 1;
      }
      CHECK(wrong == 0);
      auto const inf = std::numeric_limits<float>::infinity();
      auto const bad = std::vector<In>{In{inf}, In{-inf}, In{std::nanf("")}, In{1.0F}};
      auto none      = test::guarded<typename On::device, In>{d, bad};
      auto cleared   = test::guarded<typename On::device, Out>{d, std::vector<Out>(4, Out{1.0F})};
      d.cast(s, none.view(), cleared.view(), c.data() + 1);
      d.sync(s);
      for (auto const y : cleared.values()) { CHECK(test::to_double(y) == 0.0); }
    });
  });
}

TEST_CASE_TEMPLATE_DEFINE(
    "device: scale by 0 clears Inf and NaN, by 1 changes nothing, else rounds once",
    On,
    device_scale) {
  using namespace gradlane;
  auto d = typename On::device{};
  auto s = d.make_stream(stream_priority::normal);
  auto c = test::guarded<typename On::device, float>{d, {1.0F, -0.7F, 0.0F}};
  test::for_each_floating([&]<class T>(std::type_identity<T>) {
    auto x  = test::finite_values<T>(1000, 2);
    x[0]    = T{std::numeric_limits<float>::infinity()};
    x[999]  = T{std::numeric_limits<float>::quiet_NaN()};
    auto in = test::guarded<typename On::device, T>{d, x, 1};
    d.scale(s, in.view(), c.data());
    d.sync(s);
    auto got = in.values();
    for (std::size_t i = 0; i < x.size(); ++i) { REQUIRE(test::same(got[i], x[i])); }
    d.scale(s, in.view(), c.data() + 1);
    d.sync(s);
    got = in.values();
    for (std::size_t i = 1; i < 999; ++i) {
      auto const exact =
          static_cast<test::quad>(test::to_double(x[i])) * static_cast<test::quad>(-0.7F);
      REQUIRE(test::same(got[i], test::nearest<T>(exact)));
    }
    CHECK(std::isinf(test::to_double(got[0])));
    CHECK(std::isnan(test::to_double(got[999])));
    d.scale(s, in.view(), c.data() + 2);
    d.sync(s);
    for (auto const value : in.values()) { REQUIRE(test::to_double(value) == 0); }
  });
}

TEST_CASE_TEMPLATE_DEFINE("device: accumulate adds into fp32 and fp64", On, device_accumulate) {
  using namespace gradlane;
  auto d = typename On::device{};
  auto s = d.make_stream(stream_priority::normal);
  test::for_each_floating([&]<class In>(std::type_identity<In>) {
    auto const check = [&]<class Out>(std::type_identity<Out>) {
      auto const x = test::integers<In>(500, 3);
      auto in      = test::guarded<typename On::device, In>{d, x, 1};
      auto out = test::guarded<typename On::device, Out>{d, std::vector<Out>(500, Out{0.5F}), 2};
      d.accumulate(s, in.view(), out.view());
      d.accumulate(s, in.view(), out.view());
      d.sync(s);
      auto const got = out.values();
      for (std::size_t i = 0; i < x.size(); ++i) {
        REQUIRE(test::to_double(got[i]) == 2 * test::to_double(x[i]) + 0.5);
      }
    };
    check(std::type_identity<float>{});
    check(std::type_identity<double>{});
  });
}

TEST_CASE_TEMPLATE_DEFINE(
    "device: sum_of_squares is a sum in fp64 of the same bits each time; pack has them too",
    On,
    device_sum) {
  using namespace gradlane;
  using device_type = typename On::device;
  auto d            = device_type{};
  auto s            = d.make_stream(stream_priority::normal);
  auto sums         = test::guarded<device_type, double>{d, std::vector<double>(4, -1.0)};
  test::for_each_floating([&]<class In>(std::type_identity<In>) {
    // three tensors, one of them empty; large and small values as far as fp64 holds their squares
    auto a = test::finite_values<In>(10'007, 4);
    auto b = test::integers<In>(33, 5);
    if constexpr (std::is_same_v<In, double>) { a = test::integers<In>(10'007, 4); }
    auto exact = test::quad{0};
    for (auto const value : a) {
      exact += static_cast<test::quad>(test::to_double(value)) *
               static_cast<test::quad>(test::to_double(value));
    }
    for (auto const value : b) {
      exact += static_cast<test::quad>(test::to_double(value)) *
               static_cast<test::quad>(test::to_double(value));
    }
    auto in_a  = test::guarded<device_type, In>{d, a, 1};
    auto in_b  = test::guarded<device_type, In>{d, b, 3};
    auto empty = test::guarded<device_type, In>{d, {}};
    auto list  = test::list_of(d, {in_a.view(), empty.view(), in_b.view()});
    d.sum_of_squares(s, list, sums.data());
    d.sum_of_squares(s, list, sums.data() + 1);
    auto const moved = std::move(list);  // work under way does not mind
    test::for_each_floating([&]<class Out>(std::type_identity<Out>) {
      auto out_a = test::guarded<device_type, Out>{d, std::vector<Out>(a.size()), 2};
      auto out_b = test::guarded<device_type, Out>{d, std::vector<Out>(b.size())};
      auto none  = test::guarded<device_type, Out>{d, {}};
      auto out   = test::list_of(d, {out_a.view(), none.view(), out_b.view()});
      d.pack(s, moved, out, sums.data() + 2);
      d.sync(s);
      auto const got = sums.values();
      CHECK(std::bit_cast<std::uint64_t>(got[0]) == std::bit_cast<std::uint64_t>(got[1]));
      CHECK(std::bit_cast<std::uint64_t>(got[0]) == std::bit_cast<std::uint64_t>(got[2]));
      // each of n additions of positive numbers rounds by at most 2^-53 of the sum
      auto const n     = static_cast<double>(a.size() + b.size() + 2);
      auto const error = std::abs(static_cast<double>(static_cast<test::quad>(got[0]) - exact));
      CHECK(error <= n * 0x1p-53 * static_cast<double>(exact));
      CHECK(got[3] == -1.0);
      auto const copied = out_a.values();
      for (std::size_t i = 0; i < a.size(); ++i) {
        REQUIRE(test::same(copied[i],
                           test::nearest<Out>(static_cast<test::quad>(test::to_double(a[i])))));
      }
      d.zero(s, out_b.view());
      d.pack(s, moved, out, nullptr);
      d.sync(s);
      auto const again = out_b.values();
      for (std::size_t i = 0; i < b.size(); ++i) {
        REQUIRE(test::to_double(again[i]) == test::to_double(b[i]));
      }
    });
  });
  auto const nothing = test::list_of(d, {});
  d.sum_of_squares(s, nothing, sums.data());
  d.sync(s);
  CHECK(sums.values()[0] == 0.0);
}

TEST_CASE_TEMPLATE_DEFINE("device: first_non_finite looks only where the sum is not finite",
                          On,
                          device_non_finite) {
  using namespace gradlane;
  using device_type = typename On::device;
  auto d            = device_type{};
  auto s            = d.make_stream(stream_priority::normal);
  auto sum          = test::guarded<device_type, double>{d, {0.0, 5.0}};
  auto where        = test::guarded<device_type, std::uint64_t>{d, {1, 1}};
  auto* const found = reinterpret_cast<non_finite_location*>(where.data());
  test::for_each_floating([&]<class T>(std::type_identity<T>) {
    auto x          = std::vector<T>(300, T{1.0F});
    auto const ok   = test::guarded<device_type, T>{d, x};
    x[299]          = T{std::numeric_limits<float>::quiet_NaN()};
    x[257]          = T{-std::numeric_limits<float>::infinity()};
    auto const bad  = test::guarded<device_type, T>{d, x, 1};
    auto const list = test::list_of(d, {ok.view(), bad.view(), bad.view()});
    d.sum_of_squares(s, list, sum.data());
    d.first_non_finite(s, list, sum.data(), found);
    d.sync(s);
    CHECK(where.values() == std::vector<std::uint64_t>{1, 257});
    d.first_non_finite(s, list, sum.data() + 1, found);
    d.sync(s);
    CHECK(where.values()[0] == non_finite_location::none);
  });
}

TEST_CASE_TEMPLATE_DEFINE("device: views that do not fit together are refused",
                          On,
                          device_arguments) {
  using namespace gradlane;
  using device_type = typename On::device;
  auto d            = device_type{};
  auto s            = d.make_stream(stream_priority::normal);
  auto floats       = test::guarded<device_type, float>{d, std::vector<float>(4, 1.0F)};
  auto doubles      = test::guarded<device_type, double>{d, std::vector<double>(4, 1.0)};
  auto halves       = test::guarded<device_type, bf16>{d, std::vector<bf16>(4)};
  auto words        = test::guarded<device_type, std::int32_t>{d, std::vector<std::int32_t>(4)};
  auto const three  = floats.view().subview(0, 3);
  auto const bytes  = std::vector<std::byte>(65537);
  auto const large  = d.allocate(65537);
  CHECK_THROWS_AS(d.copy(s, floats.view(), three), contract_error);
  CHECK_THROWS_AS(d.copy(s, floats.view(), words.view()), contract_error);
  CHECK_THROWS_AS(d.cast(s, three, doubles.view(), nullptr), contract_error);
  CHECK_THROWS_AS(d.cast(s, words.view(), floats.view(), nullptr), contract_error);
  CHECK_THROWS_AS(d.scale(s, words.view(), floats.data()), contract_error);
  CHECK_THROWS_AS(d.accumulate(s, floats.view(), halves.view()), contract_error);
  CHECK_THROWS_AS(d.accumulate(s, three, doubles.view()), contract_error);
  CHECK_THROWS_AS(d.upload(s, std::span{bytes}.first(15), floats.view()), contract_error);
  CHECK_THROWS_AS(d.upload(s, bytes, {large.data(), 65537, dtype::uint8}), contract_error);
  CHECK_THROWS_AS(static_cast<void>(test::list_of(d, {floats.view(), doubles.view()})),
                  contract_error);
  auto const a = test::list_of(d, {floats.view()});
  auto const b = test::list_of(d, {doubles.view(), doubles.view()});
  auto const c = test::list_of(d, {three});
  auto const w = test::list_of(d, {words.view()});
  CHECK_THROWS_AS(d.pack(s, a, b, nullptr), contract_error);
  CHECK_THROWS_AS(d.pack(s, a, c, nullptr), contract_error);
  CHECK_THROWS_AS(d.pack(s, w, a, nullptr), contract_error);
  CHECK_THROWS_AS(d.sum_of_squares(s, w, doubles.data()), contract_error);
  d.sync(s);
  CHECK(floats.values() == std::vector<float>(4, 1.0F));
}

TEST_CASE_TEMPLATE_DEFINE("device: the first error of a stream sticks, and its marks are done",
                          On,
                          device_sticky_error) {
  using namespace gradlane;
  auto d      = typename On::device{};
  auto s      = d.make_stream(stream_priority::normal);
  auto before = d.make_event();
  auto after  = d.make_event();
  auto x      = test::guarded<typename On::device, double>{d, {1.0, 0.0}};
  d.invoke(s, test::mix_step{x.data(), x.data() + 1, 2.0});
  d.record(before, s);
  On::fail(d, s, "first");
  d.invoke(s, test::mix_step{x.data(), x.data() + 1, 2.0});
  On::fail(d, s, "second");
  d.record(after, s);
  for (int i = 0; i < 2; ++i) {
    CHECK_THROWS_WITH_AS(d.sync(s), "first", std::runtime_error);
    CHECK_THROWS_WITH_AS(d.sync(after, no_deadline), "first", std::runtime_error);
  }
  CHECK(d.is_done(after));
  CHECK_NOTHROW(d.sync(before, no_deadline));
  CHECK(x.values() == std::vector{5.0, 0.0});  // the work behind the error was skipped
}

TEST_CASE_TEMPLATE_DEFINE("device: who waits for a mark behind an error inherits it, others do not",
                          On,
                          device_inherited_error) {
  using namespace gradlane;
  auto d         = typename On::device{};
  auto failing   = d.make_stream(stream_priority::normal);
  auto waiting   = d.make_stream(stream_priority::normal);
  auto unharmed  = d.make_stream(stream_priority::normal);
  auto too_late  = d.make_stream(stream_priority::normal);
  auto third     = d.make_stream(stream_priority::normal);
  auto before    = d.make_event();
  auto after     = d.make_event();
  auto of_second = d.make_event();
  auto gate      = typename On::gate{};
  gate.hold(d, failing);
  d.record(before, failing);
  On::fail(d, failing, "reduction failed");
  d.record(after, failing);
  d.wait(waiting, after);
  d.record(of_second, waiting);
  d.wait(third, of_second);
  d.wait(unharmed, before);
  gate.open();
  CHECK_THROWS_WITH_AS(d.sync(waiting), "reduction failed", std::runtime_error);
  CHECK_THROWS_WITH_AS(d.sync(third), "reduction failed", std::runtime_error);
  CHECK_NOTHROW(d.sync(unharmed));
  d.wait(too_late, after);  // the mark is done, and its error with it
  CHECK_THROWS_WITH_AS(d.sync(too_late), "reduction failed", std::runtime_error);
}

#define GRADLANE_DEVICE_CONFORMANCE(...)                          \
  TEST_CASE_TEMPLATE_INVOKE(device_order, __VA_ARGS__);           \
  TEST_CASE_TEMPLATE_INVOKE(device_wait_unrecorded, __VA_ARGS__); \
  TEST_CASE_TEMPLATE_INVOKE(device_mark, __VA_ARGS__);            \
  TEST_CASE_TEMPLATE_INVOKE(device_wait, __VA_ARGS__);            \
  TEST_CASE_TEMPLATE_INVOKE(device_rebind, __VA_ARGS__);          \
  TEST_CASE_TEMPLATE_INVOKE(device_rerecord, __VA_ARGS__);        \
  TEST_CASE_TEMPLATE_INVOKE(device_event_end, __VA_ARGS__);       \
  TEST_CASE_TEMPLATE_INVOKE(device_drain, __VA_ARGS__);           \
  TEST_CASE_TEMPLATE_INVOKE(device_deadline, __VA_ARGS__);        \
  TEST_CASE_TEMPLATE_INVOKE(device_random, __VA_ARGS__);          \
  TEST_CASE_TEMPLATE_INVOKE(device_buffer, __VA_ARGS__);          \
  TEST_CASE_TEMPLATE_INVOKE(device_moves, __VA_ARGS__);           \
  TEST_CASE_TEMPLATE_INVOKE(device_cast, __VA_ARGS__);            \
  TEST_CASE_TEMPLATE_INVOKE(device_scale, __VA_ARGS__);           \
  TEST_CASE_TEMPLATE_INVOKE(device_accumulate, __VA_ARGS__);      \
  TEST_CASE_TEMPLATE_INVOKE(device_sum, __VA_ARGS__);             \
  TEST_CASE_TEMPLATE_INVOKE(device_non_finite, __VA_ARGS__);      \
  TEST_CASE_TEMPLATE_INVOKE(device_arguments, __VA_ARGS__)

#define GRADLANE_DEVICE_ERROR_CONFORMANCE(...)                 \
  TEST_CASE_TEMPLATE_INVOKE(device_sticky_error, __VA_ARGS__); \
  TEST_CASE_TEMPLATE_INVOKE(device_inherited_error, __VA_ARGS__)

// SPDX-License-Identifier: Apache-2.0
#pragma once

// What every communicator must do, as test cases over a fixture `Ranks`:
//   Ranks::run(f)           calls f(communicator&, device&) on every rank of a fresh group, or of
//                           several groups of different sizes one after the other
//   Ranks::nodes(size)      how many nodes that many ranks share
//   Ranks::delay(d, s, us)  enqueues work that takes about that many microseconds
//   Ranks::divides_late     averages are divided once, after the sum
//   Ranks::max_keeps_nan    the maximum of NaN and a number is NaN
// A test file says TEST_CASE_TEMPLATE_INVOKE(communicator_all_reduce, fixture…) for each, or
// GRADLANE_COMMUNICATOR_CONFORMANCE(fixture…) for all.

#include <gradlane/buffer_view.hpp>         // for buffer_view
#include <gradlane/concepts.hpp>            // for device, no_deadline
#include <gradlane/detail/collective.hpp>   // for reduces, sum_of
#include <gradlane/detail/host_device.hpp>  // for GRADLANE_HOST_DEVICE
#include <gradlane/detail/mixed.hpp>        // for mixed
#include <gradlane/error.hpp>               // for contract_error, communication_error
#include <gradlane/types.hpp>               // for bf16, element, fp16, reduction

#include <doctest/doctest.h>

#include <algorithm>    // for copy, max, min
#include <array>        // for array
#include <bit>          // for has_single_bit
#include <chrono>       // for milliseconds
#include <cmath>        // for abs, isnan
#include <cstddef>      // for size_t
#include <cstdint>      // for int32_t, int64_t, uint64_t, uint8_t
#include <cstring>      // for memcmp
#include <limits>       // for numeric_limits
#include <span>         // for as_bytes, as_writable_bytes, span
#include <string_view>  // for string_view
#include <thread>       // for sleep_for
#include <type_traits>  // for is_same_v, remove_reference_t, type_identity
#include <vector>       // for vector

namespace gradlane::test {

inline constexpr auto counts     = std::array<std::size_t, 5>{0, 1, 3, 17, 1009};
inline constexpr auto reductions = std::array{reduction::sum, reduction::average, reduction::max};

template <class F>
void for_each_dtype(F f) {
  f(std::type_identity<float>{});
  f(std::type_identity<double>{});
  f(std::type_identity<bf16>{});
  f(std::type_identity<fp16>{});
  f(std::type_identity<std::uint8_t>{});
  f(std::type_identity<std::int32_t>{});
  f(std::type_identity<std::uint32_t>{});
  f(std::type_identity<std::int64_t>{});
  f(std::type_identity<std::uint64_t>{});
}

template <class T>
[[nodiscard]] double number(T value) {
  if constexpr (std::is_same_v<T, bf16> || std::is_same_v<T, fp16>) {
    return static_cast<double>(static_cast<float>(value));
  } else {
    return static_cast<double>(value);
  }
}

/// Half of the distance from 1 to the next value.
template <class T>
inline constexpr double unit_roundoff = std::is_same_v<T, double>  ? 0x1p-53
                                        : std::is_same_v<T, float> ? 0x1p-24
                                        : std::is_same_v<T, fp16>  ? 0x1p-11
                                                                   : 0x1p-8;

/// An integer from 0 to 10: up to 7 of them add up exactly in every dtype.
[[nodiscard]] inline double small_integer(int rank, std::size_t i) {
  return static_cast<double>((static_cast<std::size_t>(rank) * 7 + i * 3) % 11);
}

/// Between -1 and 1, a pure function of its arguments.
[[nodiscard]] inline double fraction(int rank, std::size_t i) {
  auto const bits = gradlane::detail::mixed((static_cast<std::uint64_t>(rank) << 32U) + i);
  return static_cast<double>(static_cast<std::int64_t>(bits)) * 0x1p-63;
}

template <class T, class F>
[[nodiscard]] std::vector<T> filled(std::size_t n, F value) {
  auto made = std::vector<T>(n);
  for (std::size_t i = 0; i < n; ++i) { made[i] = static_cast<T>(value(i)); }
  return made;
}

/// How many elements are not exactly what they should be.
template <class T, class F>
[[nodiscard]] std::size_t wrong(std::span<T const> got, F expected) {
  auto n = std::size_t{0};
  for (std::size_t i = 0; i < got.size(); ++i) { n += number(got[i]) == expected(i) ? 0U : 1U; }
  return n;
}
template <class T, class F>
[[nodiscard]] std::size_t wrong(std::vector<T> const& got, F expected) {
  return wrong(std::span<T const>{got}, expected);
}

/// The exact reduction of small_integer, where T holds it: else (average) rounded to T.
template <class T>
[[nodiscard]] double reduced_integer(reduction op, int size, std::size_t i) {
  auto sum      = 0.0;
  auto greatest = 0.0;
  for (int r = 0; r < size; ++r) {
    sum += small_integer(r, i);
    greatest = std::max(greatest, small_integer(r, i));
  }
  if (op == reduction::max) { return greatest; }
  return op == reduction::sum ? sum : number(static_cast<T>(sum / size));
}

/// Whether an average of small integers is exact, or rounded once.
template <class Ranks, class T>
[[nodiscard]] bool is_exact(reduction op, int size) {
  if (op != reduction::average || size == 1 || size == 2) { return true; }
  // bf16 may have been rounded before and after the division
  return sizeof(T) > 2 && (Ranks::divides_late || std::has_single_bit(static_cast<unsigned>(size)));
}

/// An array in device memory. What is done with it on `stream` comes in order.
template <class Device, element T>
class placed {
 public:
  placed(Device& on, typename Device::stream& stream, std::vector<T> const& values)
      : device_{on}, stream_{stream}, count_{values.size()}, memory_{on.allocate(size_bytes())} {
    constexpr auto most = std::size_t{65536};  // of an upload
    auto const bytes    = std::as_bytes(std::span{values});
    for (std::size_t at = 0; at < bytes.size(); at += most) {
      auto const part = bytes.subspan(at, std::min(most, bytes.size() - at));
      device_.upload(stream_, part, {memory_.data() + at, part.size(), dtype::uint8});
    }
    device_.sync(stream_);
  }

  [[nodiscard]] std::size_t size() const { return count_; }
  [[nodiscard]] T* data() const { return reinterpret_cast<T*>(memory_.data()); }
  [[nodiscard]] buffer_view view() const { return {memory_.data(), count_, dtype_of<T>}; }
  operator buffer_view() const { return view(); }
  operator const_buffer_view() const { return view(); }

  [[nodiscard]] buffer_view part(std::size_t begin, std::size_t n) const {
    return view().subview(begin, n);
  }

  /// Its elements now; waits for the stream.
  [[nodiscard]] std::vector<T> values() {
    auto result = std::vector<T>(count_);
    device_.download(stream_, view(), std::as_writable_bytes(std::span{result}));
    device_.sync(stream_);
    return result;
  }

 private:
  [[nodiscard]] std::size_t size_bytes() const { return count_ * sizeof(T); }

  Device& device_;
  typename Device::stream& stream_;
  std::size_t count_;
  mutable typename Device::buffer memory_;
};

template <class Device, class T>
placed(Device&, typename Device::stream&, std::vector<T> const&) -> placed<Device, T>;

/// Host work that takes a while.
struct pause {
  int microseconds;
  void operator()() const { std::this_thread::sleep_for(std::chrono::microseconds{microseconds}); }
};

/// x[i] = value for all elements, on the device.
struct fill {
  float* x;
  std::size_t n;
  float value;
  GRADLANE_HOST_DEVICE void operator()() const {
    for (std::size_t i = 0; i < n; ++i) { x[i] = value; }
  }
};

/// *x += value, on the device.
struct add {
  float* x;
  float value;
  GRADLANE_HOST_DEVICE void operator()() const { *x += value; }
};

/// Part number `own` of equal parts.
template <class Array>
[[nodiscard]] buffer_view part_of(Array const& all, int own, std::size_t n) {
  return all.part(static_cast<std::size_t>(own) * n, n);
}

/// All ranks hold the same bytes.
template <class Communicator, class Device, class T>
[[nodiscard]] bool same_on_all(Communicator& c, Device& d, std::vector<T> const& x) {
  auto s    = d.make_stream(stream_priority::normal);
  auto mine = std::vector<std::uint8_t>(x.size() * sizeof(T));
  std::memcpy(mine.data(), x.data(), mine.size());
  auto const ranks = static_cast<std::size_t>(c.size());
  auto const in    = placed{d, s, mine};
  auto out         = placed{d, s, std::vector<std::uint8_t>(mine.size() * ranks)};
  c.all_gather(s, in, out);
  auto const all = out.values();
  auto equal     = true;
  for (std::size_t r = 0; r < ranks; ++r) {
    equal = equal && std::memcmp(all.data() + r * mine.size(), mine.data(), mine.size()) == 0;
  }
  return equal;
}

/// Whether f throws an E whose text contains `what`.
template <class E, class F>
[[nodiscard]] bool throws(F f, std::string_view what = {}) {
  try {
    f();
  } catch (E const& e) {
    auto const found = std::string_view{e.what()}.find(what) != std::string_view::npos;
    if (!found) { MESSAGE("unexpected text: " << e.what()); }
    return found;
  }
  return false;
}

}  // namespace gradlane::test

TEST_CASE_TEMPLATE_DEFINE("a communicator reduces every dtype exactly where the values allow it",
                          Ranks,
                          communicator_all_reduce) {
  using namespace gradlane;
  Ranks::run([](auto& c, auto& d) {
    auto s = d.make_stream(stream_priority::high);
    test::for_each_dtype([&]<class T>(std::type_identity<T>) {
      for (auto const op : test::reductions) {
        CHECK(c.supports(op, dtype_of<T>) == detail::reduces(op, dtype_of<T>));
        if (!c.supports(op, dtype_of<T>)) { continue; }
        for (auto const n : test::counts) {
          auto const value = [&](std::size_t i) { return test::small_integer(c.rank(), i); };
          auto x           = test::placed{d, s, test::filled<T>(n, value)};
          auto in_place    = test::placed{d, s, test::filled<T>(n, value)};
          auto out         = test::placed{d, s, std::vector<T>(n)};
          c.all_reduce(s, x, out, op);
          c.all_reduce(s, in_place, in_place, op);
          auto const got      = out.values();
          auto const expected = [&](std::size_t i) {
            return test::reduced_integer<T>(op, c.size(), i);
          };
          if (test::is_exact<Ranks, T>(op, c.size())) { CHECK(test::wrong(got, expected) == 0); }
          CHECK(test::wrong(in_place.values(),
                            [&](std::size_t i) { return test::number(got[i]); }) == 0);
          CHECK(test::wrong(x.values(), value) == 0);
        }
      }
    });
  });
}

TEST_CASE_TEMPLATE_DEFINE("a communicator rounds as stated, and to the same bits on all ranks",
                          Ranks,
                          communicator_rounding) {
  using namespace gradlane;
  Ranks::run([](auto& c, auto& d) {
    auto s                  = d.make_stream(stream_priority::high);
    constexpr std::size_t n = 1009;
    test::for_each_dtype([&]<class T>(std::type_identity<T>) {
      if constexpr (floating_element<T>) {
        auto const value = [](int rank, std::size_t i) {
          return test::number(static_cast<T>(test::fraction(rank, i)));
        };
        for (auto const op : {reduction::sum, reduction::average}) {
          auto const own = [&](std::size_t i) { return value(c.rank(), i); };
          auto placed    = test::placed{d, s, test::filled<T>(n, own)};
          c.all_reduce(s, placed, placed, op);
          auto const x = placed.values();
          auto outside = 0;
          for (std::size_t i = 0; i < n; ++i) {
            auto sum       = 0.0;
            auto magnitude = 0.0;
            for (int r = 0; r < c.size(); ++r) {
              sum += value(r, i);
              magnitude += std::abs(value(r, i));
            }
            // W-1 additions and a division (or one of each input), each off by at most u times
            // Σ|x|; fp16 is subnormal below 2^-14, where each is off by at most 2^-25.
            auto const size  = static_cast<double>(c.size());
            auto const parts = op == reduction::average ? size : 1.0;
            auto const bound =
                (size + 1) * (1.1 * test::unit_roundoff<T> * magnitude + 0x1p-25) / parts;
            auto const fine = std::is_same_v<T, fp16>
                                  ? bound
                                  : (size + 1) * 1.1 * test::unit_roundoff<T> * magnitude / parts;
            if (!(std::abs(test::number(x[i]) - sum / parts) <= fine)) { ++outside; }
          }
          CHECK(outside == 0);
          CHECK(test::same_on_all(c, d, x));
        }
      }
    });
  });
}

TEST_CASE_TEMPLATE_DEFINE("a communicator carries Inf and NaN of one rank to all",
                          Ranks,
                          communicator_non_finite) {
  using namespace gradlane;
  Ranks::run([](auto& c, auto& d) {
    auto s = d.make_stream(stream_priority::high);
    test::for_each_dtype([&]<class T>(std::type_identity<T>) {
      if constexpr (floating_element<T>) {
        for (auto const op : test::reductions) {
          for (int bad = 0; bad < c.size(); ++bad) {
            auto own = test::filled<T>(4, [](std::size_t i) { return static_cast<double>(i); });
            if (c.rank() == bad) {
              own[1] = static_cast<T>(std::numeric_limits<double>::infinity());
              own[2] = static_cast<T>(std::numeric_limits<double>::quiet_NaN());
            }
            auto placed = test::placed{d, s, own};
            c.all_reduce(s, placed, placed, op);
            auto const x = placed.values();
            CHECK(test::number(x[0]) == 0.0);
            CHECK(test::number(x[1]) == std::numeric_limits<double>::infinity());
            if (op != reduction::max || Ranks::max_keeps_nan) {
              CHECK(std::isnan(test::number(x[2])));
            }
          }
        }
      }
    });
  });
}

TEST_CASE_TEMPLATE_DEFINE("a communicator scatters what it reduces",
                          Ranks,
                          communicator_reduce_scatter) {
  using namespace gradlane;
  Ranks::run([](auto& c, auto& d) {
    auto s = d.make_stream(stream_priority::high);
    test::for_each_dtype([&]<class T>(std::type_identity<T>) {
      for (auto const op : test::reductions) {
        if (!c.supports(op, dtype_of<T>)) { continue; }
        for (auto const n : test::counts) {
          auto const total = n * static_cast<std::size_t>(c.size());
          auto const first = n * static_cast<std::size_t>(c.rank());
          auto const value = [&](std::size_t i) { return test::small_integer(c.rank(), i); };
          auto x           = test::placed{d, s, test::filled<T>(total, value)};
          auto in_place    = test::placed{d, s, test::filled<T>(total, value)};
          auto out         = test::placed{d, s, std::vector<T>(n)};
          c.reduce_scatter(s, x, out, op);
          c.reduce_scatter(s, in_place, test::part_of(in_place, c.rank(), n), op);
          auto const got      = out.values();
          auto const all      = in_place.values();
          auto const expected = [&](std::size_t i) {
            return test::reduced_integer<T>(op, c.size(), first + i);
          };
          if (test::is_exact<Ranks, T>(op, c.size())) { CHECK(test::wrong(got, expected) == 0); }
          CHECK(test::wrong(std::span{all}.subspan(first, n),
                            [&](std::size_t i) { return test::number(got[i]); }) == 0);
          CHECK(test::wrong(x.values(), value) == 0);
        }
      }
    });
  });
}

TEST_CASE_TEMPLATE_DEFINE("a communicator gathers equal blocks", Ranks, communicator_all_gather) {
  using namespace gradlane;
  Ranks::run([](auto& c, auto& d) {
    auto s = d.make_stream(stream_priority::high);
    test::for_each_dtype([&]<class T>(std::type_identity<T>) {
      for (auto const n : test::counts) {
        auto const total = n * static_cast<std::size_t>(c.size());
        auto const first = n * static_cast<std::size_t>(c.rank());
        auto const value = [&](std::size_t i) { return test::small_integer(c.rank(), i); };
        auto const x     = test::placed{d, s, test::filled<T>(n, value)};
        auto out         = test::placed{d, s, std::vector<T>(total)};
        auto in_place    = test::placed{d, s, test::filled<T>(total, [&](std::size_t i) {
                                       return i >= first && i < first + n ? value(i - first) : 0;
                                     })};
        c.all_gather(s, x, out);
        c.all_gather(s, test::part_of(in_place, c.rank(), n), in_place);
        auto const expected = [&](std::size_t i) {
          return test::small_integer(static_cast<int>(i / n), i % n);
        };
        CHECK(test::wrong(out.values(), expected) == 0);
        CHECK(test::wrong(in_place.values(), expected) == 0);
      }
    });
  });
}

TEST_CASE_TEMPLATE_DEFINE("a communicator gathers blocks of any size, empty ones too",
                          Ranks,
                          communicator_all_gather_v) {
  using namespace gradlane;
  Ranks::run([](auto& c, auto& d) {
    auto s           = d.make_stream(stream_priority::high);
    auto const ranks = static_cast<std::size_t>(c.size());
    for (auto const shift : {std::size_t{0}, std::size_t{1}, std::size_t{2}}) {
      auto sizes  = std::vector<std::size_t>(ranks);  // 0, 5, 10, 0, … and none at all for shift 2
      auto begins = std::vector<std::size_t>(ranks + 1);
      for (std::size_t r = 0; r < ranks; ++r) {
        sizes[r]      = shift == 2 ? 0 : ((r + shift) % 3) * 5;
        begins[r + 1] = begins[r] + sizes[r];
      }
      auto const me    = static_cast<std::size_t>(c.rank());
      auto const first = begins[me];
      auto const last  = begins[me + 1];
      test::for_each_dtype([&]<class T>(std::type_identity<T>) {
        auto const value = [&](std::size_t i) { return test::small_integer(c.rank(), i); };
        auto const x     = test::placed{d, s, test::filled<T>(sizes[me], value)};
        auto out         = test::placed{d, s, std::vector<T>(begins[ranks])};
        auto in_place    = test::placed{d, s, test::filled<T>(begins[ranks], [&](std::size_t i) {
                                       return i >= first && i < last ? value(i - first) : 0;
                                     })};
        {
          auto const temporary = sizes;  // the counts need not outlive the call
          c.all_gather_v(s, x, out, temporary);
          c.all_gather_v(s, in_place.part(first, sizes[me]), in_place, temporary);
        }
        auto mistakes = std::size_t{0};
        for (auto const& all : {out.values(), in_place.values()}) {
          for (std::size_t r = 0; r < ranks; ++r) {
            mistakes += test::wrong(
                std::span{all}.subspan(begins[r], sizes[r]),
                [&](std::size_t i) { return test::small_integer(static_cast<int>(r), i); });
          }
        }
        CHECK(mistakes == 0);
      });
    }
  });
}

TEST_CASE_TEMPLATE_DEFINE("a communicator broadcasts from every root",
                          Ranks,
                          communicator_broadcast) {
  using namespace gradlane;
  Ranks::run([](auto& c, auto& d) {
    auto s = d.make_stream(stream_priority::high);
    test::for_each_dtype([&]<class T>(std::type_identity<T>) {
      for (int root = 0; root < c.size(); ++root) {
        for (auto const n : test::counts) {
          auto const value = [&](std::size_t i) { return test::small_integer(c.rank(), i); };
          auto x           = test::placed{d, s, test::filled<T>(n, value)};
          c.broadcast(s, x, root);
          CHECK(test::wrong(x.values(),
                            [&](std::size_t i) { return test::small_integer(root, i); }) == 0);
        }
      }
    });
  });
}

TEST_CASE_TEMPLATE_DEFINE("a communicator exchanges blocks of any size between all pairs",
                          Ranks,
                          communicator_all_to_all_v) {
  using namespace gradlane;
  Ranks::run([](auto& c, auto& d) {
    auto s             = d.make_stream(stream_priority::high);
    auto const ranks   = static_cast<std::size_t>(c.size());
    auto const me      = static_cast<std::size_t>(c.rank());
    auto const between = [](std::size_t from, std::size_t to) { return (from + 2 * to) % 4 * 3; };
    auto const value   = [](std::size_t from, std::size_t to, std::size_t i) {
      return static_cast<double>((from * 5 + to * 3 + i) % 100);
    };
    auto send    = std::vector<std::size_t>(ranks);
    auto receive = std::vector<std::size_t>(ranks);
    for (std::size_t r = 0; r < ranks; ++r) {
      send[r]    = between(me, r);
      receive[r] = between(r, me);
    }
    test::for_each_dtype([&]<class T>(std::type_identity<T>) {
      auto in = std::vector<T>{};
      for (std::size_t r = 0; r < ranks; ++r) {
        for (std::size_t i = 0; i < send[r]; ++i) { in.push_back(static_cast<T>(value(me, r, i))); }
      }
      auto const x = test::placed{d, s, in};
      auto out     = test::placed{d, s, std::vector<T>(detail::sum_of(receive))};
      c.all_to_all_v(s, x, send, out, receive);
      auto const got = out.values();
      auto mistakes  = std::size_t{0};
      for (std::size_t r = 0, at = 0; r < ranks; at += receive[r], ++r) {
        mistakes += test::wrong(std::span{got}.subspan(at, receive[r]),
                                [&](std::size_t i) { return value(r, me, i); });
      }
      CHECK(mistakes == 0);
    });
  });
}

TEST_CASE_TEMPLATE_DEFINE("a communicator delivers messages in order, empty ones too",
                          Ranks,
                          communicator_send_receive) {
  using namespace gradlane;
  Ranks::run([](auto& c, auto& d) {
    auto out_stream = d.make_stream(stream_priority::high);
    auto in_stream  = d.make_stream(stream_priority::high);
    auto const next = (c.rank() + 1) % c.size();
    auto const last = (c.rank() + c.size() - 1) % c.size();
    using array     = test::placed<std::remove_reference_t<decltype(d)>, float>;
    for (auto const n : test::counts) {  // around the ring; for one rank, to itself
      auto const value = [](int rank, int message, std::size_t i) {
        return test::small_integer(rank, i) + 100 * message;
      };
      auto sent     = std::vector<array>{};
      auto received = std::vector<array>{};
      for (int m = 0; m < 3; ++m) {
        sent.emplace_back(d, out_stream, test::filled<float>(n, [&](std::size_t i) {
                            return value(c.rank(), m, i);
                          }));
        received.emplace_back(d, in_stream, std::vector<float>(n));
      }
      for (std::size_t m = 0; m < 3; ++m) {
        c.group([&] {
          c.send(out_stream, sent[m], next);
          c.receive(in_stream, received[m], last);
        });
      }
      d.sync(out_stream);
      for (std::size_t m = 0; m < 3; ++m) {
        CHECK(test::wrong(received[m].values(),
                          [&](std::size_t i) { return value(last, static_cast<int>(m), i); }) == 0);
      }
    }
  });
}

TEST_CASE_TEMPLATE_DEFINE("a communicator starts collectives in host order on any streams",
                          Ranks,
                          communicator_two_streams) {
  using namespace gradlane;
  Ranks::run([](auto& c, auto& d) {
    auto a      = d.make_stream(stream_priority::high);
    auto b      = d.make_stream(stream_priority::normal);
    using array = test::placed<std::remove_reference_t<decltype(d)>, float>;
    auto x      = std::vector<array>{};
    for (std::size_t k = 0; k < 40; ++k) {
      x.emplace_back(d, k % 3 == 0 ? a : b, std::vector<float>(17));
    }
    for (std::size_t k = 0; k < 40; ++k) {
      auto& s = k % 3 == 0 ? a : b;
      // each rank is late elsewhere: the streams reach their collectives in different orders
      auto const late = (k + static_cast<std::size_t>(c.rank())) % 5 == 0;
      auto const add  = static_cast<float>(c.rank()) + static_cast<float>(k);
      if (late) { Ranks::delay(d, s, 300); }
      d.invoke(s, test::fill{x[k].data(), x[k].size(), add});
      c.all_reduce(s, x[k], x[k], reduction::sum);
    }
    d.sync(a);
    d.sync(b);
    auto const ranks = c.size();
    for (std::size_t k = 0; k < 40; ++k) {
      auto const sum = ranks * (ranks - 1) / 2 + ranks * static_cast<int>(k);
      CHECK(test::wrong(x[k].values(), [&](std::size_t) { return static_cast<double>(sum); }) == 0);
    }
  });
}

TEST_CASE_TEMPLATE_DEFINE("a communicator sees what the stream wrote before the collective",
                          Ranks,
                          communicator_stream_order) {
  using namespace gradlane;
  Ranks::run([](auto& c, auto& d) {
    auto s      = d.make_stream(stream_priority::high);
    auto x      = test::placed{d, s, std::vector<float>(1009, -1.0F)};
    auto copied = test::placed{d, s, std::vector<float>(1009)};
    Ranks::delay(d, s, 5000);
    d.invoke(s, test::fill{x.data(), x.size(), 1.0F});
    c.all_reduce(s, x, x, reduction::sum);
    d.copy(s, x, copied);
    CHECK(test::wrong(copied.values(),
                      [&](std::size_t) { return static_cast<double>(c.size()); }) == 0);
  });
}

TEST_CASE_TEMPLATE_DEFINE("a communicator splits by color, in the order of keys",
                          Ranks,
                          communicator_split) {
  using namespace gradlane;
  Ranks::run([](auto& c, auto& d) {
    auto s         = d.make_stream(stream_priority::high);
    auto const one = [&](std::int32_t v) { return test::placed{d, s, std::vector{v}}; };
    auto x         = one(1);
    c.all_reduce(s, x, x, reduction::sum);                // may still be under way
    auto part        = c.split(c.rank() % 2, -c.rank());  // ranks reversed
    auto const color = c.rank() % 2;
    auto const ranks = (c.size() + 1 - color) / 2;
    CHECK(part.size() == ranks);
    CHECK(part.rank() == ranks - 1 - c.rank() / 2);
    auto y = one(c.rank());
    part.all_reduce(s, y, y, reduction::sum);
    auto again = part.split(0, part.rank());
    auto z     = one(part.rank() == 0 ? c.rank() : -1);
    again.broadcast(s, z, 0);
    CHECK(x.values()[0] == c.size());
    CHECK(y.values()[0] == ranks * (ranks - 1) + color * ranks);
    CHECK(z.values()[0] == 2 * (ranks - 1) + color);  // the highest rank of this color came first
  });
}

TEST_CASE_TEMPLATE_DEFINE("a communicator groups the ranks of a node",
                          Ranks,
                          communicator_node_group) {
  using namespace gradlane;
  Ranks::run([](auto& c, auto& d) {
    auto s    = d.make_stream(stream_priority::high);
    auto node = c.node_group();
    CHECK(node.size() >= 1);
    CHECK(node.rank() < node.size());
    auto leaders = test::placed{d, s, std::vector<std::int32_t>{node.rank() == 0 ? 1 : 0}};
    auto members = test::placed{d, s, std::vector<std::int32_t>{1}};
    c.all_reduce(s, leaders, leaders, reduction::sum);
    node.all_reduce(s, members, members, reduction::sum);
    CHECK(leaders.values()[0] == Ranks::nodes(c.size()));
    CHECK(members.values()[0] == node.size());
  });
}

TEST_CASE_TEMPLATE_DEFINE("a communicator refuses arguments that cannot be right",
                          Ranks,
                          communicator_arguments) {
  using namespace gradlane;
  Ranks::run([](auto& c, auto& d) {
    auto s           = d.make_stream(stream_priority::high);
    auto const ranks = static_cast<std::size_t>(c.size());
    auto const x     = test::placed{d, s, std::vector<float>(8 * ranks)};
    auto const y     = test::placed{d, s, std::vector<float>(7)};
    auto const z     = test::placed{d, s, std::vector<double>(8 * ranks)};
    auto const i     = test::placed{d, s, std::vector<std::int32_t>(8)};
    auto const ones  = std::vector<std::size_t>(ranks, 1);
    auto const more  = std::vector<std::size_t>(ranks + 1, 0);
    using E          = contract_error;
    CHECK(test::throws<E>([&] { c.all_reduce(s, x, y, reduction::sum); }, "7 fp32"));
    CHECK(test::throws<E>([&] { c.all_reduce(s, x, z, reduction::sum); }, "fp64"));
    CHECK(test::throws<E>([&] { c.all_reduce(s, i, i, reduction::average); }, "average"));
    CHECK(test::throws<E>([&] { c.all_reduce(s, x.part(0, 6), x.part(1, 6), reduction::sum); },
                          "overlap"));
    CHECK(test::throws<E>([&] { c.reduce_scatter(s, x, y, reduction::sum); }));
    CHECK(test::throws<E>([&] { c.all_gather(s, y, x); }));
    CHECK(test::throws<E>([&] { c.all_gather_v(s, x.part(0, 1), y, more); }, "entries"));
    CHECK(test::throws<E>([&] { c.all_gather_v(s, y, x, ones); }, "sum up to"));
    CHECK(test::throws<E>([&] { c.all_to_all_v(s, x, ones, y, ones); }, "sum up to"));
    CHECK(test::throws<E>([&] { c.broadcast(s, x, c.size()); }, "not in a group"));
    CHECK(test::throws<E>([&] { c.send(s, x, -1); }, "not in a group"));
    CHECK(test::throws<E>([&] { c.receive(s, x, c.size()); }, "not in a group"));
    CHECK(test::throws<E>([&] { static_cast<void>(c.split(-1, 0)); }, "color"));
    c.all_reduce(s, x, x, reduction::sum);  // none of these counted as a call
    d.sync(s);
    CHECK(c.collectives() == 1);
  });
}

TEST_CASE_TEMPLATE_DEFINE("a communicator reports a rank that does not come within the deadline",
                          Ranks,
                          communicator_deadline) {
  using namespace gradlane;
  Ranks::run([](auto& c, auto& d) {
    if (c.size() == 1) { return; }
    auto lost = c.split(0, c.rank());
    CHECK(lost.deadline() == no_deadline);
    lost.set_deadline(std::chrono::milliseconds{100});
    CHECK(lost.deadline() == std::chrono::milliseconds{100});
    auto u       = d.make_stream(stream_priority::high);
    auto const x = test::placed{d, u, std::vector<float>(17)};
    if (lost.rank() != lost.size() - 1) {
      auto s = d.make_stream(stream_priority::high);
      lost.all_reduce(s, x, x, reduction::sum);
      CHECK(test::throws<timeout_error>([&] { d.sync(s); }, "all_reduce(sum) of 17 fp32"));
      CHECK(test::throws<timeout_error>([&] { lost.poll(); }, "all_reduce"));
      auto later = d.make_stream(stream_priority::high);
      lost.broadcast(later, x, 0);  // the first error again
      CHECK(test::throws<timeout_error>([&] { d.sync(later); }, "all_reduce(sum) of 17 fp32"));
    }
    auto s   = d.make_stream(stream_priority::high);
    auto all = test::placed{d, s, std::vector<float>{1}};
    c.all_reduce(s, all, all, reduction::sum);  // others are not concerned
    CHECK(all.values()[0] == static_cast<float>(c.size()));
    lost.abort();
  });
}

TEST_CASE_TEMPLATE_DEFINE("a communicator's failure reaches the streams that wait for it",
                          Ranks,
                          communicator_failure_follows) {
  using namespace gradlane;
  Ranks::run([](auto& c, auto& d) {
    if (c.size() == 1) { return; }
    auto lost = c.split(0, c.rank());
    lost.set_deadline(std::chrono::milliseconds{100});
    auto s       = d.make_stream(stream_priority::high);
    auto waiting = d.make_stream(stream_priority::high);
    auto before  = d.make_event();
    auto after   = d.make_event();
    auto const x = test::placed{d, s, std::vector<float>(17)};
    if (lost.rank() != lost.size() - 1) {
      d.record(before, s);
      lost.all_reduce(s, x, x, reduction::sum);
      d.record(after, s);
      d.wait(waiting, after);
      CHECK(test::throws<timeout_error>([&] { d.sync(waiting); }, "all_reduce(sum) of 17 fp32"));
      CHECK(test::throws<timeout_error>([&] { d.sync(after, no_deadline); }, "all_reduce"));
      d.sync(before, no_deadline);
    }
    auto t   = d.make_stream(stream_priority::high);
    auto all = test::placed{d, t, std::vector<float>{1}};
    c.all_reduce(t, all, all, reduction::sum);  // all have been here before one aborts
    d.sync(t);
    lost.abort();
  });
}

TEST_CASE_TEMPLATE_DEFINE("a communicator stays aborted, however often it is aborted",
                          Ranks,
                          communicator_abort) {
  using namespace gradlane;
  Ranks::run([](auto& c, auto& d) {
    auto gone = c.split(0, c.rank());
    gone.poll();
    auto t   = d.make_stream(stream_priority::high);
    auto all = test::placed{d, t, std::vector<float>{1}};
    c.all_reduce(t, all, all, reduction::sum);  // all have polled
    d.sync(t);
    gone.abort();
    gone.abort();
    CHECK(test::throws<aborted_error>([&] { gone.poll(); }));
    auto s = d.make_stream(stream_priority::high);
    auto x = test::placed{d, t, std::vector<float>(17)};
    gone.all_reduce(s, x, x, reduction::sum);
    CHECK(test::throws<aborted_error>([&] { d.sync(s); }));
    CHECK(test::throws<aborted_error>([&] { static_cast<void>(gone.split(0, 0)); }));
    gone.abort();
  });
}

// The one macro of this file: all of the above for the given fixtures.
#define GRADLANE_COMMUNICATOR_CONFORMANCE(...)                          \
  TEST_CASE_TEMPLATE_INVOKE(communicator_all_reduce, __VA_ARGS__);      \
  TEST_CASE_TEMPLATE_INVOKE(communicator_rounding, __VA_ARGS__);        \
  TEST_CASE_TEMPLATE_INVOKE(communicator_non_finite, __VA_ARGS__);      \
  TEST_CASE_TEMPLATE_INVOKE(communicator_reduce_scatter, __VA_ARGS__);  \
  TEST_CASE_TEMPLATE_INVOKE(communicator_all_gather, __VA_ARGS__);      \
  TEST_CASE_TEMPLATE_INVOKE(communicator_all_gather_v, __VA_ARGS__);    \
  TEST_CASE_TEMPLATE_INVOKE(communicator_broadcast, __VA_ARGS__);       \
  TEST_CASE_TEMPLATE_INVOKE(communicator_all_to_all_v, __VA_ARGS__);    \
  TEST_CASE_TEMPLATE_INVOKE(communicator_send_receive, __VA_ARGS__);    \
  TEST_CASE_TEMPLATE_INVOKE(communicator_two_streams, __VA_ARGS__);     \
  TEST_CASE_TEMPLATE_INVOKE(communicator_stream_order, __VA_ARGS__);    \
  TEST_CASE_TEMPLATE_INVOKE(communicator_split, __VA_ARGS__);           \
  TEST_CASE_TEMPLATE_INVOKE(communicator_node_group, __VA_ARGS__);      \
  TEST_CASE_TEMPLATE_INVOKE(communicator_arguments, __VA_ARGS__);       \
  TEST_CASE_TEMPLATE_INVOKE(communicator_deadline, __VA_ARGS__);        \
  TEST_CASE_TEMPLATE_INVOKE(communicator_failure_follows, __VA_ARGS__); \
  TEST_CASE_TEMPLATE_INVOKE(communicator_abort, __VA_ARGS__)

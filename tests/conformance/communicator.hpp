// SPDX-License-Identifier: Apache-2.0
#pragma once

// What every communicator must do, as test cases over a fixture `Ranks`:
//   Ranks::run(f)       calls f(communicator&, device&) on every rank of a fresh group, or of
//                       several groups of different sizes one after the other
//   Ranks::nodes(size)  how many nodes that many ranks share
//   Ranks::cuts()       whether buffers are cut into many pieces, whose number a call learns slowly
// A test file says TEST_CASE_TEMPLATE_INVOKE(communicator_all_reduce, fixture…) for each, or
// GRADLANE_COMMUNICATOR_CONFORMANCE(fixture…) for all.

#include <gradlane/buffer_view.hpp>        // for buffer_view
#include <gradlane/detail/collective.hpp>  // for reduces
#include <gradlane/error.hpp>              // for contract_error, communication_error
#include <gradlane/types.hpp>              // for bf16, fp16, reduction

#include <doctest/doctest.h>

#include <support/alloc_count.hpp>  // for allocations

#include <algorithm>    // for max
#include <array>        // for array
#include <chrono>       // for milliseconds
#include <cmath>        // for abs, isnan
#include <cstddef>      // for size_t
#include <cstdint>      // for uint64_t
#include <cstring>      // for memcmp
#include <limits>       // for numeric_limits
#include <span>         // for span
#include <string_view>  // for string_view
#include <type_traits>  // for type_identity, is_same_v
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
  auto x = (static_cast<std::uint64_t>(rank) << 32U) + i + 0x9E3779B97F4A7C15U;
  x      = (x ^ (x >> 30U)) * 0xBF58476D1CE4E5B9U;
  x      = (x ^ (x >> 27U)) * 0x94D049BB133111EBU;
  return static_cast<double>(static_cast<std::int64_t>(x ^ (x >> 31U))) * 0x1p-63;
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

/// The ranks at `own` in a buffer of `size` equal parts.
template <class T>
[[nodiscard]] std::span<T> part_of(std::vector<T>& all, int own, std::size_t n) {
  return std::span{all}.subspan(static_cast<std::size_t>(own) * n, n);
}

/// All ranks hold the same bytes.
template <class Communicator, class Device, class T>
[[nodiscard]] bool same_on_all(Communicator& c, Device& d, std::vector<T> const& x) {
  auto s    = d.make_stream(stream_priority::normal);
  auto mine = std::vector<std::uint8_t>(x.size() * sizeof(T));
  std::memcpy(mine.data(), x.data(), mine.size());
  auto all = std::vector<std::uint8_t>(mine.size() * static_cast<std::size_t>(c.size()));
  c.all_gather(s, std::span{mine}, std::span{all});
  d.sync(s);
  auto equal = true;
  for (int r = 0; r < c.size(); ++r) {
    auto const theirs = part_of(all, r, mine.size());
    equal             = equal && std::memcmp(theirs.data(), mine.data(), mine.size()) == 0;
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
          auto const x     = test::filled<T>(n, value);
          auto in_place    = x;
          auto out         = std::vector<T>(n);
          c.all_reduce(s, std::span{x}, std::span{out}, op);
          c.all_reduce(s, std::span{in_place}, std::span{in_place}, op);
          d.sync(s);
          auto const expected = [&](std::size_t i) {
            return test::reduced_integer<T>(op, c.size(), i);
          };
          // bf16 of an average may have been rounded before and after the division
          auto const exact = op != reduction::average || c.size() <= 2;
          if (exact || sizeof(T) > 2) { CHECK(test::wrong(out, expected) == 0); }
          CHECK(test::wrong(in_place, [&](std::size_t i) { return test::number(out[i]); }) == 0);
          CHECK(test::wrong(x, value) == 0);
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
          auto x = test::filled<T>(n, [&](std::size_t i) { return value(c.rank(), i); });
          c.all_reduce(s, std::span{x}, std::span{x}, op);
          d.sync(s);
          auto outside = 0;
          for (std::size_t i = 0; i < n; ++i) {
            auto sum       = 0.0;
            auto magnitude = 0.0;
            for (int r = 0; r < c.size(); ++r) {
              sum += value(r, i);
              magnitude += std::abs(value(r, i));
            }
            // W-1 additions and a division, each off by at most u times Σ|x|; fp16 is subnormal
            // below 2^-14, where each is off by at most 2^-25.
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
            auto x = test::filled<T>(4, [](std::size_t i) { return static_cast<double>(i); });
            if (c.rank() == bad) {
              x[1] = static_cast<T>(std::numeric_limits<double>::infinity());
              x[2] = static_cast<T>(std::numeric_limits<double>::quiet_NaN());
            }
            c.all_reduce(s, std::span{x}, std::span{x}, op);
            d.sync(s);
            CHECK(test::number(x[0]) == 0.0);
            CHECK(test::number(x[1]) == std::numeric_limits<double>::infinity());
            CHECK(std::isnan(test::number(x[2])));
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
          auto const x     = test::filled<T>(total, value);
          auto in_place    = x;
          auto const own   = test::part_of(in_place, c.rank(), n);
          auto out         = std::vector<T>(n);
          c.reduce_scatter(s, std::span{x}, std::span{out}, op);
          c.reduce_scatter(s, std::span{in_place}, own, op);
          d.sync(s);
          auto const expected = [&](std::size_t i) {
            return test::reduced_integer<T>(op, c.size(), first + i);
          };
          auto const exact = op != reduction::average || c.size() <= 2;
          if (exact || sizeof(T) > 2) { CHECK(test::wrong(out, expected) == 0); }
          CHECK(test::wrong(std::span<T const>{own},
                            [&](std::size_t i) { return test::number(out[i]); }) == 0);
          CHECK(test::wrong(x, value) == 0);
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
        auto const value = [&](std::size_t i) { return test::small_integer(c.rank(), i); };
        auto const x     = test::filled<T>(n, value);
        auto out         = std::vector<T>(total);
        auto in_place    = std::vector<T>(total);
        auto const own   = test::part_of(in_place, c.rank(), n);
        std::copy(x.begin(), x.end(), own.begin());
        c.all_gather(s, std::span{x}, std::span{out});
        c.all_gather(s, own, std::span{in_place});
        d.sync(s);
        auto const expected = [&](std::size_t i) {
          return test::small_integer(static_cast<int>(i / n), i % n);
        };
        CHECK(test::wrong(out, expected) == 0);
        CHECK(test::wrong(in_place, expected) == 0);
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
      auto const me = static_cast<std::size_t>(c.rank());
      test::for_each_dtype([&]<class T>(std::type_identity<T>) {
        auto const x = test::filled<T>(
            sizes[me], [&](std::size_t i) { return test::small_integer(c.rank(), i); });
        auto out       = std::vector<T>(begins[ranks]);
        auto in_place  = std::vector<T>(begins[ranks]);
        auto const own = std::span{in_place}.subspan(begins[me], sizes[me]);
        std::copy(x.begin(), x.end(), own.begin());
        {
          auto const temporary = sizes;  // the counts need not outlive the call
          c.all_gather_v(s, std::span{x}, std::span{out}, temporary);
          c.all_gather_v(s, own, std::span{in_place}, temporary);
        }
        d.sync(s);
        auto mistakes = std::size_t{0};
        for (std::size_t r = 0; r < ranks; ++r) {
          auto const expected = [&](std::size_t i) {
            return test::small_integer(static_cast<int>(r), i);
          };
          auto const block = [&](std::vector<T> const& all) {
            return std::span{all}.subspan(begins[r], sizes[r]);
          };
          mistakes += test::wrong(block(out), expected) + test::wrong(block(in_place), expected);
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
          auto x =
              test::filled<T>(n, [&](std::size_t i) { return test::small_integer(c.rank(), i); });
          c.broadcast(s, std::span{x}, root);
          d.sync(s);
          CHECK(test::wrong(x, [&](std::size_t i) { return test::small_integer(root, i); }) == 0);
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
      auto in  = std::vector<T>{};
      auto out = std::vector<T>(detail::sum_of(receive));
      for (std::size_t r = 0; r < ranks; ++r) {
        for (std::size_t i = 0; i < send[r]; ++i) { in.push_back(static_cast<T>(value(me, r, i))); }
      }
      c.all_to_all_v(s, std::span{in}, send, std::span{out}, receive);
      d.sync(s);
      auto mistakes = std::size_t{0};
      for (std::size_t r = 0, at = 0; r < ranks; at += receive[r], ++r) {
        mistakes += test::wrong(std::span<T const>{out}.subspan(at, receive[r]),
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
    for (auto const n : test::counts) {  // around the ring; for one rank, to itself
      auto const value = [](int rank, int message, std::size_t i) {
        return test::small_integer(rank, i) + 100 * message;
      };
      auto sent     = std::vector<std::vector<float>>(3);
      auto received = std::vector<std::vector<float>>(3);
      for (int m = 0; m < 3; ++m) {
        auto const at = static_cast<std::size_t>(m);
        sent[at] = test::filled<float>(n, [&](std::size_t i) { return value(c.rank(), m, i); });
        received[at].resize(n);
        c.send(out_stream, std::span{sent[at]}, next);
        c.receive(in_stream, std::span{received[at]}, last);
      }
      d.sync(out_stream);
      d.sync(in_stream);
      for (int m = 0; m < 3; ++m) {
        CHECK(test::wrong(received[static_cast<std::size_t>(m)],
                          [&](std::size_t i) { return value(last, m, i); }) == 0);
      }
    }
  });
}

TEST_CASE_TEMPLATE_DEFINE("a communicator starts collectives in host order on any streams",
                          Ranks,
                          communicator_two_streams) {
  using namespace gradlane;
  Ranks::run([](auto& c, auto& d) {
    auto a = d.make_stream(stream_priority::high);
    auto b = d.make_stream(stream_priority::normal);
    auto x = std::vector<std::vector<float>>{};
    for (std::size_t k = 0; k < 40; ++k) { x.emplace_back(std::size_t{17}); }
    for (std::size_t k = 0; k < 40; ++k) {
      auto& s = k % 3 == 0 ? a : b;
      // each rank is late elsewhere: the streams reach their collectives in different orders
      auto const late = (k + static_cast<std::size_t>(c.rank())) % 5 == 0;
      auto const view = std::span{x[k]};
      auto const add  = static_cast<float>(c.rank()) + static_cast<float>(k);
      d.invoke(s, [view, add, late] {
        if (late) { std::this_thread::sleep_for(std::chrono::microseconds{300}); }
        for (auto& v : view) { v = add; }
      });
      c.all_reduce(s, view, view, reduction::sum);
    }
    d.sync(a);
    d.sync(b);
    auto const ranks = c.size();
    for (std::size_t k = 0; k < 40; ++k) {
      auto const sum = ranks * (ranks - 1) / 2 + ranks * static_cast<int>(k);
      CHECK(test::wrong(x[k], [&](std::size_t) { return static_cast<double>(sum); }) == 0);
    }
  });
}

TEST_CASE_TEMPLATE_DEFINE("a communicator sees what the stream wrote before the collective",
                          Ranks,
                          communicator_stream_order) {
  using namespace gradlane;
  Ranks::run([](auto& c, auto& d) {
    auto s          = d.make_stream(stream_priority::high);
    auto x          = std::vector<double>(1009, -1.0);
    auto copied     = std::vector<double>(1009);
    auto const view = std::span{x};
    d.invoke(s, [view] {
      auto const until = std::chrono::steady_clock::now() + std::chrono::milliseconds{5};
      while (std::chrono::steady_clock::now() < until) {}
      for (auto& v : view) { v = 1.0; }
    });
    c.all_reduce(s, view, view, reduction::sum);
    d.copy(s, view, std::span{copied});
    d.sync(s);
    CHECK(test::wrong(copied, [&](std::size_t) { return static_cast<double>(c.size()); }) == 0);
  });
}

TEST_CASE_TEMPLATE_DEFINE("a communicator splits by color, in the order of keys",
                          Ranks,
                          communicator_split) {
  using namespace gradlane;
  Ranks::run([](auto& c, auto& d) {
    auto s = d.make_stream(stream_priority::high);
    auto x = std::vector<std::int32_t>{1};
    c.all_reduce(s, std::span{x}, std::span{x}, reduction::sum);  // may still be under way
    auto half        = c.split(c.rank() % 2, -c.rank());          // ranks reversed
    auto const color = c.rank() % 2;
    auto const ranks = (c.size() + 1 - color) / 2;
    CHECK(half.size() == ranks);
    CHECK(half.rank() == ranks - 1 - c.rank() / 2);
    auto y = std::vector<std::int32_t>{c.rank()};
    half.all_reduce(s, std::span{y}, std::span{y}, reduction::sum);
    auto again = half.split(0, half.rank());
    auto z     = std::vector<std::int32_t>{half.rank() == 0 ? c.rank() : -1};
    again.broadcast(s, std::span{z}, 0);
    d.sync(s);
    CHECK(x[0] == c.size());
    CHECK(y[0] == ranks * (ranks - 1) + color * ranks);
    CHECK(z[0] == 2 * (ranks - 1) + color);  // the highest rank of this color came first
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
    auto leaders = std::vector<std::int32_t>{node.rank() == 0 ? 1 : 0};
    auto members = std::vector<std::int32_t>{1};
    c.all_reduce(s, std::span{leaders}, std::span{leaders}, reduction::sum);
    node.all_reduce(s, std::span{members}, std::span{members}, reduction::sum);
    d.sync(s);
    CHECK(leaders[0] == Ranks::nodes(c.size()));
    CHECK(members[0] == node.size());
  });
}

TEST_CASE_TEMPLATE_DEFINE("a communicator refuses arguments that cannot be right",
                          Ranks,
                          communicator_arguments) {
  using namespace gradlane;
  Ranks::run([](auto& c, auto& d) {
    auto s           = d.make_stream(stream_priority::high);
    auto const ranks = static_cast<std::size_t>(c.size());
    auto x           = std::vector<float>(8 * ranks);
    auto y           = std::vector<float>(7);
    auto z           = std::vector<double>(8 * ranks);
    auto i           = std::vector<std::int32_t>(8);
    auto const xs    = std::span{x};
    auto const ones  = std::vector<std::size_t>(ranks, 1);
    auto const more  = std::vector<std::size_t>(ranks + 1, 0);
    using E          = contract_error;
    CHECK(test::throws<E>([&] { c.all_reduce(s, xs, std::span{y}, reduction::sum); }, "7 fp32"));
    CHECK(test::throws<E>([&] { c.all_reduce(s, xs, std::span{z}, reduction::sum); }, "fp64"));
    CHECK(test::throws<E>([&] { c.all_reduce(s, std::span{i}, std::span{i}, reduction::average); },
                          "average"));
    CHECK(test::throws<E>([&] { c.all_reduce(s, xs.first(6), xs.subspan(1, 6), reduction::sum); },
                          "overlap"));
    CHECK(test::throws<E>([&] { c.reduce_scatter(s, xs, std::span{y}, reduction::sum); }));
    CHECK(test::throws<E>([&] { c.all_gather(s, std::span{y}, xs); }));
    CHECK(test::throws<E>([&] { c.all_gather_v(s, xs.first(1), std::span{y}, more); }, "entries"));
    CHECK(test::throws<E>([&] { c.all_gather_v(s, std::span{y}, xs, ones); }, "sum up to"));
    CHECK(test::throws<E>([&] { c.all_to_all_v(s, xs, ones, std::span{y}, ones); }, "sum up to"));
    CHECK(test::throws<E>([&] { c.broadcast(s, xs, c.size()); }, "not in a group"));
    CHECK(test::throws<E>([&] { c.send(s, xs, -1); }, "not in a group"));
    CHECK(test::throws<E>([&] { c.receive(s, xs, c.size()); }, "not in a group"));
    CHECK(test::throws<E>([&] { static_cast<void>(c.split(-1, 0)); }, "color"));
    c.all_reduce(s, xs, xs, reduction::sum);  // none of these counted as a call
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
    lost.set_deadline(std::chrono::milliseconds{100});
    auto x = std::vector<float>(17);
    if (lost.rank() != lost.size() - 1) {
      auto s = d.make_stream(stream_priority::high);
      lost.all_reduce(s, std::span{x}, std::span{x}, reduction::sum);
      CHECK(test::throws<timeout_error>([&] { d.sync(s); }, "all_reduce(sum) of 17 fp32"));
      CHECK(test::throws<timeout_error>([&] { lost.poll(); }, "all_reduce"));
      auto later = d.make_stream(stream_priority::high);
      lost.broadcast(later, std::span{x}, 0);  // the first error again
      CHECK(test::throws<timeout_error>([&] { d.sync(later); }, "all_reduce(sum) of 17 fp32"));
    }
    auto s   = d.make_stream(stream_priority::high);
    auto all = std::vector<float>{1};
    c.all_reduce(s, std::span{all}, std::span{all}, reduction::sum);  // others are not concerned
    d.sync(s);
    CHECK(all[0] == static_cast<float>(c.size()));
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
    auto all = std::vector<float>{1};
    auto t   = d.make_stream(stream_priority::high);
    c.all_reduce(t, std::span{all}, std::span{all}, reduction::sum);  // all have polled
    d.sync(t);
    gone.abort();
    gone.abort();
    CHECK(test::throws<aborted_error>([&] { gone.poll(); }));
    auto s = d.make_stream(stream_priority::high);
    auto x = std::vector<float>(17);
    gone.all_reduce(s, std::span{x}, std::span{x}, reduction::sum);
    CHECK(test::throws<aborted_error>([&] { d.sync(s); }));
    CHECK(test::throws<aborted_error>([&] { static_cast<void>(gone.split(0, 0)); }));
    gone.abort();
  });
}

TEST_CASE_TEMPLATE_DEFINE("a communicator takes nothing from the heap once warm",
                          Ranks,
                          communicator_allocations) {
  using namespace gradlane;
  if (Ranks::cuts()) { return; }
  Ranks::run([](auto& c, auto& d) {
    auto s            = d.make_stream(stream_priority::high);
    auto const ranks  = static_cast<std::size_t>(c.size());
    auto x            = std::vector<float>(17 * ranks);
    auto y            = std::vector<bf16>(17 * ranks);
    auto z            = std::vector<float>(17 * ranks);
    auto const blocks = std::vector<std::size_t>(ranks, 17);
    auto const round  = [&] {
      c.all_reduce(s, std::span{x}, std::span{x}, reduction::average);
      c.all_reduce(s, std::span{y}, std::span{y}, reduction::sum);
      c.reduce_scatter(s, std::span{x}, test::part_of(x, c.rank(), 17), reduction::sum);
      c.all_gather_v(s, test::part_of(x, c.rank(), 17), std::span{x}, blocks);
      c.all_to_all_v(s, std::span{x}, blocks, std::span{z}, blocks);
      c.broadcast(s, std::span{x}, 0);
      d.sync(s);
    };
    for (int k = 0; k < 5; ++k) { round(); }
    auto const before = test::allocations();
    for (int k = 0; k < 20; ++k) { round(); }
    auto const after = test::allocations();
    round();  // no rank goes on to allocate before all have read the counter
    CHECK(after - before == 0);
  });
}

// The one macro of this file: all of the above for the given fixtures.
#define GRADLANE_COMMUNICATOR_CONFORMANCE(...)                         \
  TEST_CASE_TEMPLATE_INVOKE(communicator_all_reduce, __VA_ARGS__);     \
  TEST_CASE_TEMPLATE_INVOKE(communicator_rounding, __VA_ARGS__);       \
  TEST_CASE_TEMPLATE_INVOKE(communicator_non_finite, __VA_ARGS__);     \
  TEST_CASE_TEMPLATE_INVOKE(communicator_reduce_scatter, __VA_ARGS__); \
  TEST_CASE_TEMPLATE_INVOKE(communicator_all_gather, __VA_ARGS__);     \
  TEST_CASE_TEMPLATE_INVOKE(communicator_all_gather_v, __VA_ARGS__);   \
  TEST_CASE_TEMPLATE_INVOKE(communicator_broadcast, __VA_ARGS__);      \
  TEST_CASE_TEMPLATE_INVOKE(communicator_all_to_all_v, __VA_ARGS__);   \
  TEST_CASE_TEMPLATE_INVOKE(communicator_send_receive, __VA_ARGS__);   \
  TEST_CASE_TEMPLATE_INVOKE(communicator_two_streams, __VA_ARGS__);    \
  TEST_CASE_TEMPLATE_INVOKE(communicator_stream_order, __VA_ARGS__);   \
  TEST_CASE_TEMPLATE_INVOKE(communicator_split, __VA_ARGS__);          \
  TEST_CASE_TEMPLATE_INVOKE(communicator_node_group, __VA_ARGS__);     \
  TEST_CASE_TEMPLATE_INVOKE(communicator_arguments, __VA_ARGS__);      \
  TEST_CASE_TEMPLATE_INVOKE(communicator_deadline, __VA_ARGS__);       \
  TEST_CASE_TEMPLATE_INVOKE(communicator_abort, __VA_ARGS__);          \
  TEST_CASE_TEMPLATE_INVOKE(communicator_allocations, __VA_ARGS__)

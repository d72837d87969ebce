// SPDX-License-Identifier: Apache-2.0
// What the local communicator adds to the conformance suite.
#include <gradlane/error.hpp>               // for aborted_error, contract_error, timeout_error
#include <gradlane/host/device.hpp>         // for device
#include <gradlane/local/communicator.hpp>  // for communicator
#include <gradlane/local/error.hpp>         // for mismatch_error
#include <gradlane/local/run.hpp>           // for run
#include <gradlane/types.hpp>               // for bf16, reduction

#include <doctest/doctest.h>

#include <array>        // for array
#include <atomic>       // for atomic
#include <chrono>       // for milliseconds
#include <cmath>        // for isnan
#include <cstddef>      // for size_t
#include <cstdint>      // for uint32_t
#include <limits>       // for numeric_limits
#include <span>         // for span
#include <string_view>  // for string_view
#include <thread>       // for sleep_for
#include <vector>       // for vector

namespace {

using gradlane::bf16;
using gradlane::reduction;
using gradlane::stream_priority;
using gradlane::host::device;
using gradlane::local::communicator;
using gradlane::local::mismatch_error;

[[nodiscard]] float fraction(int rank, std::size_t i) {
  auto x = static_cast<std::uint32_t>(rank) * 2654435761U + static_cast<std::uint32_t>(i) * 40503U;
  x      = (x ^ (x >> 15U)) * 2246822519U;
  return static_cast<float>(x >> 8U) * 0x1p-24F - 0.5F;
}

[[nodiscard]] bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

/// Runs `call` on `ranks` ranks, all of which must throw a mismatch_error that names both calls.
template <class F>
void check_mismatch(int ranks, std::string_view one, std::string_view other, F call) {
  auto told = std::atomic<int>{0};
  gradlane::local::run(ranks, [&](communicator& c, device& d) {
    auto s = d.make_stream(stream_priority::normal);
    auto x = std::vector<float>(24);
    auto y = std::vector<float>(24);
    call(c, s, std::span{x}, std::span{y});
    try {
      d.sync(s);
    } catch (mismatch_error const& e) {
      told += contains(e.what(), one) && contains(e.what(), other) &&
                      contains(e.what(), "rank 0") && contains(e.what(), "communicator_test.cpp")
                  ? 1
                  : 0;
      if (c.rank() == 0) { INFO(e.what()); }
    }
    CHECK_THROWS_AS(c.poll(), mismatch_error);
  });
  CHECK(told == ranks);
}

}  // namespace

TEST_CASE("a local communicator adds in rank order and rounds once") {
  for (auto const ranks : {1, 2, 3, 4, 7}) {
    gradlane::local::run(ranks, [](communicator& c, device& d) {
      auto s                  = d.make_stream(stream_priority::normal);
      constexpr std::size_t n = 1009;
      auto x                  = std::vector<bf16>(n);
      auto y                  = std::vector<float>(n);
      for (std::size_t i = 0; i < n; ++i) {
        x[i] = bf16{fraction(c.rank(), i)};
        y[i] = fraction(c.rank(), i);
      }
      c.all_reduce(s, std::span{x}, std::span{x}, reduction::sum);
      c.all_reduce(s, std::span{y}, std::span{y}, reduction::average);
      d.sync(s);
      auto different = 0;
      for (std::size_t i = 0; i < n; ++i) {
        auto sum_x = static_cast<float>(bf16{fraction(0, i)});
        auto sum_y = fraction(0, i);
        for (int r = 1; r < c.size(); ++r) {
          sum_x += static_cast<float>(bf16{fraction(r, i)});
          sum_y += fraction(r, i);
        }
        different += x[i].bits == bf16{sum_x}.bits ? 0 : 1;
        different += y[i] == sum_y / static_cast<float>(c.size()) ? 0 : 1;
      }
      CHECK(different == 0);
    });
  }
}

TEST_CASE("a local communicator scales each rank's input") {
  gradlane::local::run(3, [](communicator& c, device& d) {
    auto s                 = d.make_stream(stream_priority::normal);
    auto const factors     = std::array{2.0F, 0.0F, 0.5F};
    auto const coefficient = factors[static_cast<std::size_t>(c.rank())];
    auto x                 = std::vector<float>{1.0F, 4.0F, 8.0F};
    if (c.rank() == 1) { x = {-1.0F, 7.0F, 5.0F}; }
    auto out = std::vector<float>(3);
    c.all_reduce_scaled(s, std::span{x}, std::span{out}, &coefficient);
    d.sync(s);
    CHECK(out == std::vector<float>{2.5F, 10.0F, 20.0F});

    auto const zero = 0.0F;
    auto y          = std::vector<double>(3, 5.0);
    c.all_reduce_scaled(s, std::span{y}, std::span{y}, &zero);
    d.sync(s);
    CHECK(y == std::vector<double>(3));

    auto const nan = std::numeric_limits<float>::quiet_NaN();
    auto z         = std::vector<bf16>(1, bf16{1.0F});
    c.all_reduce_scaled(s, std::span{z}, std::span{z}, c.rank() == 2 ? &nan : &zero);
    d.sync(s);
    CHECK(std::isnan(static_cast<float>(z[0])));
    CHECK_THROWS_AS(c.all_reduce_scaled(s, std::span<int const>{}, std::span<int>{}, &zero),
                    gradlane::contract_error);
  });
}

TEST_CASE("a local communicator turns calls that do not fit into an error on all ranks") {
  using span = std::span<float>;
  SUBCASE("counts") {
    check_mismatch(3,
                   "all_reduce(sum) of 17 fp32",
                   "all_reduce(sum) of 16 fp32",
                   [](auto& c, auto& s, span x, span y) {
                     auto const n = c.rank() == 0 ? std::size_t{16} : std::size_t{17};
                     c.all_reduce(s, x.first(n), y.first(n), reduction::sum);
                   });
  }
  SUBCASE("dtypes") {
    check_mismatch(2,
                   "broadcast of 4 fp32 from rank 0",
                   "broadcast of 4 fp64 from rank 0",
                   [](auto& c, auto& s, span x, span) {
                     if (c.rank() == 0) {
                       c.broadcast(s, x.first(4), 0);
                     } else {
                       auto* const data = reinterpret_cast<double*>(x.data());
                       c.broadcast(s, std::span{data, 4}, 0);
                     }
                   });
  }
  SUBCASE("reductions") {
    check_mismatch(2, "all_reduce(sum)", "all_reduce(max)", [](auto& c, auto& s, span x, span y) {
      c.all_reduce(s, x, y, c.rank() == 0 ? reduction::sum : reduction::max);
    });
  }
  SUBCASE("operations") {
    check_mismatch(2,
                   "all_reduce(sum) of 24 fp32",
                   "broadcast of 24 fp32 from rank 1",
                   [](auto& c, auto& s, span x, span) {
                     if (c.rank() == 0) {
                       c.all_reduce(s, x, x, reduction::sum);
                     } else {
                       c.broadcast(s, x, 1);
                     }
                   });
  }
  SUBCASE("roots") {
    check_mismatch(2, "from rank 0", "from rank 1", [](auto& c, auto& s, span x, span) {
      c.broadcast(s, x, c.rank());
    });
  }
  SUBCASE("counts of a gather") {
    check_mismatch(2, "as 3 4", "as 4 4", [](auto& c, auto& s, span x, span y) {
      auto const counts = std::vector<std::size_t>{c.rank() == 0 ? 4U : 3U, 4U};
      auto const total  = counts[0] + counts[1];
      c.all_gather_v(s, x.first(4), y.first(total), counts);
    });
  }
  SUBCASE("blocks of an exchange") {
    check_mismatch(
        2,
        "rank 1 sends 3 elements to rank 0",
        "which expects 2",
        [](auto& c, auto& s, span x, span y) {
          auto const zero    = c.rank() == 0;
          auto const send    = std::vector<std::size_t>{zero ? 1U : 3U, 1U};
          auto const receive = std::vector<std::size_t>{1U, zero ? 2U : 1U};
          c.all_to_all_v(
              s, x.first(send[0] + send[1]), send, y.first(receive[0] + receive[1]), receive);
        });
  }
  SUBCASE("messages") {
    check_mismatch(2, "send of 5 fp32", "receive of 4 fp32", [](auto& c, auto& s, span x, span) {
      if (c.rank() == 0) {
        c.send(s, x.first(5), 1);
      } else {
        c.receive(s, x.first(4), 0);
      }
    });
  }
}

TEST_CASE("a local communicator names the ranks that have not arrived in time") {
  auto told = std::atomic<int>{0};
  gradlane::local::run(5, [&](communicator& c, device& d) {
    c.set_deadline(std::chrono::milliseconds{50});
    auto s = d.make_stream(stream_priority::normal);
    auto x = std::vector<float>(3);
    if (c.rank() != 1 && c.rank() != 3) {
      c.all_reduce(s, std::span{x}, std::span{x}, reduction::sum);
    }
    try {
      while (true) {  // ranks 1 and 3 do not call it, but see how it ends
        d.sync(s);
        c.poll();
      }
    } catch (gradlane::timeout_error const& e) {
      told += contains(e.what(), "not arrived: rank 1, 3") ? 1 : 0;
    }
  });
  CHECK(told == 5);
}

TEST_CASE("a local communicator takes its peers along when it aborts") {
  gradlane::local::run(3, [](communicator& c, device& d) {
    auto s = d.make_stream(stream_priority::normal);
    auto x = std::vector<float>(3);
    if (c.rank() == 2) {
      c.abort();
    } else {
      c.all_reduce(s, std::span{x}, std::span{x}, reduction::sum);
      CHECK_THROWS_WITH_AS(
          d.sync(s), doctest::Contains("aborted by rank 2"), gradlane::aborted_error);
    }
  });
}

TEST_CASE("a local communicator may end while its calls are under way") {
  gradlane::local::run(3, [](communicator& c, device& d) {
    auto s = d.make_stream(stream_priority::normal);
    auto x = std::vector<float>(3, 1.0F);
    {
      auto all = c.split(0, 0);
      d.invoke(s, [] { std::this_thread::sleep_for(std::chrono::milliseconds{5}); });
      all.all_reduce(s, std::span{x}, std::span{x}, reduction::sum);
    }
    d.sync(s);
    CHECK(x[0] == 3.0F);
  });
}

TEST_CASE("a local communicator forms node groups of uneven sizes") {
  gradlane::local::run(4, {.ranks_per_node = 3}, [](communicator& c, device& d) {
    auto node = c.node_group();
    CHECK(node.size() == (c.rank() == 3 ? 1 : 3));
    CHECK(node.rank() == (c.rank() == 3 ? 0 : c.rank()));
    auto s = d.make_stream(stream_priority::normal);
    auto x = std::vector<float>{static_cast<float>(c.rank())};
    node.all_reduce(s, std::span{x}, std::span{x}, reduction::sum);
    d.sync(s);
    CHECK(x[0] == 3.0F);  // 0 + 1 + 2, and 3 alone
  });
}

// SPDX-License-Identifier: Apache-2.0
#include <gradlane/buffer_view.hpp>  // for buffer_view
#include <gradlane/error.hpp>        // for timeout_error
#include <gradlane/host/device.hpp>  // for device

#include <doctest/doctest.h>

#include <support/alloc_count.hpp>  // for allocations

#include <array>        // for array
#include <atomic>       // for atomic
#include <chrono>       // for milliseconds
#include <cstddef>      // for size_t, byte
#include <cstdio>       // for fopen, fgets, sscanf
#include <memory>       // for make_shared, unique_ptr
#include <span>         // for span, as_bytes
#include <stdexcept>    // for runtime_error
#include <string_view>  // for string_view
#include <thread>       // for jthread, this_thread
#include <vector>       // for vector

namespace {

using namespace gradlane;
using namespace std::chrono_literals;

/// The threads of this process, or 0 where the system does not tell.
[[nodiscard]] int threads() {
  auto count      = 0;
  auto const file = std::unique_ptr<std::FILE, int (*)(std::FILE*)>{
      std::fopen("/proc/self/status", "r"), [](std::FILE* f) { return std::fclose(f); }};
  auto line = std::array<char, 256>{};
  while (file && std::fgets(line.data(), line.size(), file.get()) != nullptr) {
    if (std::sscanf(line.data(), "Threads: %d", &count) == 1) { break; }  // NOLINT(cert-err34-c)
  }
  return count;
}

/// Work that blocks until open().
class gate {
 public:
  void hold(host::device& d, host::stream& s) {
    d.enqueue(s, [opened = opened_] { opened->wait(false); });
  }
  void open() {
    *opened_ = true;
    opened_->notify_all();
  }

 private:
  std::shared_ptr<std::atomic<bool>> opened_ = std::make_shared<std::atomic<bool>>(false);
};

}  // namespace

TEST_CASE("stream has no thread before it has work") {
  auto d            = host::device{};
  auto const before = threads();
  auto a            = d.make_stream();
  auto b            = d.make_stream();
  auto e            = d.make_event();
  d.record(e, a);
  d.wait(b, e);
  d.sync(b);
  CHECK(d.is_done(e));
  CHECK(b.is_idle());
  CHECK(threads() == before);
  auto ran = std::thread::id{};
  d.enqueue(a, [&] { ran = std::this_thread::get_id(); });
  d.sync(a);
  CHECK(ran != std::this_thread::get_id());
  CHECK(threads() == before + (before == 0 ? 0 : 1));
}

TEST_CASE("stream runs all its work on one thread") {
  auto d    = host::device{};
  auto s    = d.make_stream();
  auto seen = std::vector<std::thread::id>{};
  for (int i = 0; i < 20; ++i) {
    d.enqueue(s, [&] { seen.push_back(std::this_thread::get_id()); });
    d.sync(s);
  }
  CHECK(seen == std::vector(20, seen.front()));
}

TEST_CASE("stream keeps the order of a queue that grows while it is read") {
  auto d    = host::device{};
  auto s    = d.make_stream();
  auto seen = std::vector<int>{};
  for (int round = 0; round < 3; ++round) {
    auto wall = gate{};
    wall.hold(d, s);
    for (int i = 0; i < 50 << round; ++i) {
      d.enqueue(s, [&seen, i] { seen.push_back(i); });
    }
    wall.open();
    d.sync(s);
    REQUIRE(seen.size() == static_cast<std::size_t>(50 << round));
    for (std::size_t i = 0; i < seen.size(); ++i) { REQUIRE(seen[i] == static_cast<int>(i)); }
    seen.clear();
  }
}

TEST_CASE("stream destroys what a task captured before the task counts as finished") {
  auto d              = host::device{};
  auto s              = d.make_stream();
  auto const captured = std::make_shared<int>(1);
  d.enqueue(s, [captured] {});
  d.sync(s);
  CHECK(captured.use_count() == 1);
  d.enqueue(s, [captured] { throw std::runtime_error{"an error"}; });
  d.enqueue(s, [captured] {});
  CHECK_THROWS_WITH_AS(d.sync(s), "an error", std::runtime_error);
  CHECK(captured.use_count() == 1);
}

TEST_CASE("stream takes over another by move, after its own work is done") {
  auto d    = host::device{};
  auto a    = d.make_stream();
  auto b    = d.make_stream();
  auto done = std::atomic<int>{0};
  d.enqueue(a, [&] { done += 1; });
  d.enqueue(b, [&] { done += 10; });
  a = std::move(b);
  CHECK(done % 10 == 1);
  d.enqueue(a, [&] { done += 100; });
  d.sync(a);
  CHECK(done == 111);
}

TEST_CASE("event tells its error after its stream has ended") {
  auto d = host::device{};
  auto e = d.make_event();
  {
    auto s = d.make_stream();
    d.enqueue(s, [] { throw std::runtime_error{"late"}; });
    d.record(e, s);
  }
  CHECK(d.is_done(e));
  CHECK_THROWS_WITH_AS(d.sync(e), "late", std::runtime_error);
}

TEST_CASE("device enqueues without taking memory from the heap, once queues have grown") {
  auto d      = host::device{};
  auto a      = d.make_stream();
  auto b      = d.make_stream();
  auto e      = d.make_event();
  auto x      = std::vector<float>(300, 1.0F);
  auto y      = std::vector<bf16>(300);
  auto views  = std::array{buffer_view{std::span{x}}};
  auto halves = std::array{buffer_view{std::span{y}}};
  auto list   = d.make_tensor_list(views);
  auto packed = d.make_tensor_list(halves);
  auto sum    = 0.0;
  auto c      = 1.0F;
  auto where  = non_finite_location{};
  auto step   = [&] {
    auto wall = std::array<std::atomic<bool>, 1>{};
    d.enqueue(a, [&wall] { wall[0].wait(false); });
    for (int i = 0; i < 8; ++i) {
      d.upload(a, std::as_bytes(std::span{&c, 1}), views[0].subview(0, 1));
      d.scale(a, views[0], &c);
      d.sum_of_squares(a, list, &sum);
      d.record(e, a);
      d.wait(b, e);
      d.pack(b, list, packed, &sum);
      d.first_non_finite(b, list, &sum, &where);
      d.record(e, b);
      d.wait(a, e);
    }
    wall[0] = true;
    wall[0].notify_all();
    d.sync(a);
    d.sync(b);
  };
  step();
  auto const before = test::allocations();
  for (int i = 0; i < 10; ++i) { step(); }
  CHECK(test::allocations() == before);
  CHECK(sum == 300.0);
}

TEST_CASE("device::sync says what it waited for when the deadline passes") {
  auto d    = host::device{};
  auto s    = d.make_stream();
  auto wall = gate{};
  d.enqueue(s, [] {});
  d.sync(s);
  wall.hold(d, s);
  d.enqueue(s, [] {});
  try {
    d.sync(s, 10ms);
    FAIL("no error");
  } catch (timeout_error const& e) {
    auto const text = std::string_view{e.what()};
    CHECK(text.find("stream not done after 0.01") != std::string_view::npos);
    CHECK(text.find("1 of 3 tasks") != std::string_view::npos);
    CHECK(std::string_view{e.where().file_name()}.ends_with("device_test.cpp"));
  }
  wall.open();
  d.sync(s);
}

TEST_CASE("device::invoke takes trivially copyable functions of up to 64 bytes") {
  auto d      = host::device{};
  auto s      = d.make_stream();
  auto bytes  = std::array<unsigned char, 56>{};
  bytes[55]   = 9;
  auto result = 0;
  d.invoke(s, [bytes, out = &result] { *out = bytes[55]; });
  d.sync(s);
  CHECK(result == 9);
}

TEST_CASE("device is shared by host threads that each use streams of their own") {
  auto d    = host::device{};
  auto sums = std::array<double, 4>{};
  {
    auto hosts = std::vector<std::jthread>{};
    for (std::size_t t = 0; t < sums.size(); ++t) {
      hosts.emplace_back([&d, &sum = sums[t], t] {
        auto s    = d.make_stream();
        auto r    = d.make_stream();
        auto e    = d.make_event();
        auto x    = std::vector<float>(1000);
        auto v    = std::array{buffer_view{std::span{x}}};
        auto list = d.make_tensor_list(v);
        for (int i = 0; i < 50; ++i) {
          auto const values = std::vector(1000, static_cast<float>(t + 1));
          d.upload(s, std::as_bytes(std::span{values}), v[0]);
          d.record(e, s);
          d.wait(r, e);
          d.sum_of_squares(r, list, &sum);
          d.record(e, r);
          d.wait(s, e);
          d.sync(r);
        }
      });
    }
  }
  CHECK(sums == std::array{1000.0, 4000.0, 9000.0, 16000.0});
}

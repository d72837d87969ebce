// SPDX-License-Identifier: Apache-2.0
#include <gradlane/error.hpp>          // for contract_error
#include <gradlane/host/device.hpp>    // for device
#include <gradlane/host/progress.hpp>  // for back_off, progress_registration

#include <doctest/doctest.h>

#include <support/alloc_count.hpp>  // for allocations

#include <atomic>    // for atomic
#include <chrono>    // for milliseconds, microseconds, nanoseconds
#include <memory>    // for make_shared, make_unique, shared_ptr
#include <optional>  // for optional
#include <thread>    // for this_thread, jthread
#include <utility>   // for move
#include <vector>    // for vector

namespace {

using namespace gradlane;
using namespace std::chrono_literals;

/// A transport that needs the thread of its caller: a task blocks until a progress function, run
/// by another thread, lets it go on.
class transport {
 public:
  explicit transport(host::device& d)
      : registration_{d.add_progress([state = state_] {
          ++state->runs;
          if (state->runs < 3 || !state->asked) { return false; }
          state->let_go = true;
          state->let_go.notify_all();
          return true;
        })} {}
  void enqueue(host::device& d, host::stream& s) {
    d.enqueue(s, [state = state_] {
      state->asked = true;
      state->let_go.wait(false);
    });
  }
  [[nodiscard]] int runs() const { return state_->runs; }

 private:
  struct shared {
    std::atomic<int> runs{0};
    std::atomic<bool> asked{false};
    std::atomic<bool> let_go{false};
  };
  std::shared_ptr<shared> state_ = std::make_shared<shared>();
  host::progress_registration registration_;
};

}  // namespace

TEST_CASE("device::sync runs the progress functions while it waits") {
  auto d    = host::device{};
  auto s    = d.make_stream();
  auto e    = d.make_event();
  auto slow = transport{d};
  slow.enqueue(d, s);
  d.record(e, s);
  SUBCASE("for a stream") { d.sync(s); }
  SUBCASE("for an event") { d.sync(e); }
  SUBCASE("with a deadline") { d.sync(s, std::chrono::hours{1}); }
  CHECK(d.is_done(e));
  CHECK(slow.runs() >= 3);
}

TEST_CASE("device::sync keeps its deadline where the progress functions move nothing") {
  auto d          = host::device{};
  auto s          = d.make_stream();
  auto const idle = d.add_progress([] { return false; });
  auto open       = std::make_shared<std::atomic<bool>>(false);
  d.enqueue(s, [open] { open->wait(false); });
  CHECK_THROWS_AS(d.sync(s, 5ms), timeout_error);
  CHECK_THROWS_AS(d.sync(s, 0ms), timeout_error);
  *open = true;
  open->notify_all();
  d.sync(s);
}

TEST_CASE("stream runs the progress functions while its end waits for its work") {
  auto d    = host::device{};
  auto slow = transport{d};
  {
    auto s = d.make_stream();
    slow.enqueue(d, s);
  }
  CHECK(slow.runs() >= 3);
}

TEST_CASE("device::progress runs each function once, in order, and says whether one moved") {
  auto d     = host::device{};
  auto order = std::vector<int>{};
  order.reserve(8);
  auto const first  = d.add_progress([&] {
    order.push_back(1);
    return false;
  });
  auto second       = std::optional{d.add_progress([&] {
    order.push_back(2);
    return true;
  })};
  auto const before = test::allocations();
  CHECK(d.progress());
  CHECK(order == std::vector{1, 2});
  second.reset();
  CHECK_FALSE(d.progress());
  CHECK(test::allocations() == before + 1);  // the vector that the test compares with
  CHECK(order == std::vector{1, 2, 1});
}

TEST_CASE("progress_registration may be moved, and may outlive its device") {
  auto runs = 0;
  auto d    = std::make_unique<host::device>();
  auto a    = d->add_progress([&] { return ++runs > 0; });
  auto b    = std::move(a);
  d->progress();
  CHECK(runs == 1);
  {
    auto const c = std::move(b);
    d->progress();
    CHECK(runs == 2);
  }
  d->progress();
  CHECK(runs == 2);
  auto const late = d->add_progress([] { return false; });
  d.reset();
}

TEST_CASE("progress functions come and go while other threads run them") {
  auto d       = host::device{};
  auto running = std::vector<std::jthread>{};
  for (int t = 0; t < 2; ++t) {
    running.emplace_back([&d] {
      auto s = d.make_stream();
      for (int i = 0; i < 200; ++i) {
        d.enqueue(s, [] { std::this_thread::yield(); });
        d.sync(s);
      }
    });
  }
  for (int i = 0; i < 200; ++i) {
    auto alive      = std::make_unique<std::atomic<int>>(0);
    auto const hook = d.add_progress([state = alive.get()] { return ++*state < 0; });
    std::this_thread::yield();
  }  // the function never runs after its registration ended, when `alive` is gone
}

TEST_CASE("back_off never rests after a move, then rests longer and longer up to a bound") {
  auto rest = host::back_off{};
  CHECK(rest.next(true) == 0ns);
  auto rounds = 0;
  auto pause  = rest.next(false);
  while (pause == 0ns) {
    pause = rest.next(false);
    ++rounds;
  }
  CHECK(rounds > 10);
  for (auto next = rest.next(false); next != pause; next = rest.next(false)) {
    CHECK(next == 2 * pause);
    pause = next;
  }
  CHECK(pause <= 1ms);
  CHECK(rest.next(false) == pause);
  CHECK(rest.next(true) == 0ns);
}

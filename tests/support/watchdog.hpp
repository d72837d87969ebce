// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <doctest/doctest.h>

#include <chrono>              // for seconds, steady_clock
#include <condition_variable>  // for condition_variable
#include <cstdio>              // for fprintf, fflush
#include <cstdlib>             // for _Exit, getenv, strtol
#include <list>                // for list
#include <mutex>               // for mutex, scoped_lock, unique_lock
#include <string>              // for string
#include <thread>              // for thread
#include <utility>             // for move

namespace gradlane::test {

/// What threads say they are doing, for the watchdog to print. Thread-safe.
class activity_board {
 public:
  using entry = std::list<std::string>::iterator;

  [[nodiscard]] entry add(std::string what) {
    auto const lock = std::scoped_lock{mutex_};
    return entries_.insert(entries_.end(), std::move(what));
  }
  void remove(entry what) {
    auto const lock = std::scoped_lock{mutex_};
    entries_.erase(what);
  }
  void print(std::FILE* to) {
    auto const lock = std::scoped_lock{mutex_};
    for (auto const& what : entries_) { std::fprintf(to, "    in: %s\n", what.c_str()); }
  }

 private:
  std::mutex mutex_;
  std::list<std::string> entries_;
};

inline activity_board activities;

/// Says, while it lives, what its thread is doing: `activity const busy{"rank 1, bucket 3"};`.
class [[nodiscard]] activity {
 public:
  explicit activity(std::string what) : entry_{activities.add(std::move(what))} {}
  activity(activity const&)            = delete;
  activity& operator=(activity const&) = delete;
  ~activity() { activities.remove(entry_); }

 private:
  activity_board::entry entry_;
};

/// Ends the process with status 3 where one test case takes longer than the limit, after printing
/// who is stuck, in which test case, and the activities that are under way.
///
/// The limit is 60 s, or GRADLANE_WATCHDOG seconds.
class watchdog {
 public:
  explicit watchdog(std::string who = "this process")
      : who_{std::move(who)}, thread_{[this] { guard(); }} {}
  watchdog(watchdog const&)            = delete;
  watchdog& operator=(watchdog const&) = delete;
  ~watchdog() {
    {
      auto const lock = std::scoped_lock{mutex_};
      over_           = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  /// The clock starts again.
  void begin(std::string test_case) {
    {
      auto const lock = std::scoped_lock{mutex_};
      test_case_      = std::move(test_case);
      until_          = std::chrono::steady_clock::now() + limit();
    }
    changed_.notify_all();
  }

 private:
  [[nodiscard]] static std::chrono::seconds limit() {
    auto const* const wish = std::getenv("GRADLANE_WATCHDOG");  // NOLINT(concurrency-mt-unsafe)
    return std::chrono::seconds{wish == nullptr ? 60 : std::strtol(wish, nullptr, 10)};
  }

  void guard() {
    auto lock = std::unique_lock{mutex_};
    while (!over_ && std::chrono::steady_clock::now() < until_) {
      changed_.wait_until(lock, until_);
    }
    if (over_) { return; }
    std::fprintf(stderr, "WATCHDOG: %s is stuck in \"%s\"\n", who_.c_str(), test_case_.c_str());
    activities.print(stderr);
    std::fflush(stderr);
    std::this_thread::sleep_for(
        std::chrono::seconds{1});  // other ranks are stuck too: let them say
    std::_Exit(3);
  }

  std::string who_;
  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::string test_case_{"(before the first test case)"};
  std::chrono::steady_clock::time_point until_{std::chrono::steady_clock::now() + limit()};
  bool over_{false};
  std::thread thread_;  // last member: starts when the others are there
};

/// The watchdog of main(), told by doctest of each test case. Set by main() before it runs any.
inline watchdog* current_watchdog = nullptr;

struct watchdog_listener : doctest::IReporter {
  explicit watchdog_listener(doctest::ContextOptions const&) {}
  void report_query(doctest::QueryData const&) override {}
  void test_run_start() override {}
  void test_run_end(doctest::TestRunStats const&) override {}
  void test_case_start(doctest::TestCaseData const& test_case) override {
    if (current_watchdog != nullptr) { current_watchdog->begin(test_case.m_name); }
  }
  void test_case_reenter(doctest::TestCaseData const&) override {}
  void test_case_end(doctest::CurrentTestCaseStats const&) override {}
  void test_case_exception(doctest::TestCaseException const&) override {}
  void subcase_start(doctest::SubcaseSignature const&) override {}
  void subcase_end() override {}
  void log_assert(doctest::AssertData const&) override {}
  void log_message(doctest::MessageData const&) override {}
  void test_case_skipped(doctest::TestCaseData const&) override {}
};

}  // namespace gradlane::test

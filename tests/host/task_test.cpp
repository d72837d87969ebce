// SPDX-License-Identifier: Apache-2.0
#include <gradlane/host/task.hpp>  // for task

#include <doctest/doctest.h>

#include <support/alloc_count.hpp>  // for allocations

#include <array>    // for array
#include <cstddef>  // for size_t
#include <memory>   // for make_shared, make_unique
#include <utility>  // for move

using gradlane::host::task;

TEST_CASE("task runs a callable that can only be moved") {
  auto result = 0;
  auto work   = task{[&result, value = std::make_unique<int>(7)] { result = *value; }};
  auto moved  = std::move(work);
  work        = std::move(moved);
  work();
  CHECK(result == 7);
}

TEST_CASE("task destroys what its callable captured exactly once") {
  auto const captured = std::make_shared<int>(1);
  {
    auto a = task{[captured] {}};
    auto b = std::move(a);
    auto c = task{[captured] {}};
    CHECK(captured.use_count() == 3);
    c = std::move(b);
    CHECK(captured.use_count() == 2);
    auto& same = c;
    c          = std::move(same);
    CHECK(captured.use_count() == 2);
    c.reset();
    CHECK(captured.use_count() == 1);
  }
  CHECK(captured.use_count() == 1);
}

TEST_CASE("task holds callables up to its capacity without taking memory from the heap") {
  auto bytes     = std::array<unsigned char, task::capacity - sizeof(void*)>{};
  bytes.back()   = 42;
  auto result    = 0;
  auto const now = gradlane::test::allocations();
  auto work      = task{[bytes, &result] { result = bytes.back(); }};
  auto moved     = std::move(work);
  moved();
  moved.reset();
  CHECK(gradlane::test::allocations() == now);
  CHECK(result == 42);
}

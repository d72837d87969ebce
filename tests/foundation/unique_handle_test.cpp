// SPDX-License-Identifier: Apache-2.0
#include <gradlane/detail/unique_handle.hpp>  // for unique_handle

#include <doctest/doctest.h>

#include <type_traits>  // for is_copy_constructible_v, is_nothrow_move_constructible_v
#include <utility>      // for move
#include <vector>       // for vector

namespace {

std::vector<int> destroyed;  // in order

/// The empty handle is -1: 0 is a handle like any other, as a CUDA stream's is.
struct counted {
  using handle_type = int;
  static int empty() noexcept { return -1; }
  static void destroy(int handle) noexcept { destroyed.push_back(handle); }
};

using handle = gradlane::detail::unique_handle<counted>;

static_assert(!std::is_copy_constructible_v<handle> && !std::is_copy_assignable_v<handle>);
static_assert(std::is_nothrow_move_constructible_v<handle>);
static_assert(!std::is_convertible_v<int, handle>);
static_assert(sizeof(handle) == sizeof(int));

}  // namespace

TEST_CASE("unique_handle destroys its handle once, 0 as well, and nothing when empty") {
  destroyed.clear();
  {
    auto const none = handle{};
    auto const zero = handle{0};
    CHECK_FALSE(none);
    CHECK(zero);
    CHECK(zero.get() == 0);
  }
  CHECK(destroyed == std::vector{0});
}

TEST_CASE("unique_handle gives its handle away when moved") {
  destroyed.clear();
  {
    auto a       = handle{1};
    auto const b = std::move(a);
    CHECK_FALSE(a);  // NOLINT(bugprone-use-after-move)
    CHECK(b.get() == 1);
  }
  CHECK(destroyed == std::vector{1});
}

TEST_CASE("unique_handle destroys the old handle when another is assigned, also to itself") {
  destroyed.clear();
  auto a = handle{1};
  auto b = handle{2};
  a      = std::move(b);
  CHECK(destroyed == std::vector{1});
  CHECK(a.get() == 2);
  auto& same = a;
  a          = std::move(same);
  CHECK(a.get() == 2);
  CHECK(destroyed == std::vector{1});
}

TEST_CASE("unique_handle releases and swaps without destroying") {
  destroyed.clear();
  auto a = handle{1};
  auto b = handle{2};
  a.swap(b);
  CHECK(a.release() == 2);
  CHECK_FALSE(a);
  CHECK(b.release() == 1);
  CHECK(destroyed.empty());
}

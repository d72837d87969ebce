// SPDX-License-Identifier: Apache-2.0
#include <gradlane/buffer_view.hpp>  // for buffer_view
#include <gradlane/error.hpp>        // for contract_error
#include <gradlane/host/memory.hpp>  // for buffer, tensor_list, staging_pool

#include <doctest/doctest.h>

#include <array>    // for array
#include <cstddef>  // for size_t
#include <cstdint>  // for uintptr_t
#include <span>     // for span
#include <utility>  // for move
#include <vector>   // for vector

using namespace gradlane;

TEST_CASE("buffer is aligned to 256 bytes, whatever its size") {
  for (auto const size :
       {std::size_t{1}, std::size_t{255}, std::size_t{257}, std::size_t{1} << 20}) {
    auto const b = host::buffer{size};
    CHECK(reinterpret_cast<std::uintptr_t>(b.data()) % 256 == 0);
    CHECK(b.size() == size);
    b.data()[size - 1] = std::byte{1};
  }
}

TEST_CASE("buffer leaves an empty one behind when moved") {
  auto a           = host::buffer{100};
  auto* const data = a.data();
  auto b           = std::move(a);
  CHECK(b.data() == data);
  CHECK(a.data() == nullptr);  // NOLINT(bugprone-use-after-move)
  CHECK(a.size() == 0);
  a = std::move(b);
  CHECK(a.data() == data);
  CHECK(a.size() == 100);
  CHECK(host::buffer{}.data() == nullptr);
}

TEST_CASE("tensor_list keeps views of one dtype, and its views' place when moved") {
  auto x             = std::array{bf16{1.0F}, bf16{2.0F}};
  auto const views   = std::array{buffer_view{std::span{x}}, buffer_view{nullptr, 0, dtype::bf16}};
  auto list          = host::tensor_list{views};
  auto const tensors = list.tensors();
  CHECK(list.type() == dtype::bf16);
  CHECK(tensors.size() == 2);
  CHECK(tensors[0].count() == 2);
  auto const moved = std::move(list);
  CHECK(moved.tensors().data() == tensors.data());
  CHECK(host::tensor_list{}.tensors().empty());
}

TEST_CASE("tensor_list refuses mixed dtypes and names the tensor") {
  auto const views =
      std::array{buffer_view{nullptr, 0, dtype::fp32}, buffer_view{nullptr, 0, dtype::fp16}};
  try {
    static_cast<void>(host::tensor_list{views});
    FAIL("not refused");
  } catch (contract_error const& e) {
    CHECK(std::string_view{e.what()}.find("tensor 1 is fp16, tensor 0 is fp32") !=
          std::string_view::npos);
  }
}

TEST_CASE("staging_pool hands out again what was given back") {
  auto pool         = host::staging_pool{};
  auto a            = pool.acquire();
  auto b            = pool.acquire();
  auto* const first = a.get();
  CHECK(first != b.get());
  pool.release(std::move(a));
  CHECK(pool.acquire().get() == first);
}

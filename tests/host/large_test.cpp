// SPDX-License-Identifier: Apache-2.0
#include <gradlane/buffer_view.hpp>   // for buffer_view
#include <gradlane/host/kernels.hpp>  // for sum_of_squares
#include <gradlane/types.hpp>         // for bf16

#include <doctest/doctest.h>

#include <array>    // for array
#include <cstddef>  // for size_t
#include <cstdlib>  // for calloc, free
#include <memory>   // for unique_ptr
#include <span>     // for span

TEST_CASE("kernels::sum_of_squares reaches the end of more than 2^31 elements") {
  using gradlane::bf16;
  constexpr auto count = (std::size_t{1} << 31) + 77;  // never written: pages of zeros, shared
  auto const memory    = std::unique_ptr<bf16, void (*)(void*)>{
      static_cast<bf16*>(std::calloc(count, sizeof(bf16))), std::free};
  REQUIRE(memory != nullptr);
  auto const x   = std::span{memory.get(), count};
  x[0]           = bf16{1.0F};
  x[count - 78]  = bf16{2.0F};
  x[count - 1]   = bf16{3.0F};
  auto const all = std::array{gradlane::buffer_view{x}};
  CHECK(gradlane::host::kernels::sum_of_squares(all) == 14.0);
}

// SPDX-License-Identifier: Apache-2.0
#pragma once

// A case beside those of conformance/communicator.hpp, for programs whose operator new may be
// counted; its fixture has Ranks::cuts() too: whether buffers are cut into many pieces, whose
// number a call learns slowly. A test file says TEST_CASE_TEMPLATE_INVOKE(communicator_allocations,
// fixture).

#include <gradlane/types.hpp>  // for bf16, reduction

#include <doctest/doctest.h>

#include <conformance/communicator.hpp>  // for part_of, placed
#include <support/alloc_count.hpp>       // for allocations

#include <cstddef>  // for size_t
#include <vector>   // for vector

TEST_CASE_TEMPLATE_DEFINE("a communicator takes nothing from the heap once warm",
                          Ranks,
                          communicator_allocations) {
  using namespace gradlane;
  if (Ranks::cuts()) { return; }
  Ranks::run([](auto& c, auto& d) {
    auto s            = d.make_stream(stream_priority::high);
    auto const ranks  = static_cast<std::size_t>(c.size());
    auto const x      = test::placed{d, s, std::vector<float>(17 * ranks)};
    auto const y      = test::placed{d, s, std::vector<bf16>(17 * ranks)};
    auto const z      = test::placed{d, s, std::vector<float>(17 * ranks)};
    auto const own    = test::part_of(x, c.rank(), 17);
    auto const blocks = std::vector<std::size_t>(ranks, 17);
    auto const round  = [&] {
      c.all_reduce(s, x, x, reduction::average);
      c.all_reduce(s, y, y, reduction::sum);
      c.reduce_scatter(s, x, own, reduction::sum);
      c.all_gather_v(s, own, x, blocks);
      c.all_to_all_v(s, x, blocks, z, blocks);
      c.broadcast(s, x, 0);
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

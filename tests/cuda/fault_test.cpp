// SPDX-License-Identifier: Apache-2.0
#include <gradlane/cuda/fault.hpp>      // for fault
#include <gradlane/detail/failure.hpp>  // for failure
#include <gradlane/error.hpp>           // for communication_error

#include <doctest/doctest.h>

#include <memory>           // for make_shared
#include <source_location>  // for source_location
#include <string>           // for string
#include <utility>          // for move

namespace {

using gradlane::cuda::fault;

[[nodiscard]] fault::reason because(std::string text) {
  auto const at = std::source_location::current();
  return std::make_shared<gradlane::detail::failure const>(
      gradlane::detail::failure::of<gradlane::communication_error>(std::move(text), at));
}

/// The message that a check of this place throws; empty where it does not.
[[nodiscard]] std::string found(fault const& stream, fault::place where) {
  try {
    stream.check(where);
  } catch (gradlane::communication_error const& e) { return std::string{e.message()}; }
  return {};
}

}  // namespace

TEST_CASE("a fault is thrown behind the operation that failed, not before") {
  auto stream = fault{};
  CHECK(stream.pass() == 0);
  CHECK(stream.pass() == 1);
  stream.raise(because("second"), 1);
  CHECK(found(stream, 1).empty());
  CHECK(found(stream, 2) == "second");
}

TEST_CASE("a fault keeps the failure that is the earliest in the stream") {
  auto stream = fault{};
  for (auto i = 0; i < 3; ++i) { stream.pass(); }
  stream.raise(because("third"), 2);
  stream.raise(because("first"), 0);
  stream.raise(because("second"), 1);
  CHECK(found(stream, 3) == "first");
  CHECK(found(stream, 1) == "first");
}

TEST_CASE("a fault reaches those who wait for the stream, before and after it came, and theirs") {
  auto first        = fault{};
  auto const second = std::make_shared<fault>();
  auto const third  = std::make_shared<fault>();
  auto const late   = std::make_shared<fault>();
  auto const own    = first.pass();
  first.lead_to(second, first.end());
  second->lead_to(third, second->end());
  CHECK(found(*third, third->end()).empty());
  first.raise(because("lost"), own);
  CHECK(found(*second, second->end()) == "lost");
  CHECK(found(*third, third->end()) == "lost");
  CHECK(found(*third, 0).empty());
  second->lead_to(late, second->end());
  CHECK(found(*late, late->end()) == "lost");
}

TEST_CASE("a fault does not reach those who waited only for what was before it") {
  auto stream        = fault{};
  auto const waiting = std::make_shared<fault>();
  stream.pass();
  stream.lead_to(waiting, stream.end());
  auto const failing = stream.pass();
  stream.raise(because("later"), failing);
  CHECK(found(*waiting, waiting->end()).empty());
  stream.lead_to(waiting, stream.end());
  CHECK(found(*waiting, waiting->end()) == "later");
}

TEST_CASE("a fault of streams that wait for each other ends") {
  auto const a   = std::make_shared<fault>();
  auto const b   = std::make_shared<fault>();
  auto const own = a->pass();
  a->lead_to(b, a->end());
  b->lead_to(a, b->end());
  a->raise(because("round"), own);
  CHECK(found(*a, a->end()) == "round");
  CHECK(found(*b, b->end()) == "round");
}

TEST_CASE("a fault survives the streams that waited for it") {
  auto stream    = fault{};
  auto const own = stream.pass();
  stream.lead_to(std::make_shared<fault>(), stream.end());
  stream.raise(because("alone"), own);
  CHECK(found(stream, stream.end()) == "alone");
}

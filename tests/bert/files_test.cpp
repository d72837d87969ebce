// SPDX-License-Identifier: Apache-2.0
#include "temporary_directory.hpp"  // for temporary_directory

#include <doctest/doctest.h>

#include <bert/checksum.hpp>
#include <bert/errors.hpp>
#include <bert/files.hpp>
#include <bert/parallel_for.hpp>

#include <cerrno>
#include <mutex>
#include <set>
#include <stdexcept>
#include <vector>

namespace {

using namespace bert;
namespace fs = std::filesystem;

TEST_CASE("checksum is the same however its bytes are cut, and differs for every flipped bit") {
  auto text = std::string{};
  for (auto i = 0; i < 100; ++i) { text += static_cast<char>(i * 37); }
  auto const of = [](std::string_view bytes) {
    auto sum = checksum{};
    sum.add(bytes);
    return sum.value();
  };
  auto const whole = of(text);
  for (auto cut = std::size_t{0}; cut <= text.size(); ++cut) {
    auto sum = checksum{};
    sum.add(std::string_view{text}.substr(0, cut));
    CHECK(sum.value() == of(std::string_view{text}.substr(0, cut)));
    sum.add(std::string_view{text}.substr(cut));
    CHECK(sum.value() == whole);
  }
  auto seen = std::set<std::uint64_t>{whole};
  for (auto bit = std::size_t{0}; bit < 8 * text.size(); ++bit) {
    auto changed     = text;
    changed[bit / 8] = static_cast<char>(changed[bit / 8] ^ (1 << bit % 8));
    CHECK(seen.insert(of(changed)).second);
  }
  CHECK(of("") != of(std::string(1, '\0')));
  CHECK(of(std::string(31, '\0')) != of(std::string(32, '\0')));
}

TEST_CASE("output_file writes in order and can correct what it wrote") {
  auto const folder = test::temporary_directory{};
  auto const path   = folder.path() / "a";
  {
    auto file = output_file{path};
    file.write("hello ");
    file.write("world");
    file.rewrite(1, std::as_bytes(std::span{"ELL", 3}));
    file.sync();
    CHECK(file.size() == 11);
  }
  CHECK(read_file(path) == "hELLo world");
  CHECK(read_file(path, 6, 3) == "wor");
  CHECK(read_file(path, 9, 100) == "ld");
  auto const mapped = mapped_file{path};
  CHECK(mapped.bytes().size() == 11);
  CHECK(mapped.bytes()[10] == std::byte{'d'});
}

TEST_CASE("output_file says that the disk is full") {
  auto file = output_file{"/dev/full"};
  try {
    file.write("more than nothing");
    FAIL("a full disk took bytes");
  } catch (file_system_error const& problem) {
    CHECK(problem.disk_full());
    CHECK(problem.path() == "/dev/full");
    CHECK(std::string_view{problem.what()}.find("No space left on device; make room") !=
          std::string_view::npos);
  }
}

TEST_CASE("read_file and mapped_file name the file that is not there") {
  CHECK_THROWS_WITH_AS(static_cast<void>(read_file("/no/such/file")),
                       doctest::Contains("/no/such/file: cannot be opened: No such file"),
                       file_system_error);
  CHECK_THROWS_AS(mapped_file{"/no/such/file"}, file_system_error);
  CHECK_THROWS_WITH_AS(
      static_cast<void>(read_file("/tmp")), doctest::Contains("Is a directory"), file_system_error);
}

TEST_CASE("publish replaces a file by another as a whole") {
  auto const folder = test::temporary_directory{};
  auto const before = folder.write("final", "old");
  auto const after  = folder.write("temporary", "new");
  publish(after, before);
  CHECK(read_file(before) == "new");
  CHECK_FALSE(fs::exists(after));
  CHECK_THROWS_AS(publish(after, before), file_system_error);
}

TEST_CASE("parallel_for does each piece of work once on any number of threads") {
  for (auto const threads : {1U, 2U, 5U}) {
    auto done = std::vector<int>(100);
    parallel_for(done.size(), threads, [&](std::size_t i, std::size_t thread) {
      CHECK(thread < threads);
      ++done[i];
    });
    CHECK(done == std::vector<int>(100, 1));
  }
  parallel_for(0, 3, [](std::size_t, std::size_t) { FAIL("there was nothing to do"); });
}

TEST_CASE("parallel_for passes on the failure of the earliest piece") {
  CHECK_THROWS_WITH_AS(parallel_for(50,
                                    1,
                                    [](std::size_t i, std::size_t) {
                                      if (i >= 7) { throw std::runtime_error{std::to_string(i)}; }
                                    }),
                       "7",
                       std::runtime_error);
  CHECK_THROWS_AS(parallel_for(50,
                               4,
                               [](std::size_t i, std::size_t) {
                                 if (i % 2 == 1) { throw std::runtime_error{"odd"}; }
                               }),
                  std::runtime_error);
}

}  // namespace
